"""Functions that use private names of Lightning, each with a test. Others are in `fast_path.py`."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from .fast_path import evaluation_loop, no_op
from .lightning_import import CombinedLoader, Trainer, TrainerFn, _given_hyperparameters, registry

if TYPE_CHECKING:
    from .ddp import ModelDDPStrategy

LOGGED_STEPS = "_batches_that_stepped"
"""Key of the loggers' last step in Lightning checkpoints."""


_ANNOUNCING = ("lightning.pytorch", "lightning.fabric")
_CALLBACKS = "lightning.pytorch.callbacks"


@contextlib.contextmanager
def packages_searched_once() -> Iterator[None]:
    """Search installed packages for Lightning callbacks only once, instead of for each Trainer.

    A search takes milliseconds. The callback of this package, with which plain Trainers report to a
    sweep, is omitted.
    """
    searching: Any = registry
    search = searching.entry_points
    searching.entry_points = lambda *, group: _entry_points(group)
    try:
        yield
    finally:
        searching.entry_points = search


@functools.cache
def _entry_points(group: str) -> list[EntryPoint]:
    return [entry for entry in entry_points(group=group) if entry.name != "lightrainer"]


def keep_signal_handlers(trainer: Trainer) -> None:
    """Keep the script's signal handlers.

    Lightning would convert a SIGTERM to a normal exit, and check all ranks for one at every step (a
    broadcast and a host synchronisation).
    """
    connector: Any = trainer._signal_connector
    epoch_loop: Any = trainer.fit_loop.epoch_loop
    connector.register_signal_handlers = no_op
    epoch_loop._broadcast_sigterm_tensor = no_op


def start_at(trainer: Trainer, *, epoch: int, window: int, global_step: int) -> None:
    """Set the progress of the fit loop to a position, from which counters and epochs continue.

    Args:
        trainer: a trainer that has not run yet.
        epoch: number of complete epochs.
        window: number of complete batches of the current epoch.
        global_step: number of optimizer steps taken.
    """
    fit_loop = trainer.fit_loop
    epoch_loop = fit_loop.epoch_loop
    set_progress(fit_loop.epoch_progress.total, epoch)
    set_progress(fit_loop.epoch_progress.current, epoch)
    set_progress(epoch_loop.batch_progress.total, global_step)
    set_progress(epoch_loop.batch_progress.current, window)
    steps = epoch_loop.manual_optimization.optim_step_progress.total
    steps.ready = global_step
    steps.completed = global_step
    epoch_loop._batches_that_stepped = global_step

    # Lightning resets the counters of the epoch unless it restarts.
    epoch_loop._restarting = window > 0


def is_made_by_cli() -> bool:
    """Return whether `LightningCLI` is creating a module, with hyperparameters as plain values."""
    return _given_hyperparameters.get() is not None


def use_distributed_samplers(trainer: Trainer, active: bool) -> None:
    """Enable or disable Lightning's distributed samplers.

    Args:
        trainer: a trainer that has not requested its data yet.
        active: as `Trainer(use_distributed_sampler=)`.
    """
    trainer._accelerator_connector.use_distributed_sampler = active


def uses_distributed_samplers(trainer: Trainer) -> bool:
    """Return the current value of `Trainer(use_distributed_sampler=)`."""
    return trainer._accelerator_connector.use_distributed_sampler


def combined(loader: object, *, training: bool) -> CombinedLoader:
    """Wrap loaders in Lightning's `CombinedLoader`, without torch's FutureWarning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        if training:
            return CombinedLoader(loader, "max_size_cycle")
        return UnsizedLoader(loader, "sequential")


class UnsizedLoader(CombinedLoader):
    """Loaders of an evaluation, with an infinite length if it is unknown.

    Without a length, Lightning prefetches a batch, which takes memory and draws random numbers
    before those of the step. `StopIteration` ends the evaluation loop as well.
    """

    def __len__(self) -> int:
        try:
            return super().__len__()
        except TypeError:
            return sys.maxsize


def evaluate_inside_fit(trainer: Trainer, loader: object) -> None:
    """Run Lightning's evaluation loop over `loader` during `fit`.

    The state of the fit loop is restored afterwards. Validation hooks of Lightning callbacks are
    called, and batches are passed to the module's `validation_step`.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    connector = trainer._logger_connector
    usual_loop = epoch_loop.val_loop
    usual_limit = trainer.limit_val_batches
    first_iteration = connector._first_loop_iter

    loop = evaluation_loop(trainer, TrainerFn.FITTING)
    loop._data_source.instance = combined(loader, training=False)
    epoch_loop.val_loop = loop
    # The limit may be 0 to keep Lightning from evaluating itself.
    trainer.limit_val_batches = 1.0
    trainer.validating = True
    try:
        loop.run()
    except BaseException:
        # Restore the mode of each module, because `train()` of the model may be overridden.
        loop._on_evaluation_model_train()
        raise
    finally:
        loop.teardown()
        trainer.training = True
        epoch_loop.val_loop = usual_loop
        trainer.limit_val_batches = usual_limit
        connector._first_loop_iter = first_iteration


def log_of_loader(module: Any, index: int, numbers: Mapping[str, Any], **options: Any) -> None:
    """Log values for a single loader when an evaluation ends.

    Lightning would add them to the results of all loaders.

    Args:
        module: the module, during `on_validation_epoch_end` or `on_test_epoch_end`.
        index: the index of the loader.
        numbers: the values by name.
        options: the options of `log_dict`.
    """
    trainer: Trainer = module.trainer
    loops: dict[Any, Any] = {
        TrainerFn.VALIDATING: trainer.validate_loop,
        TrainerFn.TESTING: trainer.test_loop,
    }
    loop = loops.get(trainer.state.fn, trainer.fit_loop.epoch_loop.val_loop)
    results: Any = trainer._results
    of_loaders = loop._logged_outputs
    # There are fewer results than loaders if a loader has no batches.
    if len(of_loaders) == 1 or len(of_loaders) != loop.num_dataloaders:
        module.log_dict(numbers, **options)
        return

    # Lightning only reads the values that were logged for the current index.
    results.dataloader_idx = index
    module.log_dict(numbers, **options)
    of_loaders[index].update(trainer._logger_connector.update_eval_epoch_metrics())
    results.dataloader_idx = None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Pass a KeyboardInterrupt on to the script.

    Lightning would exit and ignore SIGINT from then on.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as exit_:
        interrupt = exit_.__context__
        by_lightning = exit_.code == 1 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        if not (by_lightning and isinstance(interrupt, KeyboardInterrupt)):
            raise
        signal.signal(signal.SIGINT, handler)
        raise interrupt from None


@contextlib.contextmanager
def quiet(active: bool = True) -> Iterator[None]:
    """Silence Lightning's own messages (devices found, limits reached).

    Messages of its callbacks are still logged.

    Args:
        active: False disables this.
    """
    levels: dict[logging.Logger, int] = {}
    for name in _ANNOUNCING:
        logger = logging.getLogger(name)
        if active and logger.getEffectiveLevel() < logging.WARNING:
            levels[logger] = logging.WARNING

    # The callbacks' logger would inherit the raised level, so set its present level explicitly.
    if levels:
        callbacks = logging.getLogger(_CALLBACKS)
        levels[callbacks] = callbacks.getEffectiveLevel()

    levels_before = {logger: logger.level for logger in levels}
    for logger, level in levels.items():
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, level in levels_before.items():
            logger.setLevel(level)


@contextlib.contextmanager
def optimizers_in_place(strategy: Any) -> Iterator[None]:
    """Keep optimizer states on their device at the end of a run.

    Lightning would move them to the CPU.

    Args:
        strategy: the strategy of a Trainer whose module stays on the device too, so that a script
            can continue with both.
    """
    tear_down = strategy.teardown

    def tear_down_without_optimizers() -> None:
        optimizers = strategy.optimizers
        strategy.optimizers = []
        try:
            tear_down()
        finally:
            strategy.optimizers = optimizers

    strategy.teardown = tear_down_without_optimizers
    try:
        yield
    finally:
        # Restore the method of the class.
        del strategy.teardown


def release(trainer: Trainer) -> None:
    """Release the objects of a trainer after its run.

    The trainer is in a reference cycle, which would keep module, optimizers and data alive.
    """
    if trainer.lightning_module is not None:
        trainer.lightning_module.trainer = None
    trainer.strategy.model = None
    trainer.strategy.optimizers = []
    trainer.strategy.lr_scheduler_configs = []
    vars(trainer).clear()


def start_no_processes(strategy: ModelDDPStrategy) -> ModelDDPStrategy:
    """Keep a `DDPStrategy` from starting processes.

    The processes are running already, and its launcher would raise in notebooks.

    Args:
        strategy: a strategy that is not attached to a Trainer yet.
    """
    strategy._configure_launcher = no_op
    return strategy


def configure_activation_checkpointing(strategy: Any) -> None:
    """Configure DeepSpeed's activation checkpointing from its section of the configuration.

    Args:
        strategy: a `DeepSpeedStrategy`.
    """
    strategy._set_deepspeed_activation_checkpointing()


def set_progress(tracker: Any, count: int) -> None:
    """Set all counters of a loop, so that nothing is in progress."""
    tracker.ready = count
    tracker.started = count
    tracker.processed = count
    tracker.completed = count
