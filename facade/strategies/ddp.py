"""One process, and several that hold the whole model each."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from .base import StrategyPlan, process_group
from .strategy import Strategy, StrategyHost

if TYPE_CHECKING:
    from ..arguments import TrainingArguments


def single(args: TrainingArguments) -> StrategyPlan:
    """One process on one device."""
    return StrategyPlan(name="SingleDeviceStrategy", options={"device": str(args.device)})


@dataclass(frozen=True, kw_only=True)
class DDPPlan(StrategyPlan):
    """Each process has the whole model; gradients are averaged."""

    def for_trainer(self, host: StrategyHost) -> DDP:
        """See `StrategyPlan.for_trainer`."""
        return DDP(self, host)

    def build(self) -> Any:
        """A `DDPStrategy`."""
        from lightning.pytorch.strategies import DDPStrategy

        from ...lightning_modules.internals.lightning_internals import start_no_processes

        strategy = DDPStrategy(**self.options)
        # In the fork of a notebook; elsewhere the launcher, which starts nothing either, shares out the cores.
        return start_no_processes(strategy) if hasattr(sys, "ps1") else strategy


class DDP(Strategy):
    """The model is called inside of a wrapper around the LightningModule, which exchanges gradients."""

    plan: DDPPlan

    def __init__(self, plan: DDPPlan, host: StrategyHost) -> None:
        super().__init__(plan, host)
        self._records_graph = bool(plan.options.get("static_graph"))  # in the first pass, as it exchanges

    @property
    def ddp(self) -> nn.parallel.DistributedDataParallel | None:
        """See `Strategy.ddp`."""
        wrapper = getattr(self.lightning, "model", None)
        return wrapper if isinstance(wrapper, nn.parallel.DistributedDataParallel) else None

    def begin_step(self) -> None:
        """Have buffers come from the first process: Lightning's manual optimization turns that off."""
        wrapper = self.ddp
        if wrapper is not None:
            wrapper.require_forward_param_sync = True

    def micro_batch(self, *, exchange: bool, steps: bool) -> contextlib.AbstractContextManager[Any]:
        """See `Strategy.micro_batch`."""
        first, self._records_graph = self._records_graph, False
        return super().micro_batch(exchange=exchange or first, steps=steps)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """See `Strategy.no_sync`."""
        if self.ddp is None or not self.is_trained(model):
            return super().no_sync(model)
        return self.lightning.block_backward_sync()


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
