"""Read logged values, and add the values of callbacks to the logs."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

from .state import TrainerState

logger = logging.getLogger(__name__)


@contextmanager
def failures_as_warnings(callback: object, action: str) -> Generator[None]:
    """Turn exceptions inside the block into warnings: a failing display must not end the training.

    Args:
        callback: the callback, which warns once about each action.
        action: the action in the block, for the message.
    """
    try:
        yield
    except Exception as error:
        failed_actions: set[str] = callback.__dict__.setdefault("_failed_actions", set())
        if action not in failed_actions:
            failed_actions.add(action)
            logger.warning(
                "%s failed; training continues: %s: %.300s", action, type(error).__name__, error
            )


def number_of(value: Any, *, accept_bool: bool = False) -> float | None:
    """Return a logged value as a Python number; None for everything else.

    Arrays and tensors of one element are numbers too.

    Args:
        value: any logged value.
        accept_bool: whether booleans count as numbers; trackers record them as 0 and 1.
    """
    if hasattr(value, "item") and _element_count(value) == 1:
        value = value.item()
    if isinstance(value, bool) and not accept_bool:
        return None
    if not isinstance(value, (int, float)):
        return None
    return value


def _element_count(array: Any) -> object:
    """Return the number of elements of an array or a tensor; None if it has no such number."""
    # The attribute `size` of an array is a number, that of a tensor is a method.
    if hasattr(array, "numel"):
        return array.numel()
    return getattr(array, "size", None)


def is_training_log(logs: Mapping[str, object] | None) -> TypeGuard[dict[str, Any]]:
    """Return whether these are the logs of training steps.

    Logs of an evaluation, of the end of the training, or of the user's script are not.
    """
    return bool(logs) and "loss" in logs


def split_history(
    log_history: Iterable[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split the logs of a training from those of evaluations after its end.

    The latter may have measured another model.

    Args:
        log_history: the `log_history` of a `TrainerState`. A training ends with the entry that has
            `train_runtime`; steps logged after it belong to a training that was resumed.

    Returns:
        The entries of the training, and those after it.
    """
    of_training: list[dict[str, Any]] = []
    after_training: list[dict[str, Any]] = []
    has_ended = False
    for entry in log_history:
        # The summary ends a training; a step after it belongs to a resumed one.
        is_summary = "train_runtime" in entry
        is_step = "loss" in entry
        if is_step:
            has_ended = False
        elif is_summary:
            has_ended = True

        if has_ended and not is_summary:
            after_training.append(entry)
        else:
            of_training.append(entry)
    return of_training, after_training


def add_to_logs(logs: dict[str, Any], state: TrainerState, values: dict[str, float]) -> None:
    """Add values to the logs of an `on_log`: for the callbacks after this one, and in the history.

    The callback has to set `adds_to_logs = True`, so that the handler calls it before those that
    only read.

    Args:
        logs: the logs that `on_log` was called with.
        state: its `log_history` ends with these logs, if they are recorded at all.
        values: the values to add.
    """
    logs.update(values)

    # The history has a copy of the logs.
    if not state.log_history:
        return
    latest_entry = state.log_history[-1]
    if latest_entry.get("step") == state.global_step and "loss" in latest_entry:
        latest_entry.update(values)
