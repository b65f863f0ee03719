"""Save and load the states of callbacks, tensors included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CALLBACK_STATES_NAME = "callback_states.pt"
"""The file of a checkpoint with the states of callbacks, by class name; the reference has none
such.
"""


def keeps_state(callback: Any) -> bool:
    """Return whether a callback has `state_dict` and `load_state_dict`, and so a state for
    checkpoints.
    """
    return all(
        callable(getattr(callback, name, None)) for name in ("state_dict", "load_state_dict")
    )


def state_dicts(callbacks: Iterable[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the states of those callbacks that keep one, by the name of their class, in their
    order.
    """
    states: dict[str, list[dict[str, Any]]] = {}
    for callback in callbacks:
        if keeps_state(callback) and (state := callback.state_dict()):
            states.setdefault(type(callback).__name__, []).append(state)
    return states


def load_state_dicts(
    callbacks: Iterable[Any], states: dict[str, list[dict[str, Any]]]
) -> list[str]:
    """Give each callback its state back.

    Returns:
        The names of classes of which a state is left over, as there are fewer callbacks now.
    """
    left = {name: list(found) for name, found in states.items()}
    for callback in callbacks:
        if keeps_state(callback) and left.get(type(callback).__name__):
            callback.load_state_dict(left[type(callback).__name__].pop(0))
    return [name for name, found in left.items() if found]
