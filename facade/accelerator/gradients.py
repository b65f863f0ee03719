"""From a loss to gradients: scaled, accumulated, exchanged or not, clipped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...lightning_modules.common.dtensor import own_part
from ...lightning_modules.internals.precision import HALF, LossScaler
from ...lightning_modules.optim import steps_in_backward
from ..strategies.base import OWN_LOOP
from ..strategies.plan import PRECISIONS
from ..strategies.strategy import Strategy
from .collectives import Collectives
from .prepared import PreparedOptimizer
from .processes import DistributedType


class Gradients(Collectives):
    """The members of `accelerate.Accelerator` around the backward pass, of a run of Lightning or of an own loop."""

    step = 0
    _backward: Callable[..., None] | None = None
    _optimizer: Callable[[], Any] = staticmethod(lambda: None)
    strategy: Strategy = OWN_LOOP
    """That of the run, or of the last one."""
    _scaler: LossScaler | None = None
    _unscaled_run = False  # whether a run goes on whose precision is known to need no scaler
    _windows = 0  # how many blocks of `accumulate` this is in

    @property
    def in_run(self) -> bool:
        """Whether Lightning runs, so that windows, precision and strategy are its concern."""
        return self._backward is not None or self.strategy.runs

    @property
    def _optimizers(self) -> list[PreparedOptimizer]:
        """Those that `prepare` made."""
        raise NotImplementedError("`Preparing` has them; this class only uses them.")

    @property
    def sync_gradients(self) -> bool:
        """Whether gradients are exchanged, and the optimizer steps, after this micro-batch."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        self.gradient_state.sync_gradients = sync_gradients

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches in a window."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self.gradient_state.plugin_kwargs["num_steps"] = steps

    @property
    def sync_each_batch(self) -> bool:
        """See `GradientState.sync_each_batch`."""
        return self.gradient_state.sync_each_batch

    @property
    def scaler(self) -> LossScaler | None:
        """Scales losses under fp16, on the CPU too; None in other precisions."""
        if (
            self._unscaled_run or self.mixed_precision != "fp16" or self.distributed_type == DistributedType.DEEPSPEED
        ):  # that has its own
            return None
        if self._scaler is None:
            self._scaler = LossScaler(self.device.type)
        return self._scaler

    def renew_scaler(self) -> LossScaler | None:
        """A scaler with the scale of the last training, but without what an interrupted step left in it."""
        last = self.scaler
        if last is not None:
            self._scaler = LossScaler(self.device.type)
            self._scaler.load_state_dict(last.state_dict())
        return self.scaler

    @property
    def native_amp(self) -> bool:
        """Whether forward passes are cast."""
        return self.mixed_precision != "no"

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether fp16 left out the last optimizer step; never for optimizers that skip it themselves (fused ones)."""
        if not self.in_run and self._optimizers:
            return any(optimizer.step_was_skipped for optimizer in self._optimizers)
        skipped = self.strategy.step_was_skipped
        if skipped is not None:
            return skipped
        scaler = self.scaler
        return scaler is not None and scaler.step_was_skipped

    def autocast(self, autocast_handler: Any = None) -> contextlib.AbstractContextManager[Any]:
        """What forward passes of the model run in, for other code, in a training or not.

        Args:
            autocast_handler: has `enabled` and `cache_enabled`, as `accelerate.utils.AutocastKwargs`.
        """
        dtype = HALF.get(PRECISIONS[self.mixed_precision])
        if dtype is None:
            return contextlib.nullcontext()
        names = () if autocast_handler is None else ("enabled", "cache_enabled")
        return torch.autocast(
            self.device.type, dtype=dtype, **{name: getattr(autocast_handler, name) for name in names}
        )

    def backward(self, loss: torch.Tensor, learning_rate: float | None = None, **kwargs: Any) -> None:
        """Backward pass of one micro-batch, the way that strategy and precision want it.

        In a block of `accumulate` of an own loop the loss is divided by the length of the window; in a training the
        Trainer has done so, where it is to be.

        Args:
            loss: of the micro-batch.
            learning_rate: for an optimizer that steps in the backward pass, such as LOMO; others do not need it.
            kwargs: for `torch.Tensor.backward`.
        """
        if self._windows and not self.in_run:
            loss = loss / self.gradient_accumulation_steps
        optimizer: Any = None if learning_rate is None else self._stepping_in_backward()
        if optimizer is not None:
            kwargs["learning_rate"] = learning_rate
        if self._backward is not None:
            self._backward(loss, **kwargs)
        elif optimizer is not None:
            optimizer.fused_backward(loss, learning_rate)
        else:  # an own loop, whose prepared optimizers take the scale of fp16 out again
            scaler = self.scaler if self._optimizers else None
            (loss if scaler is None else scaler.scale(loss)).backward(**kwargs)

    def lomo_backward(self, loss: torch.Tensor, learning_rate: float) -> None:
        """Backward pass that steps, as LOMO wants it.

        Raises:
            ValueError: there is no learning rate, or no such optimizer.
        """
        if learning_rate is None or self._stepping_in_backward() is None:
            raise ValueError(
                "lomo_backward needs a learning_rate, and an optimizer that steps in the backward pass: that of a run "
                "with optim='lomo' or 'adalomo', or one that accelerator.prepare was given."
            )
        self.backward(loss, learning_rate=learning_rate)

    @property
    def has_lomo_optimizer(self) -> bool:
        """Whether the optimizer steps in the backward pass."""
        return self._stepping_in_backward() is not None

    def _stepping_in_backward(self) -> Any:
        known = [self._optimizer(), *(one.optimizer for one in self._optimizers)]
        return next((one for one in known if steps_in_backward(one)), None)

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """A micro-batch of an own loop: gradients are exchanged, and prepared optimizers step, at the end of a window.

        In a training the Trainer counts, and this changes nothing.

        Args:
            models: whose gradients stay in their process until then.
        """
        if self.in_run:
            yield
            return
        self._count_micro_batch()
        exchange = self.sync_gradients or (self.use_distributed and self.sync_each_batch)
        with contextlib.ExitStack() as stack:
            for model in () if exchange else models:
                stack.enter_context(self.no_sync(model))
            self._windows += 1
            stack.callback(self._leave_window)
            yield

    def _leave_window(self) -> None:
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
        """Keep the gradients of a model in this process during the backward passes of the block."""
        return self.strategy.no_sync(model)

    @contextlib.contextmanager
    def trigger_sync_in_backward(self, model: nn.Module) -> Iterator[None]:
        """Exchange gradients in the next backward pass, although the forward passes were in `no_sync`.

        Args:
            model: of DistributedDataParallel, or that of the run under it; others are left as they are.
        """
        wrapper: Any = self.strategy.ddp if self.strategy.is_trained(model) else model
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
        """Take the loss scale of fp16 out of the gradients; twice in one step is fine, and other precisions too.

        Args:
            optimizer: one optimizer or several, by default that of the run, or all prepared ones.
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
        """Scale gradients down to `max_norm`, without the loss scale of fp16; returns the norm that they had.

        Where gradients are spread over processes it is that of all of them, and all have to call it. DeepSpeed clips in
        its step, to `max_grad_norm` of the arguments, and all there is to know before is the norm of the last one.
        """
        if self.strategy.clips_in_step:
            return torch.as_tensor(self.strategy.norm_of_last_step())
        self.unscale_gradients()
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        return self.strategy.clip(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Cut each gradient off at `clip_value`, without the loss scale of fp16; where they are sharded, too.

        Raises:
            NotImplementedError: under DeepSpeed, which keeps the gradients to itself.
        """
        if self.distributed_type == DistributedType.DEEPSPEED:
            raise NotImplementedError(
                "clip_grad_value_ cannot be had with DeepSpeed, which has the gradients. Set max_grad_norm instead."
            )
        self.unscale_gradients()
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            if parameter.grad is not None:
                own_part(parameter.grad).clamp_(-clip_value, clip_value)
