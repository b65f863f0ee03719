"""One process, and several that hold the whole model each."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .strategy import GROUP, Strategy, process_group

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..arguments import TrainingArguments


class SingleDevice(Strategy):
    """One process on one device, with Lightning's default strategy."""

    exchanges = False

    @classmethod
    def of(cls, args: TrainingArguments) -> Self:
        """Return the strategy for the device of the arguments."""
        return cls("SingleDeviceStrategy", {"device": str(args.device)})


OWN_LOOP = SingleDevice("", {})
"""The strategy of own training loops before there was a run."""


class DDP(Strategy):
    """The model is called inside of a wrapper around the LightningModule, which averages gradients."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__(name, options)
        self._records_graph = bool(options.get("static_graph"))  # in the first pass, as it exchanges

    @classmethod
    def of(cls, args: TrainingArguments, find_unused_parameters: bool) -> Self:
        """Return the strategy for the `ddp_*` arguments; `find_unused_parameters` where they leave it open."""
        given = args.ddp_find_unused_parameters
        options = {
            "find_unused_parameters": find_unused_parameters if given is None else given,
            "bucket_cap_mb": args.ddp_bucket_cap_mb,
            "broadcast_buffers": args.ddp_broadcast_buffers,
            "static_graph": args.ddp_static_graph,
        }
        options = {name: value for name, value in options.items() if value is not None}
        return cls("DDPStrategy", {**options, **process_group(args)})

    def build(self) -> Any:
        """Make a `DDPStrategy`."""
        from lightning.pytorch.strategies import DDPStrategy

        from ...lightning_modules.internals.lightning_internals import start_no_processes

        strategy = DDPStrategy(**self.options)
        # In the fork of a notebook; elsewhere the launcher, which starts nothing either, shares out the cores.
        return start_no_processes(strategy) if hasattr(sys, "ps1") else strategy

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """See `Strategy.wrap`: in a `DistributedDataParallel` of its own."""
        options = {name: value for name, value in self.options.items() if name not in GROUP}
        return DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index], **options)

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """See `Strategy.ddp`."""
        wrapper = getattr(self.lightning, "model", None)
        return wrapper if isinstance(wrapper, DistributedDataParallel) else None

    def begin_step(self) -> None:
        """Have buffers come from the first process: Lightning's manual optimization turns that off."""
        wrapper = self.ddp
        if wrapper is not None:
            vars(wrapper)["require_forward_param_sync"] = True  # `nn.Module` takes long to set it

    def micro_batch(self, *, exchange: bool, steps: bool) -> contextlib.AbstractContextManager[Any]:
        """See `Strategy.micro_batch`."""
        first, self._records_graph = self._records_graph, False
        return super().micro_batch(exchange=exchange or first, steps=steps)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """See `Strategy.no_sync`."""
        if self.ddp is None or not self.is_trained(model):
            return super().no_sync(model)
        return self.lightning.block_backward_sync()
