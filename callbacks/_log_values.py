"""Read logged values, and add the values of callbacks to the logs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .state import TrainerState

logger = logging.getLogger(__name__)


@contextmanager
def going_on(owner: Any, what: str) -> Iterator[None]:
    """Turn exceptions inside the block into warnings: a display that fails must not end the
    training.

    Args:
        owner: the callback; it warns once of each `what`.
        what: the thing that is written or shown, for the message.
    """
    try:
        yield
    except Exception as error:
        warned: set[str] = owner.__dict__.setdefault("_warned_of", set())
        if what not in warned:
            warned.add(what)
            logger.warning(
                "%s failed; training continues: %s: %.300s", what, type(error).__name__, error
            )


def number_of(value: Any) -> float | None:
    """Return a logged value as a number, NumPy and torch scalars included; None for everything
    else.
    """
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def numbers_in(log_history: Iterable[dict[str, Any]]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the step of each entry with its numbers by name; entries without a step are left
    out.
    """
    for entry in log_history:
        step = number_of(entry.get("step"))
        if step is not None:
            found = {name: number_of(value) for name, value in entry.items() if name != "step"}
            yield step, {name: value for name, value in found.items() if value is not None}


def shortened(value: Any, most: int = 200) -> str:
    """Return a value as text, cut where it is long."""
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def is_training_log(logs: Any) -> bool:
    """Return whether these are logs of training steps, and not of an evaluation, of the end, or
    of a script.
    """
    return bool(logs) and "loss" in logs


def split_history(
    log_history: Iterable[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split the logs of a training from those of evaluations after its end, which may measure
    another model.

    Args:
        log_history: of a `TrainerState`. A training ends with the entry that has `train_runtime`;
            steps that are logged after it are those of one that was resumed.

    Returns:
        The entries of the training, and those after it.
    """
    training: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    ended = False
    for entry in log_history:
        ended = (ended or "train_runtime" in entry) and "loss" not in entry
        (after if ended and "train_runtime" not in entry else training).append(entry)
    return training, after


def add_to_logs(logs: dict[str, Any], state: TrainerState, values: dict[str, float]) -> None:
    """Add values to the logs of an `on_log`: for the callbacks that come later, and in the history.

    Such a callback sets `adds_to_logs = True`, so that the handler calls it before those that only
    read.

    Args:
        logs: what `on_log` was given.
        state: its `log_history` ends with these logs, where they are recorded at all.
        values: what to add.
    """
    logs.update(values)
    latest = state.log_history[-1] if state.log_history else {}
    if latest.get("step") == state.global_step and "loss" in latest:
        latest.update(values)
