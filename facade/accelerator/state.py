"""What is reached through `trainer.accelerator.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..distributed.process_group import leave
from .distribution import DistributedType, fsdp_version
from .processes import Processes

if TYPE_CHECKING:
    from ..arguments import TrainingArguments


class StateView(Processes):
    """As `accelerate.state.AcceleratorState`, but what the arguments say, and nothing that is kept beside them.

    Args:
        args: the training arguments.
    """

    debug = False
    fork_launched = False
    initialized = True
    deepspeed_plugins = None
    torch_tp_plugin = None
    device_mesh: Any = None

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args

    @property
    def backend(self) -> str | None:
        """Of the process group; None without one."""
        return self.args.distributed_state.backend

    @property
    def parallelism_config(self) -> Any:
        """That of the arguments."""
        return self.args.parallelism_config

    @property
    def is_fsdp2(self) -> bool:
        """Whether weights are sharded by `fully_shard`."""
        return self.distributed_type == DistributedType.FSDP and fsdp_version(self.args) == 2

    @property
    def deepspeed_plugin(self) -> None:
        """None.

        Raises:
            NotImplementedError: DeepSpeed is asked for.
        """
        self._refuse("deepspeed")

    @property
    def fsdp_plugin(self) -> None:
        """None.

        Raises:
            NotImplementedError: FSDP is asked for.
        """
        self._refuse("fsdp")

    def destroy_process_group(self, group: Any = None) -> None:
        """Leave a process group, by default that of all processes; nothing where there is none."""
        if group is None:
            leave()
        else:
            dist.destroy_process_group(group)

    def __getattr__(self, name: str) -> Any:
        """What `args.distributed_state` has beside this."""
        if name.startswith("__") or name == "args":
            raise AttributeError(name)
        return getattr(self.args.distributed_state, name)

    def __repr__(self) -> str:
        """What there is to know."""
        return (
            f"Distributed environment: {self.distributed_type.value}, backend {self.backend}, process "
            f"{self.process_index} of {self.num_processes} ({self.local_process_index} on this machine), device "
            f"{self.device}, mixed precision {self.mixed_precision}"
        )

    def _refuse(self, what: str) -> None:
        if getattr(self.args, what):
            raise NotImplementedError(
                f"trainer.accelerator.state.{what}_plugin: libraries prepare models of their own with it, such as a "
                f"reference model. Here {what} is Lightning's, and shards the model that is trained, and no other. "
                f"Leave the argument {what} out, or do without the other model (precomputed values, an adapter)."
            )
