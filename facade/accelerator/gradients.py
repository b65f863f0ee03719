"""Backward pass, gradient accumulation, synchronisation and clipping of the accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...lightning_modules.internals.precision import HALF, LossScaler
from ...lightning_modules.optim import steps_in_backward
from ...lightning_modules.training.micro_batch_loss import MicroBatchLoss
from ..distributed.process import forwarded
from ..strategies.ddp import OWN_LOOP
from ..strategies.plan import PRECISIONS
from ..strategies.strategy import Strategy
from .collectives import Collectives
from .prepared import PreparedOptimizer


class Gradients(Collectives):
    """The members of `accelerate.Accelerator` around the backward pass, in a run of Lightning or a custom loop."""

    step = 0
    sync_gradients: bool = forwarded(
        "gradient_state.sync_gradients", "Whether the optimizer steps after this micro-batch.", writable=True
    )
    gradient_accumulation_steps: int = forwarded(
        "gradient_state.num_steps", "The micro-batches in an accumulation window.", writable=True
    )
    sync_each_batch: bool = forwarded("gradient_state.sync_each_batch", "See `GradientState.sync_each_batch`.")
    _backward: Callable[..., None] | None = None
    _optimizer: Callable[[], Any] = staticmethod(lambda: None)
    strategy: Strategy = OWN_LOOP
    """Strategy of the current run, or of the last one."""
    _optimizers: list[PreparedOptimizer]
    _scaler: LossScaler | None = None
    _unscaled_run = False  # in a run whose precision needs no scaler
    _windows = 0  # depth of nested `accumulate` blocks
    micro_batch: MicroBatchLoss | None = None
    """Weighs the loss of the micro-batch that the Trainer trains now; None outside of `Trainer.training_step`."""

    @property
    def in_run(self) -> bool:
        """Return whether Lightning runs, and handles accumulation, precision and strategy."""
        return self._backward is not None or self.strategy.runs

    @property
    def scaler(self) -> LossScaler | None:
        """Return the loss scaler of fp16, on the CPU too; None in other precisions."""
        if self._unscaled_run or self.mixed_precision != "fp16" or self.strategy.scales_losses:
            return None
        if self._scaler is None:
            self._scaler = LossScaler(self.device.type)
        return self._scaler

    def renew_scaler(self) -> LossScaler | None:
        """Replace the scaler, keeping the scale, to drop the state of an interrupted step."""
        last = self.scaler
        if last is not None:
            self._scaler = LossScaler(self.device.type)
            self._scaler.load_state_dict(last.state_dict())
        return self.scaler

    @property
    def native_amp(self) -> bool:
        """Return whether forward passes are cast."""
        return self.mixed_precision != "no"

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Return whether fp16 skipped the last optimizer step; False for fused optimizers, which skip it themselves."""
        if not self.in_run and self._optimizers:
            return any(optimizer.step_was_skipped for optimizer in self._optimizers)
        skipped, scaler = self.strategy.step_was_skipped, self.scaler
        return skipped if skipped is not None else scaler is not None and scaler.step_was_skipped

    def autocast(self, autocast_handler: Any = None) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast context of the model's forward passes, for other code.

        Args:
            autocast_handler: object like `accelerate.utils.AutocastKwargs`, with `enabled` and `cache_enabled`.
        """
        dtype = HALF.get(PRECISIONS[self.mixed_precision])
        if dtype is None:
            return contextlib.nullcontext()
        names = () if autocast_handler is None else ("enabled", "cache_enabled")
        return torch.autocast(
            self.device.type, dtype=dtype, **{name: getattr(autocast_handler, name) for name in names}
        )

    def backward(self, loss: torch.Tensor, learning_rate: float | None = None, **kwargs: Any) -> None:
        """Run the backward pass of one micro-batch through strategy and precision plugin.

        In an `accumulate` block of a custom loop the loss is divided by the length of the window. In a training a mean
        over the micro-batch is divided so that the losses of the step add up to the mean over all of it.

        Args:
            loss: of the micro-batch.
            learning_rate: for optimizers that step in the backward pass, such as LOMO.
            kwargs: for `torch.Tensor.backward`.
        """
        if self._windows and not self.in_run:
            loss = loss / self.gradient_accumulation_steps
        elif self.micro_batch is not None:
            self.micro_batch.is_weighed_by_trainer = True
            loss = self.micro_batch.weigh(loss)
        optimizer: Any = None if learning_rate is None else self._stepping_in_backward()
        if optimizer is not None:
            kwargs["learning_rate"] = learning_rate
        if self._backward is not None:
            self._backward(loss, **kwargs)
        elif optimizer is not None:
            optimizer.fused_backward(loss, learning_rate)
        else:  # a custom loop, whose prepared optimizers unscale
            scaler = self.scaler if not self._unscaled_run and self._optimizers else None
            (loss if scaler is None else scaler.scale(loss)).backward(**kwargs)

    def lomo_backward(self, loss: torch.Tensor, learning_rate: float) -> None:
        """Run the backward pass of LOMO, which also steps.

        Raises:
            ValueError: no learning rate, or no such optimizer.
        """
        if learning_rate is None or self._stepping_in_backward() is None:
            raise ValueError("lomo_backward needs a learning_rate, and an optimizer such as that of optim='lomo'.")
        self.backward(loss, learning_rate=learning_rate)

    @property
    def has_lomo_optimizer(self) -> bool:
        """Return whether the optimizer steps in the backward pass."""
        return self._stepping_in_backward() is not None

    def _stepping_in_backward(self) -> Any:
        known = [self._optimizer(), *(one.optimizer for one in self._optimizers)]
        return next((one for one in known if steps_in_backward(one)), None)

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Accumulate gradients in a custom loop: synchronise and step at the end of a window.

        Without effect in a training, where the Trainer counts.

        Args:
            models: models whose gradients stay local until the end of the window.
        """
        if self.in_run:
            yield
            return
        self._count_micro_batch()
        sync = self.sync_gradients or (self.use_distributed and self.sync_each_batch)
        with contextlib.ExitStack() as stack:
            for model in () if sync else models:
                stack.enter_context(self.no_sync(model))
            self._windows += 1
            try:
                yield
            finally:
                self._windows -= 1

    def _count_micro_batch(self) -> None:
        state = self.gradient_state
        if state.sync_with_dataloader and state.end_of_dataloader:
            self.step = 0
            self.sync_gradients = True
        else:
            self.step += 1
            self.sync_gradients = self.step % state.num_steps == 0

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Skip gradient synchronisation of a model in the backward passes of the block."""
        return self.strategy.no_sync(model)

    @contextlib.contextmanager
    def trigger_sync_in_backward(self, model: nn.Module) -> Iterator[None]:
        """Synchronise gradients in the next backward pass, although the forward passes ran in `no_sync`.

        Args:
            model: a DistributedDataParallel, or the model of the run inside one; others are unaffected.
        """
        wrapper = self.strategy.to_call(model)
        if not isinstance(wrapper, nn.parallel.DistributedDataParallel):
            yield
            return
        names = ("require_backward_grad_sync", "require_forward_param_sync")
        before = {name: getattr(wrapper, name) for name in names}
        for name in names:
            setattr(wrapper, name, True)
        wrapper.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(wrapper, name, value)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divide gradients by the loss scale of fp16; idempotent within a step, no effect in other precisions.

        Args:
            optimizer: one optimizer or several; by default that of the run, or all prepared ones.
        """
        scaler = self.scaler
        if scaler is None:
            return
        own = self._optimizer() if self._optimizer() is not None or not self._optimizers else self._optimizers
        given = own if optimizer is None else optimizer
        for one in given if isinstance(given, (list, tuple)) else [given]:
            inner = one.optimizer if isinstance(one, PreparedOptimizer) else one
            if inner is not None and getattr(scaler, "_scale", True) is not None:  # None: nothing has been scaled yet
                scaler.unscale_(inner)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Unscale gradients and clip them to `max_norm`; returns the norm before clipping.

        With sharded gradients this is a collective, and the norm is global. DeepSpeed clips within its step, to
        `max_grad_norm` of the arguments; then this returns the norm of the last step.
        """
        if not self._unscaled_run:
            self.unscale_gradients()
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        return self.strategy.clip(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Unscale gradients and clamp their values to `clip_value`, also sharded ones.

        Raises:
            NotImplementedError: DeepSpeed holds the gradients.
        """
        self.unscale_gradients()
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        self.strategy.clip_values(parameters, clip_value)
