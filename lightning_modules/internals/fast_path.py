"""What Lightning does around each step and batch, without what nobody notices: loops, precisions, a profiler."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from .lightning_import import (
    DDPStrategy,
    LightningModule,
    MixedPrecision,
    PassThroughProfiler,
    Precision,
    RunningStage,
    SingleDeviceStrategy,
    Trainer,
    TrainerFn,
    _EvaluationLoop,
    callbacks_of,
)
from .precision import ForwardCasting, LossScaler

UNMEASURED = contextlib.nullcontext()


def step_lightly(trainer: Trainer) -> None:
    """Leave out of each step what is of no use to a `FastModule`.

    Lightning inspects the signature of `training_step` at every step; here it is known. It asks whether an evaluation
    is due, as none ever is by its own count. And it prepares for values that hooks log through `LightningModule.log`,
    which only callbacks would do here. Evaluations are made lighter too.
    """
    fit_loop: Any = trainer.fit_loop
    epoch_loop, connector = fit_loop.epoch_loop, fit_loop.trainer._logger_connector
    fit_loop.trainer.profiler = SilentProfiler()
    trainer.validate_loop = evaluation_loop(trainer, TrainerFn.VALIDATING)
    trainer.test_loop = evaluation_loop(trainer, TrainerFn.TESTING)
    epoch_loop.val_loop = evaluation_loop(trainer, TrainerFn.FITTING)
    fit_loop._warn_if_modules_in_eval_mode = nothing  # steps see to the mode
    epoch_loop._should_check_val_fx = _never
    epoch_loop._build_kwargs = _step_arguments
    if steps_by_itself(trainer):
        epoch_loop.run = partial(_run_epoch, trainer)
    if not callbacks_of(trainer):
        connector.on_batch_start = connector.on_batch_end = nothing
        connector.update_train_step_metrics = connector.update_eval_step_metrics = nothing


def evaluation_loop(trainer: Trainer, function: TrainerFn) -> FastEvaluationLoop:
    """Return a loop that validates or tests, or that evaluates in the middle of a training, silently."""
    stage = RunningStage.TESTING if function is TrainerFn.TESTING else RunningStage.VALIDATING
    return FastEvaluationLoop(trainer, function, stage, verbose=function is not TrainerFn.FITTING, inference_mode=False)


def _run_epoch(trainer: Any, data_fetcher: Any) -> None:
    """Run Lightning's loop over an epoch, for a module that optimizes by hand and hooks without listeners.

    A module ends the epoch before a batch by returning -1 from `on_train_batch_start`.
    """
    module, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop
    progress, step = loop.batch_progress, trainer.strategy.training_step
    if type(trainer.strategy) is SingleDeviceStrategy:
        step = module.training_step
    loop.reset()
    loop.on_run_start(data_fetcher)
    loop.manual_optimization.on_run_start()  # counts the steps of optimizers
    while not loop.done:
        loop.on_iteration_done()  # it is not restarting any more
        try:
            batch, _, _ = next(data_fetcher)
        except StopIteration:
            return
        index = progress.current.ready
        progress.is_last_batch = data_fetcher.done
        progress.increment_ready()
        if module.on_train_batch_start(batch, index) == -1:
            progress.increment_by(0, is_last_batch=True)
            progress.increment_processed()
            return
        progress.increment_started()
        step(batch, index)
        progress.increment_processed()
        module.on_train_batch_end(None, batch, index)
        progress.increment_completed()
        loop._batches_that_stepped += 1


def nobody_listens(trainer: Trainer) -> bool:
    """Tell whether backward and step are just that: one process, a precision of this package, no Lightning callback."""
    return _does_no_more(trainer) and trainer.world_size == 1


def steps_by_itself(trainer: Trainer) -> bool:
    """Tell whether an optimizer's step is just that; in DDP too, which has averaged the gradients, if no models are."""
    strategy = trainer.strategy
    if type(strategy) is DDPStrategy:  # others are made of it, and do more
        return _does_no_more(trainer) and strategy._model_averager is None
    return type(strategy) is SingleDeviceStrategy and nobody_listens(trainer)


def _does_no_more(trainer: Trainer) -> bool:
    precision = trainer.precision_plugin
    return not callbacks_of(trainer) and isinstance(precision, (FastPrecision, ForwardPrecision))


class FastModule(LightningModule):
    """A LightningModule without the work that Lightning does around each step for hooks that nobody uses.

    Batches stay where they are, so `on_before_batch_transfer`, `transfer_batch_to_device` and
    `on_after_batch_transfer` are not called. Only `model` is registered as a part of it; other attributes are plain.
    """

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch

    def _apply_batch_transfer_handler(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        return batch

    def __setattr__(self, name: str, value: Any) -> None:
        # At every step some names are set, by Lightning too, and `nn.Module` would look for parameters in each value.
        if name == "model":
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)


class FastEvaluationLoop(_EvaluationLoop):
    """Lightning's evaluation loop, which does for each batch only what somebody notices.

    With a Lightning callback, another precision or several processes it is Lightning's in every respect.
    """

    module_step: Callable[[Any, int], Any] | None = None

    @property
    def restarting(self) -> bool:
        """As in Lightning."""
        return self._restarting

    @restarting.setter
    def restarting(self, restarting: bool) -> None:
        # Lightning sets this at every step of a training, and looks for loops in this one: it has none.
        self._restarting = restarting

    def _evaluation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Iterator[Any] | None
    ) -> None:
        if batch_idx == 0:
            self.look_who_is_there()
        if self.module_step is None:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        counts: Any = (self.batch_progress.total, self.batch_progress.current)
        for count in counts:
            count.ready += 1
            count.started += 1
        self.module_step(batch, batch_idx)
        for count in counts:
            count.processed += 1
            count.completed += 1
        self._has_run = True
        self._seen_batches_per_dataloader[dataloader_idx] += 1

    def look_who_is_there(self) -> None:
        """Find out, once a run, whether the step of the module is all that there is to do."""
        trainer, module = self.trainer, self.trainer.lightning_module
        alone = nobody_listens(trainer) and isinstance(module, FastModule)
        self.module_step = (module.test_step if trainer.testing else module.validation_step) if alone else None

    def _on_before_fetch(self) -> None:
        trainer: Any = self.trainer
        if type(trainer.profiler) is not SilentProfiler:
            super()._on_before_fetch()

    def _on_after_fetch(self) -> None:
        trainer: Any = self.trainer
        if type(trainer.profiler) is not SilentProfiler:
            super()._on_after_fetch()

    def teardown(self) -> None:
        """End a run."""
        super().teardown()
        self.module_step = None


class SilentProfiler(PassThroughProfiler):
    """As Lightning's own that measures nothing, but its blocks cost nothing either: there are some ten in a step."""

    def profile(self, action_name: str) -> Any:
        """Nothing is done around the block."""
        return UNMEASURED


class FastPrecision(Precision):
    """Lightning's float32 precision, which calls the hooks around backward and step only for callbacks that are there.

    For modules under manual optimization that define none of these hooks themselves.
    """

    def pre_backward(self, tensor: Any, module: LightningModule) -> Any:
        """`on_before_backward`, if a callback listens."""
        return super().pre_backward(tensor, module) if callbacks_of(module.trainer) else tensor

    def post_backward(self, tensor: Any, module: LightningModule) -> Any:
        """`on_after_backward`, if a callback listens."""
        return super().post_backward(tensor, module) if callbacks_of(module.trainer) else tensor

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:
        """`on_before_optimizer_step`, if a callback listens, and the step."""
        if model.trainer.callbacks:
            return super().optimizer_step(optimizer, model, closure, **kwargs)
        return optimizer.step(**kwargs)


class ForwardPrecision(ForwardCasting, MixedPrecision):
    """As Lightning's `MixedPrecision`, but steps are not cast as a whole: `precision.casting` casts forward passes.

    So a loss that is computed outside of the model is computed in float32, and a weight that the model uses twice is
    cast once, as `accelerate` has it; the numbers depend on both. "16-mixed" is float16 on the CPU too, where
    `lightning.Trainer(precision="16-mixed")` takes bfloat16.

    Args:
        precision: `16-mixed` or `bf16-mixed`.
        device: type of the device, such as `cuda`.
        scaler: scales losses, for float16 only; a `LossScaler`, so that gradients may be unscaled before the step.
    """

    def __init__(self, precision: Literal["16-mixed", "bf16-mixed"], device: str, scaler: LossScaler | None) -> None:
        super().__init__(precision, device, scaler)


def _step_arguments(kwargs: OrderedDict[str, Any], batch: Any, batch_idx: int) -> OrderedDict[str, Any]:
    kwargs["batch"], kwargs["batch_idx"] = batch, batch_idx
    return kwargs


def _never(*_: Any) -> bool:
    """Takes the place of a question."""
    return False


def nothing(*_: Any, **__: Any) -> None:
    """Takes the place of a hook that is switched off."""
