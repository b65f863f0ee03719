"""TPUs: FSDP of torch_xla, from the keys `xla*` of `fsdp_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ..arguments.fsdp_config import FSDPSettings
from .base import StrategyPlan, has_package, picked
from .wrapping import wrap_option

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

INSTALL = "pip install torch_xla, on a machine with TPUs"


@dataclass(frozen=True, kw_only=True)
class XLAPlan(StrategyPlan):
    """All cores of a TPU, the model sharded over them."""

    @property
    def shards_weights(self) -> bool:
        """Always."""
        return True

    @property
    def accelerator(self) -> str:
        """TPUs only."""
        return "tpu"

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """Refuse: see `StrategyPlan.check`."""
        require_xla()
        raise NotImplementedError(
            "fsdp_config['xla']=True can be planned, but not run yet: leave it out to train on GPUs or on the CPU."
        )

    def build(self) -> Any:
        """An `XLAStrategy`.

        Raises:
            ImportError: there is no torch_xla.
        """
        require_xla()
        from lightning.pytorch.strategies.xla import XLAStrategy

        return XLAStrategy()

    def groups(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Which FSDP, and with what."""
        options = picked(self.options, "layers", "gradient_checkpointing")
        return [
            ("fsdp_config: xla", "Trainer(strategy=)", {}),
            ("fsdp_config: xla_fsdp_*", str(self.options["wrapper"]), options),
            ("fsdp_config: xla_fsdp_settings", str(self.options["wrapper"]), self.options["settings"]),
        ]


def xla(args: TrainingArguments, settings: FSDPSettings, model: nn.Module | None) -> XLAPlan:
    """The plan of `fsdp` on TPUs."""
    options = {
        "wrapper": "SpmdFullyShardedDataParallel" if settings.xla_v2 else "XlaFullyShardedDataParallel",
        "layers": wrap_option(settings, model),
        "gradient_checkpointing": settings.xla_checkpointing,
        "settings": dict(settings.xla_options or {}),
    }
    return XLAPlan(name="XLAStrategy", options=options)


def require_xla() -> None:
    """Say how to install torch_xla where it is not.

    Raises:
        ImportError: it is not there.
    """
    if not has_package("torch_xla"):
        raise ImportError(f"fsdp_config['xla']=True needs the package torch_xla, which is not installed: {INSTALL}")
