"""Where a training stands, in terms of Lightning's loops: read from them, and written as a checkpoint holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .lightning_import import Trainer
from .lightning_internals import LOGGED_STEPS

__all__ = ["IN_WINDOWS", "PROCESS_STATES", "leave_out_loaders", "loops_at", "place_from_state", "place_in_loops"]

PROCESS_STATES = "lightrainer_processes"
"""Under this name a checkpoint holds, by rank, what `pack` makes of {"rng": generators, "data": position or None}."""

IN_WINDOWS = "lightrainer_windows"
"""Under this name it holds whether its loops count windows of micro-batches, as those of the facade do."""


def place_in_loops(trainer: Trainer) -> tuple[int, int]:
    """Return epochs that are complete, and batches of the next one that are, of a trainer that fits or is about to.

    A batch counts as soon as its step is taken, an epoch as soon as its end is reached: what is done when Lightning's
    callbacks save.
    """
    epochs: Any = trainer.fit_loop.epoch_progress.current
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress
    # At the end of an epoch the counter of the batches is reset only when the next one begins.
    over = batches.is_last_batch and epochs.ready <= epochs.processed
    return epochs.processed, 0 if over else batches.current.processed


def leave_out_loaders(checkpoint: dict[str, Any]) -> None:
    """Take the states of train loaders out of what Lightning is about to write.

    They may hold arrays, and Lightning reads only tensors.
    """
    checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)


def place_from_state(state: Mapping[str, Any], *, accumulation: int = 1) -> tuple[int, int]:
    """Return epochs and batches as above, of a training of which only `trainer_state.json` tells.

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
            # What is logged at the end of a batch comes before this counter.
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


def _both(counts: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"total": dict(counts), "current": dict(counts)}
