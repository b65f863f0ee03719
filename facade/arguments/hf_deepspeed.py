"""Provide scripts and models with the active DeepSpeed configuration and its stage, before there
is an engine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...lightning_modules.common.libraries import is_installed, loaded
from ...lightning_modules.distributed import deepspeed_engine
from ..distributed.process import current_process
from .deepspeed_config import fill_from_arguments, fill_from_run, load_deepspeed, value_at

_in_force: weakref.ref[HfDeepSpeedConfig] | None = None


def _active() -> HfDeepSpeedConfig | None:
    return None if _in_force is None else _in_force()


class HfDeepSpeedConfig:
    """As `transformers.integrations.HfDeepSpeedConfig`: active as long as it is referenced.

    While a stage 3 configuration is active, models of `transformers` are loaded sharded.

    Args:
        config_file_or_dict: a dict, the path of a JSON file, or what else the argument `deepspeed`
            can be.
    """

    def __init__(self, config_file_or_dict: Any) -> None:
        self.config = load_deepspeed(config_file_or_dict)
        set_hf_deepspeed_config(self)

    def find_config_node(self, ds_key_long: str) -> tuple[Any, str]:
        """Return the section of a dotted key, or None, and the last part of the key."""
        path, _, last = ds_key_long.rpartition(".")
        section = value_at(self.config, path) if path else self.config
        return (section if isinstance(section, dict) else None), last

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
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
        devices = (
            self.get_value(f"zero_optimization.offload_{part}.device")
            for part in ("optimizer", "param")
        )
        return self._stage in (2, 3) and any(device in ("cpu", "nvme") for device in devices)

    @property
    def _stage(self) -> Any:
        return self.get_value("zero_optimization.stage", -1)


class HfTrainerDeepSpeedConfig(HfDeepSpeedConfig):
    """As `transformers.integrations.HfTrainerDeepSpeedConfig`: filled in from training
    arguments.
    """

    def __init__(self, config_file_or_dict: Any) -> None:
        super().__init__(config_file_or_dict)
        self.mismatches: list[str] = []

    def trainer_config_process(self, args: Any, auto_find_batch_size: bool = False) -> None:
        """Fill in values that follow from the arguments; add contradictions to `mismatches`."""
        self.mismatches += fill_from_arguments(self.config, args, args.world_size)

    def trainer_config_finalize(self, args: Any, model: Any, num_training_steps: int) -> None:
        """Fill in values that follow from the model and the length of the training.

        Raises:
            ValueError: the arguments contradict the configuration.
        """
        self.mismatches += fill_from_run(self.config, args, model, num_training_steps)
        if self.mismatches:
            raise ValueError(f"deepspeed contradicts the arguments: {'; '.join(self.mismatches)}.")


def is_deepspeed_available() -> bool:
    """As `transformers.integrations.is_deepspeed_available`."""
    return is_installed("deepspeed")


def set_hf_deepspeed_config(hf_deepspeed_config_obj: Any) -> None:
    """Activate a configuration, in the loaded module of `transformers` too."""
    global _in_force
    _in_force = weakref.ref(hf_deepspeed_config_obj)
    _tell_transformers(set_hf_deepspeed_config, hf_deepspeed_config_obj)


def unset_hf_deepspeed_config() -> None:
    """Deactivate the configuration, in the loaded module of `transformers` too."""
    global _in_force
    _in_force = None
    _tell_transformers(unset_hf_deepspeed_config)


def _tell_transformers(ours: Callable[..., None], *given: Any) -> None:
    """Call the function of `transformers` of the same name, where it is loaded and not this one."""
    theirs = getattr(loaded("transformers.integrations.deepspeed"), ours.__name__, ours)
    if theirs is not ours:
        theirs(*given)


def export_deepspeed(args: Any) -> None:
    """Activate the configuration of training arguments for models loaded from now on.

    Args:
        args: the training arguments, with `deepspeed`.
    """
    args.hf_deepspeed_config = HfTrainerDeepSpeedConfig(args.deepspeed)
    args.hf_deepspeed_config.trainer_config_process(args)


def forget_arguments() -> None:
    """Deactivate a configuration of earlier training arguments."""
    if isinstance(_active(), HfTrainerDeepSpeedConfig):
        unset_hf_deepspeed_config()


def deepspeed_config() -> dict[str, Any] | None:
    """Return the active configuration; None without one."""
    found = _active()
    return None if found is None else found.config


def is_deepspeed_zero3_enabled() -> bool:
    """Return True if models are to be loaded sharded; `transformers` calls this when it loads a
    model.

    If so, a process group is made for a process that was started alone.
    """
    found = _active()
    if found is None or not found.is_zero3() or not is_deepspeed_available():
        return False
    deepspeed_engine.make_ready(current_process().device.type)
    return True
