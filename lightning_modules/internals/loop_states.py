"""Where a training stands, in terms of Lightning's loops: read from them, and written as a checkpoint holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from .lightning_import import CombinedLoader, Trainer
from .lightning_internals import LOGGED_STEPS, combined

PROCESS_STATES = "lightrainer_processes"
"""Under this name a checkpoint holds, by rank, what `pack` makes of {"rng": generators, "data": position or None}."""

POSITIONS = "lightrainer_positions"
"""Under this name it holds, by rank, what `pack` makes of the position in the loaders and in a step."""

METRICS = "lightrainer_metrics"
"""Under this name it holds the metrics logged last: a plateau schedule may be stepped before the next ones are."""

IN_WINDOWS = "lightrainer_windows"
"""Under this name it holds whether its loops count windows of micro-batches, as those of the facade do."""


class Place(NamedTuple):
    """Where a training stands, whatever hook its checkpoint was written at.

    A batch counts as soon as its step is taken, an epoch as soon as its end is reached.

    Attributes:
        epoch: epochs that are complete.
        done: batches of the next one that are.
        at_end: they are all batches of it, and only its end is missing.
        unfinished: what Lightning does after a batch is still to be done, such as a validation.
        validated: but the validation is done.
        owes_schedules: the schedules that follow a metric are still to be stepped for the last complete epoch.
    """

    epoch: int
    done: int
    at_end: bool = False
    unfinished: bool = False
    validated: bool = False
    owes_schedules: bool = False


def place_of(fit_loop: Mapping[str, Any]) -> Place:
    """Read the place from the counters that a checkpoint holds of the fit loop."""
    epochs, batches = fit_loop["epoch_progress"]["current"], fit_loop["epoch_loop.batch_progress"]
    epoch, now, is_last = epochs["processed"], batches["current"], batches["is_last_batch"]
    done = now["processed"]
    if epochs["started"] <= epoch:  # The counters of the batches are reset only when the next epoch begins.
        cut_short = done > 0 and not is_last and epochs["ready"] <= epoch
        if cut_short:
            return Place(epoch - 1, done)
        return Place(epoch, 0, owes_schedules=is_last and epochs["completed"] < epoch)
    if done == 0 or now["ready"] > done:  # A batch was being worked on: it is to be trained again.
        return Place(epoch, done)
    validation = fit_loop.get("epoch_loop.val_loop.batch_progress", {"is_last_batch": False})
    validated = now["completed"] == done and validation["is_last_batch"] and _is_complete(validation["current"])
    return Place(epoch, done, at_end=is_last, unfinished=True, validated=validated)


def is_inside_validation(fit_loop: Mapping[str, Any]) -> bool:
    """Return whether some batches of a validation are done, by the counters of a checkpoint, and others are not."""
    place = place_of(fit_loop)
    validation = fit_loop.get("epoch_loop.val_loop.batch_progress")
    if validation is None or not place.unfinished or place.validated:
        return False
    has_begun = validation["current"]["ready"] > 0
    return has_begun and not (validation["is_last_batch"] and _is_complete(validation["current"]))


def place_in_loops(trainer: Trainer) -> Place:
    """Return the place of a trainer that fits or is about to."""
    fit_loop = trainer.fit_loop
    epoch_loop = fit_loop.epoch_loop
    counters: dict[str, Any] = {
        "epoch_progress": fit_loop.epoch_progress,
        "epoch_loop.batch_progress": epoch_loop.batch_progress,
        "epoch_loop.val_loop.batch_progress": epoch_loop.val_loop.batch_progress,
    }
    return place_of({name: progress.state_dict() for name, progress in counters.items()})


def settle(fit_loop: dict[str, Any], place: Place) -> None:
    """Write the counters anew, so that Lightning takes them as they are.

    It guesses from how they differ at which hook they were written, and leaves out validations, ends of epochs, or
    whole epochs. `go_on_inside` sees to what is left to do.

    Args:
        fit_loop: what a checkpoint holds of the fit loop.
        place: `place_of` it.
    """
    batches = fit_loop["epoch_loop.batch_progress"]["total"]["processed"]
    fit_loop["epoch_progress"] = _both(_counted(place.epoch + (place.done > 0), place.epoch))
    fit_loop["epoch_loop.batch_progress"] = {
        "total": _counted(batches, batches),
        "current": _counted(place.done, place.done),
        "is_last_batch": place.at_end,
    }
    validation = fit_loop.get("epoch_loop.val_loop.batch_progress")
    if validation is not None:
        seen = validation["total"]["ready"]
        fit_loop["epoch_loop.val_loop.batch_progress"] = {
            "total": _counted(seen, seen),
            "current": _counted(0, 0),
            "is_last_batch": False,
        }


def take_loader_states(checkpoint: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the states of train loaders out of a checkpoint, and return them.

    Lightning is about to write it, and those of an `EpochLoader` may hold arrays, while it reads only tensors. Or it
    has read it, and would load them where it does not fit: at the end of an epoch, and not at all where a schedule has
    asked for the length of the training, for which the loaders were made before.
    """
    return checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", [])


def train_loaders(trainer: Trainer) -> list[Any]:
    """Return the loaders of the training, also those of a dict, a list or a `CombinedLoader`."""
    loaders = trainer.fit_loop._combined_loader
    return [] if loaders is None else list(loaders.flattened)


def loaders_given_to_fit(trainer: Trainer) -> list[Any]:
    """Return the training loaders that were passed to `fit`; none where a method makes them."""
    source: Any = trainer.fit_loop._data_source
    if source.is_module():
        return []
    given = source.instance
    loaders = given if isinstance(given, CombinedLoader) else combined(given, training=True)
    return list(loaders.flattened)


def loaders_used_up(trainer: Trainer) -> list[bool]:
    """Return for each train loader whether Lightning has begun it again in this epoch, as others have more batches.

    Empty where it begins none again.
    """
    return list(_marks_of_used_up(trainer))


def set_loaders_used_up(trainer: Trainer, used_up: list[bool]) -> None:
    """Tell Lightning the result of `loaders_used_up`, once the iteration has begun."""
    marks = _marks_of_used_up(trainer)
    for index, was_used_up in enumerate(used_up[: len(marks)]):
        marks[index] = marks[index] or was_used_up


def _marks_of_used_up(trainer: Trainer) -> list[bool]:
    """Return the list in which the iterator of Lightning's loaders marks those that are used up; empty without one."""
    parts = vars(trainer.fit_loop._combined_loader).values()
    return next((part._consumed for part in parts if hasattr(part, "_consumed")), [])


def load_loader_states(trainer: Trainer, states: list[dict[str, Any]]) -> None:
    """Load the states that Lightning has saved of loaders with `state_dict` and `load_state_dict`.

    Args:
        trainer: has its loaders.
        states: from `take_loader_states`.
    """
    stateful = [loader for loader in train_loaders(trainer) if hasattr(loader, "load_state_dict")]
    for loader, state in zip(stateful, states, strict=True):
        loader.load_state_dict(state)


def set_batches_done(trainer: Trainer, done: int) -> None:
    """Set how many batches of the current epoch are done, where those that follow are of another size."""
    current: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    current.ready = done
    current.started = done
    current.processed = done
    current.completed = done


def step_plateau_schedules(trainer: Trainer) -> None:
    """Step the schedules that follow a metric for the epoch that was completed last.

    Lightning does so after the hook at which `ModelCheckpoint` saves by default.
    """
    progress = trainer.fit_loop.epoch_progress.current
    completed = progress.completed
    progress.completed = completed - 1
    trainer.fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    progress.completed = completed


def place_from_state(state: Mapping[str, Any], *, accumulation: int = 1) -> tuple[int, int]:
    """Return epochs and batches as above, of a training known from `trainer_state.json` only.

    An epoch of `n` batches has `ceil(n / accumulation)` steps, so the steps of an epoch follow from how many there
    were in how many epochs. Those of a stream are a share of `max_steps`.

    Args:
        state: the contents of `trainer_state.json`.
        accumulation: batches of a step.
    """
    steps, epochs = int(state["global_step"]), float(state.get("epoch") or 0.0)
    if steps == 0 or epochs == 0:
        return 0, 0
    epoch, part = int(epochs), epochs - int(epochs)
    each = math.ceil(steps / epochs - 1e-6)
    done = steps - epoch * each
    fewest = (each - 1) * accumulation + 1
    if not done / each - 1e-6 <= part <= done * accumulation / fewest + 1e-6:
        done = round(part * int(state.get("max_steps") or 0))
    return epoch, done * accumulation


def loops_at(*, epoch: int, done: int, steps: int, batches: int) -> dict[str, Any]:
    """As the entry `loops` of a checkpoint of Lightning, for automatic and for manual optimization.

    In the middle of an epoch it is what a callback saves at the end of a batch, at its start what is left of a run
    that ended with its last epoch.

    Args:
        epoch: epochs that are complete.
        done: batches of the next epoch that are complete.
        steps: optimizer steps taken.
        batches: batches seen in all.
    """
    inside = done > 0
    taken = {"ready": steps, "completed": steps}
    cleared = {**taken, "started": steps}
    return {
        "fit_loop": {
            "state_dict": {},
            "epoch_progress": _both(_counted(epoch + inside, epoch)),
            # Logs at the end of a batch come before this counter.
            "epoch_loop.state_dict": {LOGGED_STEPS: steps - inside},
            "epoch_loop.batch_progress": {
                "total": _counted(batches, batches, batches - inside),
                "current": _counted(done, done, done - inside),
                "is_last_batch": False,
            },
            "epoch_loop.scheduler_progress": _both(taken),
            "epoch_loop.automatic_optimization.optim_progress": {
                "optimizer": {"step": _both(taken), "zero_grad": _both(cleared)}
            },
            "epoch_loop.manual_optimization.optim_step_progress": _both(taken),
        },
        "validate_loop": {},
        "test_loop": {},
        "predict_loop": {},
    }


def _counted(begun: int, processed: int, completed: int | None = None) -> dict[str, int]:
    completed = processed if completed is None else completed
    return {"ready": begun, "started": begun, "processed": processed, "completed": completed}


def _is_complete(counts: dict[str, int]) -> bool:
    return counts["completed"] == counts["processed"] == counts["ready"]


def _both(counts: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"total": dict(counts), "current": dict(counts)}


def begin_reading_anew(trainer: Trainer) -> None:
    """Begin the iteration of the train loaders once more: Lightning did before it called a hook, and may have read."""
    fetcher: Any = trainer.fit_loop._data_fetcher
    if fetcher is not None:
        iter(fetcher)


def count_read_ahead(trainer: Trainer) -> int:
    """Return how many batches Lightning has read and not used: 1 of loaders without a length, except at the end."""
    return len(getattr(trainer.fit_loop._data_fetcher, "batches", ()))


def go_on_inside(trainer: Trainer, place: Place) -> None:
    """Start the fit loop in the middle of an epoch: with the end of the last batch, or with the next one.

    Args:
        trainer: its loops are settled at the place, and are about to run.
        place: some batches of the epoch are done.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    usual = loop.advance

    def finish_batch(fetcher: Any) -> None:
        loop.restarting = False
        del loop.advance
        if not place.at_end:
            loop.advance = read_on

    def read_on(fetcher: Any) -> None:
        loop.restarting = False
        del loop.advance
        usual(fetcher)

    trainer.fit_loop._restarting = False  # else no plateau schedule is stepped at the end of the epoch
    loop._skip_next_val, loop.val_loop._has_run = place.validated, False
    loop.advance = finish_batch if place.unfinished else read_on


def begin_epoch(trainer: Trainer) -> None:
    """Start the loops at an epoch, where Lightning would resume inside one, as it does with `max_steps`."""
    trainer.fit_loop._restarting = trainer.fit_loop.epoch_loop.restarting = False
