"""Fast paths through Lightning's training and evaluation loops."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..common.stop_iteration import stop_iteration_guard
from .ddp import ModelDDPStrategy
from .lightning_import import (
    LightningModule,
    ManualResult,
    MixedPrecision,
    PassThroughProfiler,
    Precision,
    RunningStage,
    SingleDeviceStrategy,
    Trainer,
    TrainerFn,
    _EvaluationLoop,
    call,
    callbacks_of,
)
from .precision import ForwardCasting

if TYPE_CHECKING:
    import torch


def use_fast_loops(trainer: Trainer) -> None:
    """Use `run_epoch` and `EvaluationLoop` for training and evaluation of a `FastModule`."""
    fit_loop: Any = trainer.fit_loop
    trainer.validate_loop = evaluation_loop(trainer, TrainerFn.VALIDATING)
    trainer.test_loop = evaluation_loop(trainer, TrainerFn.TESTING)
    # Each step sets the mode, so this warning does not apply.
    fit_loop._warn_if_modules_in_eval_mode = no_op
    fit_loop.epoch_loop.run = partial(run_epoch, trainer)


def evaluation_loop(trainer: Trainer, function: TrainerFn) -> EvaluationLoop:
    """Return a loop that validates, tests, or evaluates silently during training."""
    stage = RunningStage.TESTING if function is TrainerFn.TESTING else RunningStage.VALIDATING
    return EvaluationLoop(
        trainer, function, stage, verbose=function is not TrainerFn.FITTING, inference_mode=False
    )


def run_epoch(trainer: Any, data_fetcher: Any) -> None:
    """Run the batches of an epoch, for a module with manual optimization.

    Updates the same counters as Lightning's loop, and calls the same hooks of module and callbacks.
    Work that such a module does itself is skipped: batches are not moved, the step does not run in
    a context of strategy or precision, and validation and schedules do not run between batches. The
    epoch ends when `on_train_batch_start` returns -1, or with the data, which must be a single
    loader with a length. Lightning calls this function within the `HookGuard`.
    """
    module = trainer.lightning_module
    loop = trainer.fit_loop.epoch_loop
    progress = loop.batch_progress
    results = trainer._logger_connector
    has_callbacks = bool(callbacks_of(trainer))

    loop.reset()
    loop.on_run_start(data_fetcher)
    # Reset the counter of optimizer steps, and finish a restart.
    loop.manual_optimization.on_run_start()
    loop.on_iteration_done()
    if has_callbacks and trainer.should_stop and loop.done:
        return

    # Iterate over the loader directly, because Lightning's fetcher adds overhead to each batch.
    loader = trainer.train_dataloader
    last = len(loader) - 1
    for batch in loader:
        # Begin.
        index = progress.current.ready
        progress.increment_ready()
        progress.is_last_batch = index >= last
        if has_callbacks:
            results.on_batch_start(batch)
            call_callback_hooks(trainer, "on_train_batch_start", batch, index)
        if module.on_train_batch_start(batch, index) == -1:
            progress.increment_by(0, is_last_batch=True)
            progress.increment_processed()
            return
        progress.increment_started()

        # Step.
        output = module.training_step(batch, index)
        progress.increment_processed()

        # End.
        if has_callbacks:
            outputs = ManualResult.from_training_step_output(output).asdict()
            call_callback_hooks(trainer, "on_train_batch_end", outputs, batch, index)
        module.on_train_batch_end(output, batch, index)
        if has_callbacks:
            results.on_batch_end()
        progress.increment_completed()

        # Publish values that callbacks have logged.
        if has_callbacks:
            results.update_train_step_metrics()
        loop._batches_that_stepped += 1
        if trainer.should_stop:
            for logger in trainer.loggers:
                logger.save()

            # Only callbacks stop a loop in the middle. The module itself ends its loader instead,
            # which has to be read to that end, because its last read draws random numbers.
            if has_callbacks and loop.done:
                return


def call_callback_hooks(trainer: Trainer, hook: str, *arguments: object) -> None:
    """Call a hook of all Lightning callbacks, with logging enabled.

    Args:
        trainer: a running trainer.
        hook: name of the hook.
        arguments: arguments of the hook after trainer and module.
    """
    call._call_callback_hooks(trainer, hook, *arguments)


def has_plain_steps(trainer: Trainer) -> bool:
    """Return whether strategy and precision leave backward pass and step to plain torch."""
    is_plain_strategy = type(trainer.strategy) in (ModelDDPStrategy, SingleDeviceStrategy)
    is_plain_precision = type(trainer.precision_plugin) in (Precision, ForwardPrecision)
    return is_plain_strategy and is_plain_precision


def optimizer_of(trainer: Trainer) -> Any:
    """Return the optimizer for the steps of a module.

    This is Lightning's optimizer, or a `PlainOptimizer` if it is equivalent.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None and has_plain_steps(trainer):
        return PlainOptimizer(trainer)
    return trainer.lightning_module.optimizers()


class PlainOptimizer:
    """Step torch's optimizer as a `LightningOptimizer` does.

    Use it with strategies and precisions that do not change the step. No closure is passed, because
    some optimizers take another step with one.

    Args:
        trainer: a trainer during training.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.optimizer = trainer.optimizers[0]
        self.progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        self.arguments = _required_arguments(self.optimizer)
        self.has_callbacks = bool(callbacks_of(trainer))

    def step(self) -> None:
        """Call the hook `on_before_optimizer_step` of callbacks, take a step, and count it."""
        self.progress.increment_ready()
        if self.has_callbacks:
            call_callback_hooks(self.trainer, "on_before_optimizer_step", self.optimizer)
        self.optimizer.step(*self.arguments)
        self.progress.increment_completed()


def _required_arguments(optimizer: torch.optim.Optimizer) -> tuple[None, ...]:
    """Return arguments for `step`: None for a closure that older classes require."""
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = 0
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.kind in positional:
            count += 1
    return (None,) * count


class FastModule(LightningModule):
    """LightningModule that only registers `model` as a submodule. Other attributes are plain."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets attributes in each step, and `nn.Module.__setattr__` is slow.
        if name == "model":
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)


class EvaluationLoop(_EvaluationLoop):
    """Lightning's evaluation loop for a `FastModule` and one loader. Batches are not moved."""

    def _evaluation_step(
        self,
        batch: object,
        batch_idx: int,
        dataloader_idx: int,
        dataloader_iter: Iterator[object] | None,
    ) -> None:
        trainer: Any = self.trainer
        results = trainer._logger_connector
        has_callbacks = bool(callbacks_of(trainer))
        stage = "test" if trainer.testing else "validation"

        # Begin.
        self.batch_progress.increment_ready()
        if has_callbacks:
            results.on_batch_start(batch)
            call_callback_hooks(trainer, f"on_{stage}_batch_start", batch, batch_idx)
        self.batch_progress.increment_started()

        # Step.
        output = call._call_strategy_hook(trainer, f"{stage}_step", batch, batch_idx)
        self.batch_progress.increment_processed()

        # End.
        if has_callbacks:
            call_callback_hooks(trainer, f"on_{stage}_batch_end", output, batch, batch_idx)
            results.on_batch_end()
        self.batch_progress.increment_completed()
        self._has_run = True
        if has_callbacks:
            results.update_eval_step_metrics(self._seen_batches_per_dataloader[dataloader_idx])
        self._seen_batches_per_dataloader[dataloader_idx] += 1


class ForwardPrecision(ForwardCasting, MixedPrecision):
    """Mixed precision in the model's forward passes only, by `precision.casting`.

    As in `accelerate`, and unlike in Lightning's `MixedPrecision`, a loss outside of the model is
    computed in float32, and a weight that the model uses twice is cast once. Results depend on
    both. "16-mixed" is float16 on the CPU too, where `lightning.Trainer(precision="16-mixed")` uses
    bfloat16.

    Args:
        precision: `16-mixed` or `bf16-mixed`.
        device: type of the device, such as `cuda`.
        scaler: a `LossScaler` for float16, with which gradients may be unscaled before the step.
    """


class HookGuard(PassThroughProfiler):
    """Lightning profiler that converts a `StopIteration` raised in a profiled block to an error.

    It does not measure anything. Lightning profiles each hook of modules, callbacks and strategies,
    and each epoch, but not fetching a batch, whose `StopIteration` ends the loop.
    """

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override] - Lightning only enters it
        """Return the context of a hook."""
        return stop_iteration_guard


def no_op(*_: object, **__: object) -> None:
    """Replacement of a disabled hook."""
