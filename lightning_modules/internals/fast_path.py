"""Fast paths through Lightning's training and evaluation loops, for modules without Lightning callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..common.stop_iteration import stop_iteration_surfaces
from .ddp import ModelDDPStrategy
from .lightning_import import (
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
from .precision import ForwardCasting


def step_lightly(trainer: Trainer) -> None:
    """Replace the loops of a trainer by faster ones, for a `FastModule`."""
    fit_loop: Any = trainer.fit_loop
    trainer.validate_loop = evaluation_loop(trainer, TrainerFn.VALIDATING)
    trainer.test_loop = evaluation_loop(trainer, TrainerFn.TESTING)
    fit_loop.epoch_loop.val_loop = evaluation_loop(trainer, TrainerFn.FITTING)
    fit_loop._warn_if_modules_in_eval_mode = no_op  # each step sets the mode
    if has_plain_steps(trainer):
        fit_loop.epoch_loop.run = partial(_run_epoch, trainer)


def evaluation_loop(trainer: Trainer, function: TrainerFn) -> FastEvaluationLoop:
    """Return a loop that validates or tests, or that evaluates in the middle of a training, silently."""
    stage = RunningStage.TESTING if function is TrainerFn.TESTING else RunningStage.VALIDATING
    return FastEvaluationLoop(trainer, function, stage, verbose=function is not TrainerFn.FITTING, inference_mode=False)


def _run_epoch(trainer: Any, data_fetcher: Any) -> None:
    """Run Lightning's loop over an epoch, for a module with manual optimization and a trainer without callbacks.

    A module ends the epoch before a batch by returning -1 from `on_train_batch_start`, or by ending its data.
    Lightning calls this in a block of the `HookGuard`.
    """
    module, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop
    progress, step = loop.batch_progress, module.training_step
    loop.reset()
    loop.on_run_start(data_fetcher)
    loop.manual_optimization.on_run_start()  # counts the steps of optimizers
    loop.on_iteration_done()  # ends a restart
    for batch, _, _ in iter(data_fetcher.__next__, None):  # `iter(data_fetcher)` would begin anew
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


def has_plain_steps(trainer: Trainer) -> bool:
    """Return whether backward pass and step are torch's: our precision, no Lightning callback, and no sharding."""
    is_plain_strategy = type(trainer.strategy) in (ModelDDPStrategy, SingleDeviceStrategy)
    is_plain_precision = type(trainer.precision_plugin) in (Precision, ForwardPrecision)
    return is_plain_strategy and is_plain_precision and not callbacks_of(trainer)


def optimizer_of(trainer: Trainer) -> Any:
    """Return the optimizer for the steps of a module: torch's own where Lightning adds nothing but its count of steps.

    The count is for callbacks and loggers, which there are none of then.
    """
    if has_plain_steps(trainer) and getattr(trainer.precision_plugin, "scaler", None) is None:
        return trainer.optimizers[0]  # `LightningModule.optimizers` unpacks those of torch's class only
    return trainer.lightning_module.optimizers()


class FastModule(LightningModule):
    """LightningModule without Lightning's work around each step for hooks that are not in use.

    Batches stay where they are. Only `model` is registered as a part of it; other attributes are plain.
    """

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Return the batch as it is."""
        return batch

    def __setattr__(self, name: str, value: Any) -> None:
        # Some names are set in each step, and `nn.Module` looks for parameters in each value.
        if name == "model":
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)


class FastEvaluationLoop(_EvaluationLoop):
    """Lightning's evaluation loop, reduced for each batch to the step of the module and the counters.

    With a Lightning callback, another precision or a sharded model it is Lightning's.
    """

    module_step: Callable[[Any, int], Any] | None = None

    def _evaluation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Iterator[Any] | None
    ) -> None:
        if batch_idx == 0:
            self.choose_step()
        if self.module_step is None:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        counts: Any = (self.batch_progress.total, self.batch_progress.current)
        for count in counts:
            count.ready += 1
            count.started += 1
        with stop_iteration_surfaces:
            self.module_step(batch, batch_idx)
        for count in counts:
            count.processed += 1
            count.completed += 1
        self._has_run = True
        self._seen_batches_per_dataloader[dataloader_idx] += 1

    def choose_step(self) -> None:
        """Choose once a run between the step of the module and Lightning's."""
        trainer, module = self.trainer, self.trainer.lightning_module
        alone = has_plain_steps(trainer) and isinstance(module, FastModule)
        self.module_step = (module.test_step if trainer.testing else module.validation_step) if alone else None

    def teardown(self) -> None:
        """End a run."""
        super().teardown()
        self.module_step = None


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


class HookGuard(PassThroughProfiler):
    """Lightning profiler that measures nothing; a `StopIteration` that leaves a profiled block becomes an error.

    Lightning runs each hook of modules, callbacks and strategies, and each epoch, in such a block, but not the fetching
    of a batch, whose `StopIteration` ends the loop.
    """

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override] - all it needs to be
        """Return the context of a hook."""
        return stop_iteration_surfaces


def no_op(*_: Any, **__: Any) -> None:
    """Replace a hook that is switched off."""
