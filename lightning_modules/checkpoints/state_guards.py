"""Refuse the state of an optimizer, a schedule or a data position that was written by another kind of object.

Shapes of the tensors in the state of an optimizer are checked by `optim.optimizer_fit`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..common.local_paths import StrPath

__all__ = ["loading_optimizer", "loading_schedule", "require_position"]

_RAW = (KeyError, TypeError, AttributeError, IndexError, ValueError)
"""Errors of `load_state_dict`, in torch and elsewhere, for a state of another kind of object."""


@contextlib.contextmanager
def loading_optimizer(optimizer: Any, path: StrPath) -> Iterator[None]:
    """Refuse a state of another kind of optimizer when it is loaded within this context, and restore the optimizer.

    Otherwise the first step would raise an error about an option that the other kind does not have.

    Args:
        optimizer: has not made a step yet.
        path: of its state, for the message.

    Raises:
        ValueError: the state does not fit; it says what was made, and what there is.
    """
    groups, state = optimizer.param_groups, optimizer.state
    before = [dict(group) for group in groups]
    try:
        with _plain_errors(path, lambda: f"the optimizer {_kind(optimizer)}"):
            yield
            needed = set(getattr(optimizer, "defaults", ())) & {name for group in before for name in group}
            lost = sorted({name for name in needed for group in optimizer.param_groups if name not in group})
            if lost:
                found = sorted({name for group in optimizer.param_groups for name in group} - {"params"})
                raise ValueError(
                    f"{path} was written by another kind of optimizer: its options are {', '.join(found)}, and "
                    f"{type(optimizer).__name__} needs {', '.join(lost)} too. Set `optim` (or pass the optimizer) as "
                    "in the run that wrote it. To go on with a new optimizer, delete this file: a warning will say so."
                )
    except ValueError:
        with contextlib.suppress(Exception):
            optimizer.__setstate__({"state": state, "param_groups": groups})
        raise


@contextlib.contextmanager
def loading_schedule(schedule: Any, state: Any, path: StrPath) -> Iterator[None]:
    """Check the state of a schedule, and refuse one of another kind when it is loaded within this context.

    Args:
        schedule: of learning rates.
        state: the state to load.
        path: its file, for the message.

    Raises:
        ValueError: the state does not fit; it says what is there, and what was expected. The schedule stays as it was.
    """
    own, name = schedule.state_dict(), type(schedule).__name__
    remedy = (
        "Set `lr_scheduler_type` (or pass the schedule) as in the run that wrote it. To go on with a new schedule and "
        "a new optimizer, delete this file: a warning will say so."
    )
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} holds a {type(state).__name__}, and not the state of a schedule. {remedy}")
    lacking = [key for key in own if key not in state and not key.startswith("_")]  # torch adds private ones
    if lacking:
        raise ValueError(
            f"{path} was written by another kind of schedule: it holds {_listed(state)}, and the state of {name} has "
            f"{', '.join(lacking)} too. {remedy}"
        )
    for key in [key for key in own if key in state and _differ(own[key], state[key])]:
        raise ValueError(
            f"{path} does not fit {name}: {key} is {state[key]!r:.60} there, and {own[key]!r:.60} here. {remedy}"
        )
    before = dict(vars(schedule))
    try:
        with _plain_errors(path, lambda: f"the schedule {name}"):
            yield
    except ValueError:
        vars(schedule).clear()
        vars(schedule).update(before)
        raise


def require_position(state: Any, path: StrPath) -> dict[str, Any]:
    """Check the state of a data position and return it.

    Args:
        state: contents of a file `data_state_*.pth`.
        path: that file.

    Raises:
        ValueError: it is something else; it says what is there, and what was expected.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} holds a {type(state).__name__}, and not a position in the data. {_DAMAGED}")
    for name, (fits, expected) in _POSITION.items():
        if name not in state:
            raise ValueError(f"{path} has no {name!r} ({expected}): it holds {_listed(state)}. {_DAMAGED}")
        if not fits(state[name]):
            raise ValueError(f"{path} has {name}={state[name]!r:.60}, but expected is {expected}. {_DAMAGED}")
    return dict(state)


_DAMAGED = "It is damaged, or not of this library: take another checkpoint, or delete the file, to count from the step."


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_layout(value: Any) -> bool:
    names = ("world_size", "batch_size", "accumulation")
    return isinstance(value, Mapping) and all(_is_count(value.get(name)) and value[name] > 0 for name in names)


def _is_asked(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping) and all(_is_count(value.get(k)) for k in ("batch", "accumulation"))
    )


def _is_progress(value: Any) -> bool:
    names = ("losses", "grad_norm", "learning_rate")
    return value is None or (isinstance(value, Mapping) and all(name in value for name in names))


_POSITION: dict[str, tuple[Any, str]] = {
    "epoch": (_is_count, "a number of epochs"),
    "done": (_is_count, "a number of steps in the epoch"),
    "windows": (_is_count, "the steps of an epoch"),
    "copies": (lambda value: _is_count(value) and value > 0, "a number of processes"),
    "ended": (lambda value: isinstance(value, bool), "True or False"),
    "layout": (_is_layout, "a dict of world_size, batch_size and accumulation"),
    "loader": (lambda value: value is None or isinstance(value, Mapping), "the state of a loader, or None"),
    "asked": (_is_asked, "a dict of batch and accumulation, or None"),
    "group": (lambda value: value is None or _is_count(value), "a number of samples, or None"),
    "in_evaluation": (
        lambda value: value is None or (isinstance(value, Mapping) and "logs" in value),
        "a dict, or None",
    ),
    "progress": (_is_progress, "a dict of losses, grad_norm and learning_rate, or None"),
}


@contextlib.contextmanager
def _plain_errors(path: StrPath, what: Any) -> Iterator[None]:
    try:
        yield
    except _RAW as error:
        if os.fspath(path) in str(error):
            raise
        raise ValueError(
            f"{path} does not fit {what()}: {type(error).__name__}: {error}. Go on with the model, the optimizer and "
            "the schedule of the run that wrote it, or delete this file to begin with new states."
        ) from error


def _kind(optimizer: Any) -> str:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} with groups of {' and '.join(map(str, sizes))} parameters"


def _differ(own: Any, there: Any) -> bool:
    """Return whether two values of a state are of different kinds."""
    if isinstance(own, bool) or own is None or there is None:
        return False
    if isinstance(own, (int, float)):
        return not isinstance(there, (int, float)) and not hasattr(there, "item")
    if isinstance(own, (list, tuple)):
        return not isinstance(there, (list, tuple)) or len(own) != len(there)
    return False


def _listed(state: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, list(state)[:12])) or "nothing"
