"""Refuse the state of an optimizer or a schedule that was written by another kind of object.

Shapes of the tensors in the state of an optimizer are checked by `optim.optimizer_fit`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..common.local_paths import StrPath


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
        with _plain_errors(path, optimizer):
            yield
        needed = set(getattr(optimizer, "defaults", ())) & {name for group in before for name in group}
        lost = sorted({name for name in needed for group in optimizer.param_groups if name not in group})
        if lost:
            found = sorted({name for group in optimizer.param_groups for name in group} - {"params"})
            raise ValueError(
                f"{path} was written by another kind of optimizer: its options are {', '.join(found)}, but "
                f"{type(optimizer).__name__} needs {', '.join(lost)} too. Set `optim` as before, or delete the file."
            )
    except ValueError:
        with contextlib.suppress(Exception):
            optimizer.__setstate__({"state": state, "param_groups": groups})
        raise


@contextlib.contextmanager
def loading_schedule(schedule: Any, state: Mapping[str, Any], path: StrPath) -> Iterator[None]:
    """Check the state of a schedule, and refuse one of another kind when it is loaded within this context.

    Args:
        schedule: of learning rates. States of classes that scripts define are not compared.
        state: the state to load.
        path: its file, for the message.

    Raises:
        ValueError: the state does not fit; it says what is there, and what was expected. The schedule stays as it was.
    """
    wrong = _unlike(schedule.state_dict(), state) if _has_known_state(schedule) else []
    if wrong:
        raise ValueError(
            f"{path} was written by another kind of schedule: it holds {state!r:.400}, but {type(schedule).__name__} "
            f"has {', '.join(wrong)}. Set `lr_scheduler_type` as before, or delete the file."
        )
    attributes = getattr(schedule, "__dict__", {})  # a class with slots has none
    before = dict(attributes)
    try:
        with _plain_errors(path, schedule):
            yield
    except ValueError:
        attributes.clear()
        attributes.update(before)
        raise


@contextlib.contextmanager
def _plain_errors(path: StrPath, loaded: Any) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # raised by torch and other libraries
        if os.fspath(path) in str(error):
            raise
        raise ValueError(
            f"{path} does not fit {type(loaded).__name__}: {type(error).__name__}: {error}. Delete it to go on."
        ) from error


def _has_known_state(schedule: Any) -> bool:
    """Return whether torch, transformers or this package wrote the class of a schedule.

    The state of another class may have any form, and lists in it any length: only the class itself can judge it.
    """
    return type(schedule).__module__.partition(".")[0] in ("torch", "transformers", __name__.partition(".")[0])


def _unlike(own_state: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return the entries of a schedule's own state that another state lacks, or has of another kind."""
    wrong: list[str] = []
    for key, own in own_state.items():
        is_lacking = key not in state and not key.startswith("_")  # torch adds private ones
        if is_lacking or _differ(own, state.get(key)):
            wrong.append(f"{key}={own!r:.60}")
    return wrong


def _differ(own: Any, there: Any) -> bool:
    """Return whether two values of a state are of different kinds."""
    if there is None or isinstance(own, bool):
        return False
    if isinstance(own, (list, tuple)):
        return not isinstance(there, (list, tuple)) or len(own) != len(there)
    return isinstance(own, (int, float)) and not isinstance(there, (int, float)) and not hasattr(there, "item")
