"""Provide scripts and models with the active DeepSpeed configuration before an engine exists."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from ...lightning_modules.common.libraries import is_installed, loaded
from ...lightning_modules.distributed.deepspeed_setup import prepare_deepspeed
from ..distributed.process import current_process
from .deepspeed_config import (
    HIDDEN_SIZE_KEYS,
    DeepSpeedSource,
    fill_auto,
    fill_from_arguments,
    fill_from_run,
    hidden_size,
    load_deepspeed,
    value_at,
)

if TYPE_CHECKING:
    from .. import TrainingArguments

_active_reference: weakref.ref[HfDeepSpeedConfig] | None = None


def _active() -> HfDeepSpeedConfig | None:
    if _active_reference is None:
        return None
    return _active_reference()


class HfDeepSpeedConfig:
    """Hold a DeepSpeed configuration, which is active as long as this object is referenced.

    Works like `transformers.integrations.HfDeepSpeedConfig`.

    While a stage 3 configuration is active, models of `transformers` are loaded sharded.

    Args:
        config_file_or_dict: a dict, the path of a JSON file, or another form of the argument
            `deepspeed`.
    """

    def __init__(self, config_file_or_dict: DeepSpeedSource) -> None:
        self.config = load_deepspeed(config_file_or_dict)
        set_hf_deepspeed_config(self)

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Return the section of a dotted key, or None, and the last part of the key."""
        path, _, last = ds_key_long.rpartition(".")
        section = value_at(self.config, path) if path else self.config
        if not isinstance(section, dict):
            return None, last
        return cast("dict[str, Any]", section), last

    def get_value(self, ds_key_long: str, default: object = None) -> Any:
        """Return the value of a dotted key."""
        return value_at(self.config, ds_key_long, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Remove a key, with all below it.

        Raises:
            ValueError: the key is missing, and `must_exist` is set.
        """
        section, last = self.find_config_node(ds_key_long)
        if section is not None and last in section:
            del section[last]
        elif must_exist:
            raise ValueError(
                f"{ds_key_long} is not in the configuration of deepspeed: {self.config}"
            )

    def is_true(self, ds_key_long: str) -> bool:
        """Return True if a key is set and truthy."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Return True if a key is set and falsy."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_auto(self, ds_key_long: str) -> bool:
        """Return True if a key is still "auto"."""
        return self.get_value(ds_key_long) == "auto"

    def is_zero2(self) -> bool:
        """Return True for stage 2."""
        return self._stage == 2

    def is_zero3(self) -> bool:
        """Return True for stage 3."""
        return self._stage == 3

    def is_offload(self) -> bool:
        """Return True if optimizer or parameters are offloaded in stage 2 or 3."""
        if self._stage not in (2, 3):
            return False
        optimizer_device = self.get_value("zero_optimization.offload_optimizer.device")
        param_device = self.get_value("zero_optimization.offload_param.device")
        return optimizer_device in ("cpu", "nvme") or param_device in ("cpu", "nvme")

    @property
    def _stage(self) -> Any:
        return self.get_value("zero_optimization.stage", -1)


class HfTrainerDeepSpeedConfig(HfDeepSpeedConfig):
    """Hold a DeepSpeed configuration, and fill in its values "auto" from training arguments.

    Works like `transformers.integrations.HfTrainerDeepSpeedConfig`.

    Args:
        config_file_or_dict: a dict, the path of a JSON file, or another form of the argument
            `deepspeed`.

    Attributes:
        mismatches: sentences about values that contradict the training arguments.
    """

    def __init__(self, config_file_or_dict: DeepSpeedSource) -> None:
        super().__init__(config_file_or_dict)
        self.mismatches: list[str] = []
        self._dtype: torch.dtype | None = None

    def dtype(self) -> torch.dtype:
        """Return the type of numbers that the arguments ask for.

        Raises:
            ValueError: `trainer_config_process` was not called.
        """
        if self._dtype is None:
            raise ValueError(
                "The dtype follows from the training arguments: call trainer_config_process(args) "
                "before dtype()."
            )
        return self._dtype

    def fill_match(
        self, ds_key_long: str, hf_val: object, hf_key: str | None = None, must_match: bool = True
    ) -> None:
        """Fill in a value that is "auto". A different value is appended to `mismatches`.

        Args:
            ds_key_long: the key, with dots between its parts.
            hf_val: the value of the training arguments.
            hf_key: the name of the argument, for the message.
            must_match: compare a value that is not "auto".
        """
        # Without the name of an argument nothing is compared.
        argument = None
        if must_match:
            argument = hf_key or "the value of the script"
        self.mismatches += fill_auto(self.config, ds_key_long, hf_val, argument)

    def fill_only(self, ds_key_long: str, hf_val: object, hf_key: str | None = None) -> None:
        """Fill in a value that is "auto". `hf_key` is not used, as in transformers."""
        self.fill_match(ds_key_long, hf_val, hf_key, must_match=False)

    def trainer_config_process(
        self, args: TrainingArguments, auto_find_batch_size: bool = False
    ) -> None:
        """Fill in values that follow from the arguments, and append contradictions to `mismatches`.

        Args:
            args: the training arguments.
            auto_find_batch_size: not used, for compatibility.
        """
        self.mismatches += fill_from_arguments(self.config, args, args.world_size)
        self._dtype = torch.float32
        if self.is_true("bf16.enabled"):
            self._dtype = torch.bfloat16
        elif self.is_true("fp16.enabled"):
            self._dtype = torch.float16

    def trainer_config_finalize(
        self, args: TrainingArguments, model: object, num_training_steps: int
    ) -> None:
        """Fill in values that follow from the model and the length of the training.

        Raises:
            ValueError: the arguments contradict the configuration, or the model has no hidden size
                for values "auto" that depend on it.
        """
        open_sizes = [key for key in HIDDEN_SIZE_KEYS if self.is_auto(key)]
        if open_sizes and hidden_size(model) is None:
            raise ValueError(
                f"deepspeed: {', '.join(open_sizes)} cannot be filled in, because the config "
                "of the model has neither `hidden_size` nor `hidden_sizes`. Write numbers instead "
                'of "auto".'
            )
        self.mismatches += fill_from_run(self.config, args, model, num_training_steps)
        if self.mismatches:
            raise ValueError(f"deepspeed contradicts the arguments: {'; '.join(self.mismatches)}.")


def is_deepspeed_available() -> bool:
    """Return whether DeepSpeed is installed; it is not imported."""
    return is_installed("deepspeed")


def set_hf_deepspeed_config(hf_deepspeed_config_obj: HfDeepSpeedConfig) -> None:
    """Activate a configuration, in the loaded module of `transformers` too."""
    global _active_reference
    _active_reference = weakref.ref(hf_deepspeed_config_obj)
    _tell_transformers(set_hf_deepspeed_config, hf_deepspeed_config_obj)


def unset_hf_deepspeed_config() -> None:
    """Deactivate the configuration, in the loaded module of `transformers` too."""
    global _active_reference
    _active_reference = None
    _tell_transformers(unset_hf_deepspeed_config)


def _tell_transformers(function: Callable[..., None], *args: HfDeepSpeedConfig) -> None:
    """Call the function of the same name in `transformers`, if it is loaded and not this one."""
    module = loaded("transformers.integrations.deepspeed")
    if module is None:
        return

    # Under the runner the name is that of the function here.
    transformers_function = getattr(module, function.__name__)
    if transformers_function is not function:
        transformers_function(*args)


def activate_deepspeed_of(args: TrainingArguments) -> None:
    """Activate the configuration of training arguments for models loaded from now on."""
    if args.deepspeed:
        config = HfTrainerDeepSpeedConfig(args.deepspeed)
        config.trainer_config_process(args)
        # The configuration is active as long as the arguments refer to it.
        args.hf_deepspeed_config = config


def deactivate_deepspeed_of_arguments() -> None:
    """Deactivate the configuration of earlier training arguments."""
    if isinstance(_active(), HfTrainerDeepSpeedConfig):
        unset_hf_deepspeed_config()


def deepspeed_config() -> dict[str, Any] | None:
    """Return the active configuration; None without one."""
    active = _active()
    return None if active is None else active.config


def is_deepspeed_zero3_enabled() -> bool:
    """Return True if `transformers` has to load models sharded.

    If so, a process group is made for a process that was started alone, because DeepSpeed shards
    the weights over a group while they are loaded.
    """
    active = _active()
    if active is None or not active.is_zero3() or not is_deepspeed_available():
        return False
    prepare_deepspeed(current_process().device.type)
    return True
