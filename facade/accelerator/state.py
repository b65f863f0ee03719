"""`trainer.accelerator.state`: processes, precision and the plugins of the strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from ..arguments.fsdp_config import settings_of
from ..distributed.process import forwarded
from ..distributed.process_group import leave
from .processes import DistributedType, Processes, fsdp_version

if TYPE_CHECKING:
    from torch.distributed.fsdp import StateDictType

    from ..arguments.fsdp_config import FSDPSettings


class StateView(Processes):
    """View of the arguments with the attributes of `accelerate.state.AcceleratorState`.

    Args:
        args: the training arguments.
    """

    # The same in every run, since the Trainer uses neither accelerate's debug mode, nor its
    # notebook launcher, nor its plugins and meshes.
    debug = False
    fork_launched = False
    initialized = True
    deepspeed_plugins = None
    torch_tp_plugin = None
    device_mesh = None

    backend: str | None = forwarded(
        "args.distributed_state.backend", "The backend of the process group, or None."
    )

    @property
    def is_fsdp2(self) -> bool:
        """Return whether weights are sharded by `fully_shard`."""
        return self.distributed_type == DistributedType.FSDP and fsdp_version(self.args) == 2

    @property
    def deepspeed_plugin(self) -> None:
        """Return None without DeepSpeed, under which it is not supported.

        Raises:
            NotImplementedError: DeepSpeed is configured.
        """
        if self.args.deepspeed:
            raise NotImplementedError(
                "trainer.accelerator.state.deepspeed_plugin is not supported: DeepSpeed shards "
                "only the trained model. Train without deepspeed, or use an adapter instead of a "
                "second model."
            )
        return None

    @property
    def fsdp_plugin(self) -> FSDPPlugin | None:
        """Return a plugin with the settings of FSDP; None without FSDP."""
        settings = settings_of(self.args)
        if settings is None:
            return None
        return FSDPPlugin(settings)

    def destroy_process_group(self, group: dist.ProcessGroup | None = None) -> None:
        """Destroy a process group, by default that of all processes if it exists."""
        if group is None:
            leave()
        else:
            dist.destroy_process_group(group)

    def __getattr__(self, name: str) -> Any:
        """Look up other members in `args.distributed_state`."""
        # Python looks for special names, and for `args` before `__init__` has run, as in a copy.
        if name.startswith("__") or name == "args":
            raise AttributeError(name)
        return getattr(self.args.distributed_state, name)

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return (
            f"Distributed environment: {self.distributed_type.value}, backend {self.backend}, "
            f"process {self.process_index} of {self.num_processes} ({self.local_process_index} on "
            f"this machine), device {self.device}, mixed precision {self.mixed_precision}"
        )


_STATE_DICT_TYPES = {"full": "FULL_STATE_DICT", "sharded": "SHARDED_STATE_DICT"}


class FSDPPlugin:
    """As `accelerate.FullyShardedDataParallelPlugin`, but it cannot shard a second model.

    Args:
        settings: those of the training arguments.

    Raises:
        NotImplementedError: another attribute is read, or any is set.
    """

    __slots__ = ("_settings",)
    _settings: FSDPSettings

    def __init__(self, settings: FSDPSettings) -> None:
        # Bypass `__setattr__`, which refuses everything.
        object.__setattr__(self, "_settings", settings)

    @property
    def fsdp_version(self) -> int:
        """Return the version of FSDP, 1 or 2."""
        return self._settings.version

    @property
    def state_dict_type(self) -> str:
        """Return the form of checkpoints: `FULL_STATE_DICT` or `SHARDED_STATE_DICT`."""
        return _STATE_DICT_TYPES[self._settings.state_dict_type]

    def set_state_dict_type(self, state_dict_type: StateDictType | str | None = None) -> None:
        """Do nothing if the form is what would be written anyway; refuse any other.

        `save_model` writes whole weights, checkpoints have the form in the arguments.

        Args:
            state_dict_type: a name, or a `torch.distributed.fsdp.StateDictType`. None changes
                nothing.

        Raises:
            NotImplementedError: neither whole weights nor the form in the arguments.
        """
        if state_dict_type is None:
            return
        name = str(getattr(state_dict_type, "name", state_dict_type)).upper()
        if name not in ("FULL_STATE_DICT", self.state_dict_type):
            raise NotImplementedError(
                f"fsdp_plugin.set_state_dict_type({name!r}) is not supported: save_model always "
                "writes whole weights. Set fsdp_config={'state_dict_type': ...} in "
                "TrainingArguments for the form of checkpoints."
            )

    def __getattr__(self, name: str) -> Any:
        """Raise the error of an unsupported attribute."""
        # Python itself looks for these, and expects an AttributeError.
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(name)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse settings, which would have no effect."""
        _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"trainer.accelerator.state.fsdp_plugin.{name} is not supported: FSDP shards only the "
        "trained model, by fsdp_config of TrainingArguments. Train without fsdp, or use an adapter "
        "instead of a second model."
    )
