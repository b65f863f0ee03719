"""torch_xla: one device, a TPU chip or the CPU through PJRT.

What the keys `xla*` of `fsdp_config` ask for is planned, and refused where it would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from ..arguments.fsdp_config import FSDPSettings, shown_fsdp
from ..distributed.xla_device import require_xla, xla_process_count
from .strategy import Strategy, picked
from .wrapping import wrap_option

if TYPE_CHECKING:
    from typing import Self

    from ..arguments import TrainingArguments

_SHARDED = "fsdp_config['xla']=True"


class XLA(Strategy):
    """A device of torch_xla, and what the model would be wrapped with, where `fsdp` asks for it."""

    accelerator = "tpu"  # Lightning's name, also for other devices of PJRT
    manages_processes = True
    can_restart = False

    @classmethod
    def of(
        cls, args: TrainingArguments, settings: FSDPSettings | None, model: nn.Module | None
    ) -> Self:
        """Return the strategy for a device of torch_xla.

        Args:
            args: the training arguments.
            settings: of FSDP; None where nothing is sharded.
            model: is asked for its layers.

        Raises:
            ValueError: FSDP is asked for, but not that of torch_xla.
        """
        if settings is None:
            return cls("SingleDeviceXLAStrategy", {"device": str(args.device)})
        if not settings.xla:
            raise ValueError(f"{shown_fsdp(args.fsdp)} on a device of torch_xla needs {_SHARDED}.")
        options = {
            "wrapper": (
                "SpmdFullyShardedDataParallel" if settings.xla_v2 else "XlaFullyShardedDataParallel"
            ),
            "layers": wrap_option(settings, model),
            "gradient_checkpointing": settings.xla_checkpointing,
            "settings": dict(settings.xla_options or {}),
        }
        return cls("XLAStrategy", options)

    @property
    def wrapper(self) -> str | None:
        """The class that shards the model, or None."""
        return self.options.get("wrapper")

    @property
    def shards_weights(self) -> bool:
        """See `Strategy.shards_weights`."""
        return self.wrapper is not None

    def build_accelerator(self) -> Any:
        """Make a `PjrtAccelerator`, which also takes the CPU."""
        from ...lightning_modules.distributed.xla import PjrtAccelerator

        return PjrtAccelerator()

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """See `Strategy.check`."""
        asked = _SHARDED if self.wrapper else "the device xla"
        require_xla(asked)
        processes = max(args.world_size, xla_process_count())
        if processes > 1 or self.wrapper:
            where = f" in {processes} processes" if processes > 1 else ""
            raise NotImplementedError(
                f"{asked}{where} can be planned, but not run yet: train on one chip without it."
            )
        if args.mixed_precision == "fp16":
            raise NotImplementedError(
                "fp16=True does not go with TPUs, which compute in bfloat16: pass bf16=True."
            )

    def precision(self, name: str, device: str) -> Any:
        """See `Strategy.precision`: Lightning's strategy takes only those for XLA."""
        from ...lightning_modules.distributed.xla import ForwardXLAPrecision

        return ForwardXLAPrecision(name)

    def build(self) -> Any:
        """Make a strategy for the device of this process."""
        from ...lightning_modules.distributed.xla import ModelXLAStrategy

        return ModelXLAStrategy()

    def groups(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """See `Strategy.groups`."""
        if self.wrapper is None:
            return [("use_cpu", "Trainer(strategy=)", self.options)]
        options = picked(self.options, "layers", "gradient_checkpointing")
        return [
            ("fsdp_config: xla", "Trainer(strategy=)", {}),
            ("fsdp_config: xla_fsdp_*", self.wrapper, options),
            ("fsdp_config: xla_fsdp_settings", self.wrapper, self.options["settings"]),
        ]
