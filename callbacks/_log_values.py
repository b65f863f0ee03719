"""How callbacks put values of their own into the logs."""

from __future__ import annotations

from typing import Any

from .state import TrainerState


def is_training_log(logs: Any) -> bool:
    """Whether these are the logs of training steps, not those of an evaluation, of the end, or of a script."""
    return bool(logs) and "loss" in logs


def add_to_logs(logs: dict[str, Any], state: TrainerState, values: dict[str, float]) -> None:
    """Add values to the logs of an `on_log`: for the callbacks that come later, and in the history.

    A callback that does this says `adds_to_logs = True`, so that the handler calls it before those that only read.

    Args:
        logs: what `on_log` was given.
        state: its `log_history` ends with these logs, where they are recorded at all.
        values: what to add.
    """
    logs.update(values)
    latest = state.log_history[-1] if state.log_history else {}
    if latest.get("step") == state.global_step and "loss" in latest:
        latest.update(values)
