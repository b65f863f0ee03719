"""One process, and several that hold the whole model each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .base import StrategyPlan, process_group

if TYPE_CHECKING:
    from ..arguments import TrainingArguments


def single(args: TrainingArguments) -> StrategyPlan:
    """One process on one device."""
    return StrategyPlan(name="SingleDeviceStrategy", options={"device": str(args.device)})


@dataclass(frozen=True, kw_only=True)
class DDPPlan(StrategyPlan):
    """Each process has the whole model; gradients are averaged."""

    def build(self) -> Any:
        """A `DDPStrategy`."""
        from lightning.pytorch.strategies import DDPStrategy

        from ...lightning_modules.internals.lightning_internals import start_no_processes

        strategy = DDPStrategy(**self.options)
        # In the fork of a notebook; elsewhere the launcher, which starts nothing either, shares out the cores.
        return start_no_processes(strategy) if hasattr(sys, "ps1") else strategy


def ddp(args: TrainingArguments, find_unused_parameters: bool) -> DDPPlan:
    """The `ddp_*` arguments; `find_unused_parameters` stands where they leave it open."""
    given = args.ddp_find_unused_parameters
    options = {
        "find_unused_parameters": find_unused_parameters if given is None else given,
        "bucket_cap_mb": args.ddp_bucket_cap_mb,
        "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": args.ddp_static_graph,
    }
    options = {name: value for name, value in options.items() if value is not None}
    return DDPPlan(name="DDPStrategy", options={**options, **process_group(args)})
