"""Strategies without sharding: a single device, and DDP."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...lightning_modules.distributed.gradient_averages import average_used_gradients
from .strategy import PROCESS_GROUP_OPTIONS, Strategy, process_group

if TYPE_CHECKING:
    from typing import Self

    from torch.utils.hooks import RemovableHandle

    from ...lightning_modules.internals.ddp import ModelDDPStrategy
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)


class SingleDevice(Strategy):
    """A single process on one device, with Lightning's default strategy."""

    synchronizes_gradients = False

    @classmethod
    def of(cls, args: TrainingArguments) -> Self:
        """Return the strategy for the device of the arguments."""
        return cls("SingleDeviceStrategy", {"device": str(args.device)})


STRATEGY_OUTSIDE_OF_RUNS = SingleDevice("", {})
"""Strategy of custom training loops before the first run."""


class DDP(Strategy):
    """Distributed data parallel. As in the reference, evaluation uses the model without the
    wrapper.
    """

    _records_graph = False
    """True until the first backward pass with `static_graph`. DDP records the graph in that pass,
    which must synchronise gradients.
    """
    _frozen_parameters: Sequence[nn.Parameter] = ()
    """Parameters that were frozen when DDP was created, whose gradients it does not synchronise."""
    _forward_hook: RemovableHandle | None = None
    _has_called_wrapper = False
    """Whether the current micro-batch has called DDP, which prepares it to synchronise gradients.

    A loss may call the model inside of it instead.
    """
    _warns_of_bypass = True

    @classmethod
    def of(cls, args: TrainingArguments, find_unused_parameters: bool) -> Self:
        """Return the strategy for the `ddp_*` arguments, with a default for
        `find_unused_parameters`.
        """
        if args.ddp_find_unused_parameters is not None:
            find_unused_parameters = args.ddp_find_unused_parameters
        options = {
            "find_unused_parameters": find_unused_parameters,
            "bucket_cap_mb": args.ddp_bucket_cap_mb,
            "broadcast_buffers": args.ddp_broadcast_buffers,
            "static_graph": args.ddp_static_graph,
        }
        if args.auto_find_batch_size:
            # A rank may run out of memory before it communicates. `OutOfMemoryConsensus` broadcasts
            # buffers instead.
            options |= {"broadcast_buffers": False, "static_graph": None}
        options = {name: value for name, value in options.items() if value is not None}
        return cls("DDPStrategy", options | process_group(args))

    def build(self) -> ModelDDPStrategy:
        """Build a `DDPStrategy` that wraps the model instead of the LightningModule."""
        from ...lightning_modules.internals.ddp import ModelDDPStrategy
        from ...lightning_modules.internals.lightning_internals import start_no_processes

        strategy = ModelDDPStrategy(self._wrap_trained, **self.options)
        # Lightning must not start processes in a process forked by a notebook. Elsewhere its
        # launcher does not start any, but sets the number of threads.
        if hasattr(sys, "ps1"):
            return start_no_processes(strategy)
        return strategy

    def wrap(self, model: nn.Module, device: torch.device) -> DistributedDataParallel:
        """See `Strategy.wrap`: in a `DistributedDataParallel`."""
        device_ids = None
        if device.type != "cpu":
            device_ids = [device.index]
        options = {
            name: value for name, value in self.options.items() if name not in PROCESS_GROUP_OPTIONS
        }
        return DistributedDataParallel(model, device_ids=device_ids, **options)

    def _wrap_trained(self, device: torch.device) -> None:
        """Wrap the Trainer's model, unless it already is wrapped."""
        model = self.forward_model
        self._records_graph = bool(self.options.get("static_graph"))
        self._frozen_parameters = [
            parameter for parameter in model.parameters() if not parameter.requires_grad
        ]
        if not isinstance(model, DistributedDataParallel):
            model = self.wrap(model, device)
            self.require_trainer().model_wrapped = model
        self._forward_hook = model.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, wrapper: nn.Module, inputs: object) -> None:
        # In a `no_sync` block of the script the gradients are kept apart on purpose.
        if torch.is_grad_enabled():
            self._has_called_wrapper = True

    def average_unsynchronised(self) -> None:
        """See `Strategy.average_unsynchronised`."""
        parameters: Iterable[nn.Parameter] = self._frozen_parameters
        if not self._has_called_wrapper:
            parameters = self.require_trainer().model.parameters()
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if not trained:
            return

        if not self._has_called_wrapper and any(weight.grad is not None for weight in trained):
            self._warn_of_bypass()
        average_used_gradients(trained)

    def _warn_of_bypass(self) -> None:
        if self._warns_of_bypass and self.require_trainer().args.should_log:
            logger.warning(
                "The loss calls the model without its DDP wrapper, such as `self.model` instead of "
                "the `model` that is passed. Gradients are averaged after the backward pass "
                "instead of during it, which is slower."
            )
        self._warns_of_bypass = False

    def end_run(self) -> None:
        """See `Strategy.end_run`. Removes DDP's wrapper, which holds a copy of all gradients."""
        super().end_run()
        self._frozen_parameters = ()
        if self._forward_hook is not None:
            self._forward_hook.remove()
        trainer = self.require_trainer()
        if trainer.model_wrapped is not trainer.model:
            trainer.model_wrapped = _unwrapped(trainer.model_wrapped)

    @property
    def evaluation_model(self) -> nn.Module:
        """See `Strategy.evaluation_model`: without gradients there is nothing to exchange."""
        return _unwrapped(self.forward_model)

    def micro_batch(
        self, *, synchronize: bool, is_last: bool
    ) -> contextlib.AbstractContextManager[object]:
        """See `Strategy.micro_batch`."""
        synchronize = synchronize or self._records_graph
        self._records_graph = False
        self._has_called_wrapper = False
        return super().micro_batch(synchronize=synchronize, is_last=is_last)


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of DDP's wrapper. Other models are returned unchanged."""
    if isinstance(model, DistributedDataParallel):
        return model.module
    return model
