"""Save and load the states of callbacks, tensors included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CALLBACK_STATES_NAME = "callback_states.pt"
"""File of a checkpoint with the states of callbacks by class name. transformers has no such file.
"""


def keeps_state(callback: object) -> bool:
    """Return whether a callback has a state for checkpoints.

    That is, whether it has both `state_dict` and `load_state_dict`.
    """
    has_getter = callable(getattr(callback, "state_dict", None))
    has_setter = callable(getattr(callback, "load_state_dict", None))
    return has_getter and has_setter


def state_dicts(callbacks: Iterable[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the non-empty states of callbacks by class name, in the order of the callbacks."""
    states: dict[str, list[dict[str, Any]]] = {}
    for callback in callbacks:
        if not keeps_state(callback):
            continue

        # An empty state need not be saved, nor restored.
        state = callback.state_dict()
        if state:
            states.setdefault(type(callback).__name__, []).append(state)
    return states


def load_state_dicts(
    callbacks: Iterable[Any], states: dict[str, list[dict[str, Any]]]
) -> list[str]:
    """Load the state of each callback.

    Args:
        callbacks: those of the present training.
        states: the result of `state_dicts`.

    Returns:
        The names of the classes that have more states than there are callbacks now.
    """
    # Copies of the lists, from which a state is removed when it is loaded.
    remaining = {class_name: list(state_list) for class_name, state_list in states.items()}

    # Callbacks of the same class get their states in their order.
    for callback in callbacks:
        states_of_class = remaining.get(type(callback).__name__)
        if states_of_class and keeps_state(callback):
            callback.load_state_dict(states_of_class.pop(0))

    return [class_name for class_name, state_list in remaining.items() if state_list]
