"""Every use of Lightning's private names, in one file; each is held by a test of its own."""

from __future__ import annotations

import contextlib
import logging
import signal
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from ._lightning import (
    CombinedLoader,
    LightningModule,
    MixedPrecision,
    Precision,
    RunningStage,
    Trainer,
    TrainerFn,
    _EvaluationLoop,
    _given_hyperparameters,
)
from .precision import HALF, LossScaler

LOGGED_STEPS = "_batches_that_stepped"
"""Under this name a checkpoint of Lightning holds the step that its loggers have come to."""


_ANNOUNCING, _CALLBACKS = ("lightning.pytorch", "lightning.fabric"), "lightning.pytorch.callbacks"


def leave_signals_alone(trainer: Trainer) -> None:
    """Keep signals as the script has them.

    Lightning would turn a SIGTERM into a normal exit, and ask all processes for one at every step (a broadcast and a
    host synchronisation).
    """
    trainer._signal_connector.register_signal_handlers = _nothing  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _nothing  # type: ignore[method-assign]


def step_lightly(trainer: Trainer) -> None:
    """Leave out of each step what is of no use to a `DrivenModule`.

    Lightning inspects the signature of `training_step` at every step; here it is known. And it prepares for values
    that hooks log through `LightningModule.log`, which only callbacks would do here. Evaluations are made lighter too.
    """
    validating, testing = TrainerFn.VALIDATING, TrainerFn.TESTING
    trainer.validate_loop = LeanEvaluationLoop(trainer, validating, RunningStage.VALIDATING, inference_mode=False)
    trainer.test_loop = LeanEvaluationLoop(trainer, testing, RunningStage.TESTING, inference_mode=False)
    trainer.fit_loop._warn_if_modules_in_eval_mode = _nothing  # type: ignore[method-assign]  # steps see to the mode
    trainer.fit_loop.epoch_loop._build_kwargs = _step_arguments  # type: ignore[method-assign]
    if not trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
        connector = trainer._logger_connector
        connector.on_batch_start = connector.on_batch_end = _nothing  # type: ignore[method-assign]
        connector.update_train_step_metrics = connector.update_eval_step_metrics = _nothing  # type: ignore[method-assign]


def nobody_listens(trainer: Trainer) -> bool:
    """Whether backward pass and step are just that: one process, a precision of this package, no Lightning callback."""
    callbacks, precision = trainer.callbacks, trainer.precision_plugin  # type: ignore[attr-defined]
    return not callbacks and isinstance(precision, (LeanPrecision, ForwardPrecision)) and trainer.world_size == 1


def stepper(trainer: Trainer, optimizer: Any) -> Callable[[], Any]:
    """What takes an optimizer step and counts it as Lightning's `global_step`.

    Args:
        trainer: the running trainer.
        optimizer: the `LightningOptimizer` of its module.
    """
    if not nobody_listens(trainer):
        return optimizer.step
    inner = optimizer.optimizer
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress

    def step() -> None:
        progress.increment_ready()
        if scaler is None:
            inner.step()
        else:
            scaler.step(inner)
            scaler.update()
        progress.increment_completed()

    return step


def start_at(trainer: Trainer, *, epoch: int, window: int, global_step: int) -> None:
    """Set the progress of the fit loop to a position, so that counters and epochs go on from there.

    Args:
        trainer: a trainer that has not run yet.
        epoch: epochs that are complete.
        window: batches of the current epoch that are complete.
        global_step: optimizer steps taken.
    """
    fit_loop, epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    _set_progress(fit_loop.epoch_progress.total, epoch)
    _set_progress(fit_loop.epoch_progress.current, epoch)
    _set_progress(epoch_loop.batch_progress.total, global_step)
    _set_progress(epoch_loop.batch_progress.current, window)
    steps = epoch_loop.manual_optimization.optim_step_progress.total
    steps.ready = steps.completed = global_step
    epoch_loop._batches_that_stepped = global_step
    epoch_loop._restarting = window > 0


def made_by_cli() -> bool:
    """Whether `LightningCLI` is making a module at the moment: it has hyperparameters to be noted, in plain values."""
    return _given_hyperparameters.get() is not None


def deal_out_samples(trainer: Trainer, active: bool) -> None:
    """Whether Lightning puts samplers of its own into loaders where there are several processes.

    Args:
        trainer: its data has not been asked for yet.
        active: as `Trainer(use_distributed_sampler=)`.
    """
    trainer._accelerator_connector.use_distributed_sampler = active


def deals_out_samples(trainer: Trainer) -> bool:
    """As `Trainer(use_distributed_sampler=)` was."""
    return trainer._accelerator_connector.use_distributed_sampler


def combined(loader: Any, *, training: bool) -> CombinedLoader:
    """The one loader in the collection that Lightning would make of it, which warns of torch's future."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        return CombinedLoader(loader, "max_size_cycle" if training else "sequential")


def begin_reading_anew(trainer: Trainer) -> None:
    """Begin the iteration of the train loaders once more: Lightning did before it called a hook, and may have read."""
    fetcher = trainer.fit_loop._data_fetcher
    if fetcher is not None:
        iter(fetcher)


def evaluate_inside_fit(trainer: Trainer, loader: Any) -> None:
    """Run Lightning's evaluation loop over `loader` in the middle of `fit`, and leave the fit loop as it was.

    Lightning callbacks see the validation hooks; the module's `validation_step` gets the batches.
    """
    epoch_loop, connector = trainer.fit_loop.epoch_loop, trainer._logger_connector
    usual_loop, usual_limit, first_iteration = (
        epoch_loop.val_loop,
        trainer.limit_val_batches,
        connector._first_loop_iter,
    )
    loop = LeanEvaluationLoop(trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False)
    loop._data_source.instance = combined(loader, training=False)
    epoch_loop.val_loop = loop
    trainer.limit_val_batches = 1.0
    trainer.validating = True
    try:
        loop.run()
    except BaseException:
        loop._module_mode.restore(trainer.lightning_module)
        raise
    finally:
        loop.teardown()
        trainer.training = True
        epoch_loop.val_loop = usual_loop
        trainer.limit_val_batches = usual_limit
        connector._first_loop_iter = first_iteration


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let a KeyboardInterrupt reach the script: Lightning would exit, and ignore SIGINT from then on."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as exit_:
        interrupt = exit_.__context__
        if not isinstance(interrupt, KeyboardInterrupt) or _raised_in(exit_) != "_call_and_handle_interrupt":
            raise
        signal.signal(signal.SIGINT, handler)
        raise interrupt from None


@contextlib.contextmanager
def quiet(active: bool = True) -> Iterator[None]:
    """Keep Lightning's own announcements (devices found, limits reached) out of the script's output.

    What its callbacks say, such as a summary of the model, was asked for, and is heard.
    """
    loggers = [logging.getLogger(name) for name in (*_ANNOUNCING, _CALLBACKS)] if active else []
    levels = [logger.level for logger in loggers]
    heard = [logger.getEffectiveLevel() for logger in loggers]
    for logger, level in zip(loggers, heard, strict=True):
        logger.setLevel(level if logger.name == _CALLBACKS else max(logger.level, logging.WARNING))
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def release(trainer: Trainer) -> None:
    """Drop the trainer's references to module and data, so that repeated runs do not pile up."""
    module = trainer.strategy._lightning_module
    if module is not None:
        module._trainer = None
    trainer.strategy._lightning_module = None
    trainer.strategy.model = None
    trainer._data_connector._datahook_selector = None
    evaluation_loops = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop)
    for loop in (trainer.fit_loop, *evaluation_loops, trainer.predict_loop):
        loop._combined_loader = None
        loop._data_source.instance = None


class LeanModule(LightningModule):
    """A LightningModule without the work that Lightning does around each step for hooks that nobody uses.

    Batches stay where they are, so `on_before_batch_transfer`, `transfer_batch_to_device` and
    `on_after_batch_transfer` are not called.
    """

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch

    def _apply_batch_transfer_handler(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        return batch

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets this name some twenty times a step; nn.Module's registration checks are for other things.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


class LeanEvaluationLoop(_EvaluationLoop):
    """Lightning's evaluation loop, which does for each batch only what somebody notices.

    With a Lightning callback, another precision or several processes it is Lightning's in every respect.
    """

    module_step: Callable[[Any, int], Any] | None = None

    def _evaluation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Iterator[Any] | None
    ) -> None:
        if batch_idx == 0:
            self.look_who_is_there()
        if self.module_step is None:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        progress = self.batch_progress
        progress.increment_ready()
        progress.increment_started()
        self.module_step(batch, batch_idx)
        progress.increment_processed()
        progress.increment_completed()
        self._has_run = True
        self._seen_batches_per_dataloader[dataloader_idx] += 1

    def look_who_is_there(self) -> None:
        """Find out, once a run, whether the step of the module is all that there is to do."""
        trainer, module = self.trainer, self.trainer.lightning_module
        alone = nobody_listens(trainer) and isinstance(module, LeanModule)
        self.module_step = (module.test_step if trainer.testing else module.validation_step) if alone else None

    def teardown(self) -> None:
        """End a run."""
        super().teardown()
        self.module_step = None


class LeanPrecision(Precision):
    """Lightning's float32 precision, which calls the hooks around backward and step only for callbacks that are there.

    For modules under manual optimization that define none of these hooks themselves.
    """

    def pre_backward(self, tensor: Any, module: LightningModule) -> Any:  # type: ignore[override]
        """`on_before_backward`, if a callback listens."""
        return super().pre_backward(tensor, module) if module.trainer.callbacks else tensor  # type: ignore[attr-defined]

    def post_backward(self, tensor: Any, module: LightningModule) -> Any:  # type: ignore[override]
        """`on_after_backward`, if a callback listens."""
        return super().post_backward(tensor, module) if module.trainer.callbacks else tensor  # type: ignore[attr-defined]

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:
        """`on_before_optimizer_step`, if a callback listens, and the step."""
        if model.trainer.callbacks:
            return super().optimizer_step(optimizer, model, closure, **kwargs)
        return optimizer.step(**kwargs)


class ForwardPrecision(MixedPrecision):
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

    def autocast_context_manager(self) -> torch.autocast:
        """As `accelerate` casts."""
        return torch.autocast(self.device, dtype=HALF[self.precision])

    def train_step_context(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Nothing: the forward passes in the step are cast, see `precision.casting`."""
        return contextlib.nullcontext()

    val_step_context = test_step_context = predict_step_context = train_step_context  # type: ignore[assignment]


def start_no_processes(strategy: Any) -> Any:
    """Keep a `DDPStrategy` from having a launcher: there is nothing to launch, and notebooks are refused for its sake.

    Args:
        strategy: one that has not met its Trainer.
    """
    strategy._configure_launcher = _nothing
    return strategy


def configure_activation_checkpointing(strategy: Any) -> None:
    """Let DeepSpeed's function for checkpointing activations know the section of its configuration, if there is one.

    Args:
        strategy: a `DeepSpeedStrategy`.
    """
    strategy._set_deepspeed_activation_checkpointing()


def _raised_in(exception: BaseException) -> str:
    """Name of the function that raised it: a script may call `sys.exit` on a KeyboardInterrupt of its own accord."""
    traceback = exception.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else traceback.tb_frame.f_code.co_name


def _set_progress(tracker: Any, count: int) -> None:
    tracker.ready = tracker.started = tracker.processed = tracker.completed = count


def _step_arguments(kwargs: OrderedDict[str, Any], batch: Any, batch_idx: int) -> OrderedDict[str, Any]:
    kwargs["batch"], kwargs["batch_idx"] = batch, batch_idx
    return kwargs


def _nothing(*_: Any, **__: Any) -> None:
    """Takes the place of a hook that is switched off."""
