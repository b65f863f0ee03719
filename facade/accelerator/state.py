"""`trainer.accelerator.state`: processes, precision and the plugins of the strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from ..arguments.fsdp_config import settings_of
from ..distributed.process import forwarded
from ..distributed.process_group import leave
from .processes import DistributedType, Processes, fsdp_version

if TYPE_CHECKING:
    from ..arguments.fsdp_config import FSDPSettings


class StateView(Processes):
    """As `accelerate.state.AcceleratorState`, but without state: a view of the arguments.

    Args:
        args: the training arguments.
    """

    debug = False
    fork_launched = False
    initialized = True
    deepspeed_plugins = None
    torch_tp_plugin = None
    device_mesh: Any = None

    backend: str | None = forwarded(
        "args.distributed_state.backend", "The backend of the process group, or None."
    )

    @property
    def is_fsdp2(self) -> bool:
        """Return whether weights are sharded by `fully_shard`."""
        return self.distributed_type == DistributedType.FSDP and fsdp_version(self.args) == 2

    @property
    def deepspeed_plugin(self) -> None:
        """Return None without DeepSpeed.

        Raises:
            NotImplementedError: DeepSpeed is configured.
        """
        if self.args.deepspeed:
            raise NotImplementedError(
                "trainer.accelerator.state.deepspeed_plugin: deepspeed shards only the model that "
                "is trained. Leave deepspeed out, or use an adapter instead of a second model."
            )

    @property
    def fsdp_plugin(self) -> FSDPPlugin | None:
        """Return the plugin with the settings of FSDP; None without FSDP."""
        settings = settings_of(self.args)
        if settings is None:
            return None
        return FSDPPlugin(settings)

    def destroy_process_group(self, group: Any = None) -> None:
        """Destroy a process group, by default that of all processes if there is one."""
        if group is None:
            leave()
        else:
            dist.destroy_process_group(group)

    def __getattr__(self, name: str) -> Any:
        """Look up other members in `args.distributed_state`."""
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


_TYPES = {"full": "FULL_STATE_DICT", "sharded": "SHARDED_STATE_DICT"}


class FSDPPlugin:
    """As `accelerate.FullyShardedDataParallelPlugin`, without what shards a second model.

    Args:
        settings: those of the training arguments.

    Raises:
        NotImplementedError: for all other attributes, when they are read or set.
    """

    __slots__ = ("_settings",)
    _settings: FSDPSettings

    def __init__(self, settings: FSDPSettings) -> None:
        object.__setattr__(self, "_settings", settings)

    @property
    def fsdp_version(self) -> int:
        """Return the version of FSDP, 1 or 2."""
        return self._settings.version

    @property
    def state_dict_type(self) -> str:
        """Return the form of checkpoints: `FULL_STATE_DICT` or `SHARDED_STATE_DICT`."""
        return _TYPES[self._settings.state_dict_type]

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Accept `FULL_STATE_DICT`: `save_model` writes whole weights in any case.

        Args:
            state_dict_type: a name, or a `torch.distributed.fsdp.StateDictType`. None changes
                nothing.

        Raises:
            NotImplementedError: another form than whole weights or that of the arguments.
        """
        if state_dict_type is None:
            return
        name = str(getattr(state_dict_type, "name", state_dict_type)).upper()
        if name not in ("FULL_STATE_DICT", self.state_dict_type):
            raise NotImplementedError(
                f"fsdp_plugin.set_state_dict_type({name!r}): save_model writes whole weights, and "
                "the form of checkpoints is fixed when a training begins: set "
                "fsdp_config={'state_dict_type': ...} for it."
            )

    def __getattr__(self, name: str) -> Any:
        """Refuse what is not here; names with two underscores are those that Python looks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(name)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse settings, which would have no effect."""
        _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"trainer.accelerator.state.fsdp_plugin.{name}: fsdp shards only the model that is "
        "trained. Set fsdp_config in the arguments for it. For a second model leave fsdp out, or "
        "use an adapter instead of a second model."
    )
