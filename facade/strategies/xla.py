"""torch_xla on one device: a TPU chip, or the CPU through PJRT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..arguments.fsdp_config import shown_fsdp
from ..distributed.xla_device import require_xla, xla_process_count
from .strategy import Group, Strategy

if TYPE_CHECKING:
    from typing import Self

    from ...lightning_modules.distributed.xla import (
        ForwardXLAPrecision,
        ModelXLAStrategy,
        PjrtAccelerator,
    )
    from ..arguments import TrainingArguments


class XLA(Strategy):
    """Strategy for one torch_xla device."""

    accelerator = "tpu"  # Lightning's name, also for other devices of PJRT
    manages_processes = True
    can_restart = False

    @classmethod
    def of(cls, args: TrainingArguments) -> Self:
        """Return the strategy for a device of torch_xla."""
        return cls("SingleDeviceXLAStrategy", {"device": str(args.device)})

    def build_accelerator(self) -> PjrtAccelerator:
        """Return an XLA accelerator that supports other devices than TPUs too."""
        from ...lightning_modules.distributed.xla import PjrtAccelerator

        return PjrtAccelerator()

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """Raise for several processes, FSDP and fp16."""
        if args.fsdp:
            raise NotImplementedError(
                f"{shown_fsdp(args.fsdp)} is not supported on devices of torch_xla: train on one "
                "chip without it."
            )
        require_xla("the device xla")
        processes = max(args.world_size, xla_process_count())
        if processes > 1:
            raise NotImplementedError(
                f"The device xla in {processes} processes is not supported: train on one chip."
            )
        if args.mixed_precision == "fp16":
            raise NotImplementedError(
                "fp16=True is not supported on TPUs, which compute in bfloat16: pass bf16=True."
            )

    def precision(self, name: str, device: str) -> ForwardXLAPrecision:
        """See `Strategy.precision`. Lightning's strategy only accepts XLA precision plugins."""
        from ...lightning_modules.distributed.xla import ForwardXLAPrecision

        return ForwardXLAPrecision(name)

    def build(self) -> ModelXLAStrategy:
        """Build a strategy for the device of this process."""
        from ...lightning_modules.distributed.xla import ModelXLAStrategy

        return ModelXLAStrategy()

    def groups(self) -> list[Group]:
        """Return the row of the plan."""
        return [("use_cpu", "Trainer(strategy=)", self.options)]
