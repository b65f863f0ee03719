"""Read the position of a training in Lightning's loops from checkpoints, and set it to resume."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .lightning_import import CombinedLoader, Trainer
from .lightning_internals import LOGGED_STEPS, combined, set_progress

PROCESS_STATES = "lightrainer_processes"
"""Key of a checkpoint for the state of each rank: packed {"rng": generators, "data": position or
None}.
"""

POSITIONS = "lightrainer_positions"
"""Key of a checkpoint for the packed position of each rank in its loaders and in a step."""

METRICS = "lightrainer_metrics"
"""Key of a checkpoint for the last logged metrics of each rank. A plateau schedule may need them
before the next ones are logged.
"""

IN_WINDOWS = "lightrainer_windows"
"""Key of a checkpoint, True if its loops count windows of micro-batches, as in the facade.
"""

_VALIDATION_PROGRESS = "epoch_loop.val_loop.batch_progress"
"""Lightning's key for the counters of the validation in the state of the fit loop."""

_FINDER_FILES = (".lr_find_", ".scale_batch_size_")
"""How the names of files begin that `LearningRateFinder` and `BatchSizeFinder` write and restore.
"""


class LoopPosition(NamedTuple):
    """Position of a training, independent of the hook in which its checkpoint was written.

    A batch counts when its step has been taken, an epoch when its end has been reached.

    Attributes:
        epoch: number of complete epochs.
        done: number of complete batches of the current epoch.
        at_end: whether all batches of the epoch are complete, but its end hooks have not run.
        unfinished: whether Lightning's work after the last batch, such as a validation, is missing.
        validated: whether the position is `unfinished`, but the validation is complete.
        owes_schedules: whether plateau schedules have not been stepped for the last complete epoch.
    """

    epoch: int
    done: int
    at_end: bool = False
    unfinished: bool = False
    validated: bool = False
    owes_schedules: bool = False


def loop_position_of(fit_loop: Mapping[str, Any]) -> LoopPosition:
    """Read the position from the counters of the fit loop in a checkpoint."""
    epochs = fit_loop["epoch_progress"]["current"]
    epoch = epochs["processed"]
    is_last = fit_loop["epoch_loop.batch_progress"]["is_last_batch"]
    batches = fit_loop["epoch_loop.batch_progress"]["current"]
    done = batches["processed"]

    # Between two epochs, the batch counters are still those of the last epoch.
    if epochs["started"] <= epoch:
        was_cut_short = done > 0 and not is_last and epochs["ready"] <= epoch
        if was_cut_short:
            return LoopPosition(epoch - 1, done)
        owes_schedules = is_last and epochs["completed"] < epoch
        return LoopPosition(epoch, 0, owes_schedules=owes_schedules)

    # A batch that was in progress is repeated.
    if done == 0 or batches["ready"] > done:
        return LoopPosition(epoch, done)

    validated = batches["completed"] == done and _has_ended(fit_loop.get(_VALIDATION_PROGRESS))
    return LoopPosition(epoch, done, at_end=is_last, unfinished=True, validated=validated)


def is_inside_validation(fit_loop: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was written during a validation."""
    loop_position = loop_position_of(fit_loop)
    validation = fit_loop.get(_VALIDATION_PROGRESS)
    if validation is None or not loop_position.unfinished or loop_position.validated:
        return False
    has_begun = validation["current"]["ready"] > 0
    return has_begun and not _has_ended(validation)


def has_ended_validation(trainer: Trainer) -> bool:
    """Return whether the last validation during training is complete."""
    progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
    return _has_ended(progress.state_dict())


def current_loop_position(trainer: Trainer) -> LoopPosition:
    """Return the position of a trainer during or before `fit`."""
    fit_loop = trainer.fit_loop
    epoch_loop = fit_loop.epoch_loop
    counters: dict[str, Any] = {
        "epoch_progress": fit_loop.epoch_progress,
        "epoch_loop.batch_progress": epoch_loop.batch_progress,
        _VALIDATION_PROGRESS: epoch_loop.val_loop.batch_progress,
    }
    states = {name: progress.state_dict() for name, progress in counters.items()}
    return loop_position_of(states)


def normalize_counters(fit_loop: dict[str, Any], loop_position: LoopPosition) -> None:
    """Rewrite the counters of a checkpoint so that Lightning uses them unchanged.

    From differences between counters, Lightning infers the hook in which they were written, and may
    then skip a validation, the end of an epoch, or a whole epoch. `resume_inside_epoch` does the
    missing work.

    Args:
        fit_loop: the state of the fit loop in a checkpoint.
        loop_position: its position, from `loop_position_of`.
    """
    is_inside_epoch = loop_position.done > 0
    fit_loop["epoch_progress"] = _both(
        _counted(loop_position.epoch + is_inside_epoch, loop_position.epoch)
    )

    # No batch is in progress.
    batches = fit_loop["epoch_loop.batch_progress"]["total"]["processed"]
    fit_loop["epoch_loop.batch_progress"] = {
        "total": _counted(batches, batches),
        "current": _counted(loop_position.done, loop_position.done),
        "is_last_batch": loop_position.at_end,
    }

    # Repeat an interrupted validation from its first batch.
    validation = fit_loop.get(_VALIDATION_PROGRESS)
    if validation is not None:
        ready = validation["total"]["ready"]
        fit_loop[_VALIDATION_PROGRESS] = {
            "total": _counted(ready, ready),
            "current": _counted(0, 0),
            "is_last_batch": False,
        }


def is_restored_by_finder(trainer: Trainer) -> bool:
    """Return whether the checkpoint that was loaded last is the temporary file of a finder."""
    path = trainer.ckpt_path
    return path is not None and Path(path).name.startswith(_FINDER_FILES)


def load_again(trainer: Trainer, path: str | Path) -> None:
    """Load a checkpoint again, after a finder has restored its own.

    Otherwise Lightning would train from the first step with the weights of the checkpoint.

    Args:
        trainer: at the hook `on_fit_start`.
        path: the `ckpt_path` of `fit`.
    """
    trainer._checkpoint_connector._restore_modules_and_callbacks(path)


def pop_loader_states(checkpoint: dict[str, Any]) -> list[dict[str, object]]:
    """Remove the states of training loaders from a checkpoint, and return them.

    This is needed before a checkpoint is written, because states of an `EpochLoader` may contain
    arrays, which Lightning does not load. It is also needed after loading, because Lightning would
    restore them at the wrong time, at the end of an epoch, or not at all if a schedule that needs
    the length of the training caused the loaders to be created earlier.
    """
    return checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", [])


def train_loaders(trainer: Trainer) -> list[Any]:
    """Return the training loaders, including those in a dict, a list or a `CombinedLoader`."""
    loaders = trainer.fit_loop._combined_loader
    if loaders is None:
        return []
    return list(loaders.flattened)


def loaders_given_to_fit(trainer: Trainer) -> list[object]:
    """Return the training loaders that were passed to `fit`; empty if a method creates them."""
    source: Any = trainer.fit_loop._data_source
    if source.is_module():
        return []
    loaders = source.instance
    if not isinstance(loaders, CombinedLoader):
        loaders = combined(loaders, training=True)
    return list(loaders.flattened)


def create_validation_loaders(trainer: Trainer) -> None:
    """Create the validation loaders, as Lightning does if the first epoch has a validation."""
    if trainer.enable_validation and trainer.val_dataloaders is None:
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.setup_data()
        trainer.training = True


def exhausted_loaders(trainer: Trainer) -> list[bool]:
    """Return for each training loader whether Lightning has restarted it in this epoch because
    other loaders have more batches.

    The list is empty if Lightning does not restart loaders.
    """
    return list(_exhausted_flags(trainer))


def set_exhausted_loaders(trainer: Trainer, exhausted: list[bool]) -> None:
    """Restore the result of `exhausted_loaders` after the iteration has begun."""
    marks = _exhausted_flags(trainer)
    for index, was_exhausted in enumerate(exhausted[: len(marks)]):
        marks[index] = marks[index] or was_exhausted


def _exhausted_flags(trainer: Trainer) -> list[bool]:
    """Return the list in which Lightning's iterator marks exhausted loaders, or []."""
    for part in vars(trainer.fit_loop._combined_loader).values():
        if hasattr(part, "_consumed"):
            return part._consumed
    return []


def set_batches_done(trainer: Trainer, done: int) -> None:
    """Set the number of complete batches of the current epoch, after the batch size changed."""
    set_progress(trainer.fit_loop.epoch_loop.batch_progress.current, done)


def step_plateau_schedules(trainer: Trainer) -> None:
    """Step plateau schedules for the last complete epoch.

    Lightning steps them after the hook in which `ModelCheckpoint` saves by default.
    """
    progress = trainer.fit_loop.epoch_progress.current
    completed = progress.completed
    progress.completed = completed - 1
    trainer.fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    progress.completed = completed


def place_from_state(state: Mapping[str, Any], *, accumulation: int = 1) -> tuple[int, int]:
    """Compute the complete epochs and the batches of the current one from `trainer_state.json`
    alone.

    An epoch of `n` batches has `ceil(n / accumulation)` steps, so the steps per epoch follow from
    the completed steps and epochs. For a stream, the epoch is a fraction of `max_steps`.

    Args:
        state: the contents of `trainer_state.json`.
        accumulation: number of batches per optimizer step.
    """
    steps = int(state["global_step"])
    epochs = float(state.get("epoch") or 0.0)
    if steps == 0 or epochs == 0:
        return 0, 0

    epoch = int(epochs)
    share_of_epoch = epochs - epoch
    # `epoch` is rounded, so the quotient may be slightly above an integer.
    steps_of_epoch = math.ceil(steps / epochs - 1e-6)
    done = steps - epoch * steps_of_epoch

    # The last step of an epoch may have as few as one batch, so the fraction of a sized dataset is
    # between these two.
    fewest_batches = (steps_of_epoch - 1) * accumulation + 1
    smallest_share = done / steps_of_epoch
    largest_share = done * accumulation / fewest_batches
    is_of_sized_data = smallest_share - 1e-6 <= share_of_epoch <= largest_share + 1e-6
    if not is_of_sized_data:
        done = round(share_of_epoch * int(state.get("max_steps") or 0))
    return epoch, done * accumulation


def loops_at(*, epoch: int, done: int, steps: int, batches: int) -> dict[str, Any]:
    """Return the entry `loops` of a Lightning checkpoint, for automatic and manual optimization.

    Within an epoch, it equals the entry that a callback saves at the end of a batch. At the start
    of an epoch, it equals that of a run that ended with the previous epoch.

    Args:
        epoch: epochs that are complete.
        done: batches of the next epoch that are complete.
        steps: optimizer steps taken.
        batches: batches seen in all.
    """
    is_inside_epoch = done > 0

    # A callback saves at the end of a batch, before the batch counts as completed and logged.
    open_batches = int(is_inside_epoch)

    taken = {"ready": steps, "completed": steps}
    cleared = {**taken, "started": steps}
    optim_progress = {"step": _both(taken), "zero_grad": _both(cleared)}
    fit_loop = {
        "state_dict": {},
        "epoch_progress": _both(_counted(epoch + is_inside_epoch, epoch)),
        "epoch_loop.state_dict": {LOGGED_STEPS: steps - open_batches},
        "epoch_loop.batch_progress": {
            "total": _counted(batches, batches, batches - open_batches),
            "current": _counted(done, done, done - open_batches),
            "is_last_batch": False,
        },
        "epoch_loop.scheduler_progress": _both(taken),
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": optim_progress},
        "epoch_loop.manual_optimization.optim_step_progress": _both(taken),
    }
    return {
        "fit_loop": fit_loop,
        "validate_loop": {},
        "test_loop": {},
        "predict_loop": {},
    }


def _counted(begun: int, processed: int, completed: int | None = None) -> dict[str, int]:
    """Return the counters of a loop. By default, everything processed is completed."""
    if completed is None:
        completed = processed
    return {"ready": begun, "started": begun, "processed": processed, "completed": completed}


def _has_ended(batches: Mapping[str, Any] | None) -> bool:
    """Return whether the counters of a loop show that its last batch is complete."""
    if batches is None or not batches["is_last_batch"]:
        return False
    counts = batches["current"]
    return counts["completed"] == counts["processed"] == counts["ready"]


def _both(counts: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"total": dict(counts), "current": dict(counts)}


def restart_loaders(trainer: Trainer) -> None:
    """Restart the iteration over the training loaders.

    Lightning has begun it before calling a hook, and may have read batches.
    """
    fetcher: Any = trainer.fit_loop._data_fetcher
    if fetcher is not None:
        iter(fetcher)


def count_read_ahead(trainer: Trainer) -> int:
    """Return the number of batches that Lightning has prefetched: 1 for loaders without a length,
    except at their end.
    """
    return len(getattr(trainer.fit_loop._data_fetcher, "batches", ()))


def resume_inside_epoch(trainer: Trainer, loop_position: LoopPosition) -> None:
    """Resume the fit loop within an epoch, with the end of the last batch or with the next batch.

    Args:
        trainer: a trainer whose counters have been set, before its loops run.
        loop_position: a position within an epoch.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    advance_loop = loop.advance

    # Each of these functions replaces `advance` for one iteration of the loop, and then removes
    # itself.
    def finish_batch(fetcher: object) -> None:
        loop.restarting = False
        del loop.advance
        if not loop_position.at_end:
            loop.advance = read_on

    def read_on(fetcher: Any) -> None:
        loop.restarting = False
        del loop.advance
        advance_loop(fetcher)

    # Otherwise Lightning would not step plateau schedules at the end of the epoch.
    trainer.fit_loop._restarting = False
    loop._skip_next_val = loop_position.validated
    loop.val_loop._has_run = False
    loop.advance = finish_batch if loop_position.unfinished else read_on


def begin_epoch(trainer: Trainer) -> None:
    """Start the loops at the beginning of an epoch. With `max_steps`, Lightning would resume within
    one.
    """
    trainer.fit_loop._restarting = False
    trainer.fit_loop.epoch_loop.restarting = False
