"""What scripts and models ask about DeepSpeed, before there is an engine: which configuration holds, and its stage."""

from __future__ import annotations

import weakref
from typing import Any

from ...lightning_modules.common.libraries import is_installed, loaded
from ...lightning_modules.distributed import deepspeed_engine
from ..distributed.process import current_process
from .deepspeed_config import fill_from_arguments, fill_from_run, load_deepspeed, value_at

_in_force: weakref.ref[HfDeepSpeedConfig] | None = None


class HfDeepSpeedConfig:
    """As `transformers.integrations.HfDeepSpeedConfig`: in force as long as somebody holds it.

    Meanwhile models of `transformers` that are loaded in stage 3 come in parts.

    Args:
        config_file_or_dict: a dict, the path of a JSON file, or what else the argument `deepspeed` can be.
    """

    def __init__(self, config_file_or_dict: Any) -> None:
        self.config = load_deepspeed(config_file_or_dict)
        set_hf_deepspeed_config(self)

    def find_config_node(self, ds_key_long: str) -> tuple[Any, str]:
        """The section that has a key joined by dots, or None, and the last part of the key."""
        path, _, last = ds_key_long.rpartition(".")
        section = value_at(self.config, path) if path else self.config
        return (section if isinstance(section, dict) else None), last

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """The value of a key joined by dots."""
        return value_at(self.config, ds_key_long, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Take a key out, with all below it.

        Raises:
            ValueError: it is not there, but was to be.
        """
        section, last = self.find_config_node(ds_key_long)
        if section is not None and last in section:
            del section[last]
        elif must_exist:
            raise ValueError(f"{ds_key_long} is not in the configuration of deepspeed: {self.config}")

    def is_true(self, ds_key_long: str) -> bool:
        """Whether a key is there, and true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Whether a key is there, and false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_auto(self, ds_key_long: str) -> bool:
        """Whether a key is "auto" still."""
        return self.get_value(ds_key_long) == "auto"

    def is_zero2(self) -> bool:
        """Whether gradients are in parts."""
        return self._stage == 2

    def is_zero3(self) -> bool:
        """Whether parameters are in parts."""
        return self._stage == 3

    def is_offload(self) -> bool:
        """Whether optimizer or parameters are kept in other memory."""
        devices = (self.get_value(f"zero_optimization.offload_{part}.device") for part in ("optimizer", "param"))
        return self._stage in (2, 3) and any(device in ("cpu", "nvme") for device in devices)

    @property
    def _stage(self) -> Any:
        return self.get_value("zero_optimization.stage", -1)


class HfTrainerDeepSpeedConfig(HfDeepSpeedConfig):
    """As `transformers.integrations.HfTrainerDeepSpeedConfig`: filled in from training arguments."""

    def __init__(self, config_file_or_dict: Any) -> None:
        super().__init__(config_file_or_dict)
        self.mismatches: list[str] = []

    def trainer_config_process(self, args: Any, auto_find_batch_size: bool = False) -> None:
        """Fill in what the arguments decide; where they contradict is in `mismatches`."""
        self.mismatches += fill_from_arguments(self.config, args, args.world_size)

    def trainer_config_finalize(self, args: Any, model: Any, num_training_steps: int) -> None:
        """Fill in what follows from the model and the length of the training.

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
    """Put a configuration in force; the library's own module hears of it where it is loaded."""
    global _in_force
    _in_force = weakref.ref(hf_deepspeed_config_obj)
    theirs = getattr(loaded("transformers.integrations.deepspeed"), "set_hf_deepspeed_config", None)
    if theirs is not None and theirs is not set_hf_deepspeed_config:
        theirs(hf_deepspeed_config_obj)


def unset_hf_deepspeed_config() -> None:
    """Let no configuration be in force; the library's own module hears of it where it is loaded."""
    global _in_force
    _in_force = None
    theirs = getattr(loaded("transformers.integrations.deepspeed"), "unset_hf_deepspeed_config", None)
    if theirs is not None and theirs is not unset_hf_deepspeed_config:
        theirs()


def export_deepspeed(args: Any) -> None:
    """Let models that are loaded from now on know the stage, as long as these arguments are the last ones.

    Args:
        args: the training arguments, with `deepspeed`.
    """
    args.hf_deepspeed_config = HfTrainerDeepSpeedConfig(args.deepspeed)
    args.hf_deepspeed_config.trainer_config_process(args)


def forget_arguments() -> None:
    """Let no configuration be in force that came from training arguments: others have been made without one."""
    if _in_force is not None and isinstance(_in_force(), HfTrainerDeepSpeedConfig):
        unset_hf_deepspeed_config()


def deepspeed_config() -> dict[str, Any] | None:
    """The configuration in force; None without one."""
    found = None if _in_force is None else _in_force()
    return None if found is None else found.config


def is_deepspeed_zero3_enabled() -> bool:
    """Whether models are to be made in parts: models of `transformers` ask this when they are loaded.

    If so, the process is made fit for it: one that was started alone becomes a group of its own.
    """
    found = None if _in_force is None else _in_force()
    if found is None or not found.is_zero3() or not is_deepspeed_available():
        return False
    deepspeed_engine.make_ready(current_process().device.type)
    return True
