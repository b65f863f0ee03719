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
    """Refuse a state of another kind of optimizer when it is loaded within this context, and
    restore the optimizer.

    Otherwise the first step would raise an error about an option that the other kind does not have.

    Args:
        optimizer: has not made a step yet.
        path: of its state, for the message.

    Raises:
        ValueError: the state does not fit; it says what was made, and what there is.
    """
    groups = optimizer.param_groups
    state = optimizer.state

    # Only options that its groups have: a class may keep other defaults for itself.
    options = set().union(*groups)
    needed = options.intersection(getattr(optimizer, "defaults", ()))
    try:
        with _plain_errors(path, optimizer):
            yield
        _require_options(optimizer, needed, path)
    except ValueError:
        with contextlib.suppress(Exception):
            optimizer.__setstate__({"state": state, "param_groups": groups})
        raise


def _require_options(optimizer: Any, needed: set[str], path: StrPath) -> None:
    """Raise a ValueError if a group of the loaded state lacks an option of the optimizer."""
    lost: set[str] = set()
    for group in optimizer.param_groups:
        lost.update(needed.difference(group))
    if not lost:
        return

    options = set().union(*optimizer.param_groups) - {"params"}
    raise ValueError(
        f"{path} was written by another kind of optimizer: its options are "
        f"{', '.join(sorted(options))}, but {type(optimizer).__name__} needs "
        f"{', '.join(sorted(lost))} too. Set `optim` as before, or delete the file."
    )


@contextlib.contextmanager
def loading_schedule(schedule: Any, state: Mapping[str, Any], path: StrPath) -> Iterator[None]:
    """Check the state of a schedule, and refuse one of another kind when it is loaded within this
    context.

    Args:
        schedule: of learning rates. States of classes that scripts define are not compared.
        state: the state to load.
        path: its file, for the message.

    Raises:
        ValueError: the state does not fit; it says what is there, and what was expected. The
            schedule stays as it was.
    """
    wrong: list[str] = []
    if _has_known_state(schedule):
        wrong = _unlike(schedule.state_dict(), state)
    if wrong:
        raise ValueError(
            f"{path} was written by another kind of schedule: it holds {state!r:.400}, but "
            f"{type(schedule).__name__} has {', '.join(wrong)}. Set `lr_scheduler_type` as "
            "before, or delete the file."
        )

    # A class with slots has no attributes to restore.
    attributes = getattr(schedule, "__dict__", {})
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
    """Raise what torch and other libraries raise for a state that does not fit as a ValueError
    with its path.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if os.fspath(path) in str(error):
            raise
        raise ValueError(
            f"{path} does not fit {type(loaded).__name__}: {type(error).__name__}: {error}. Delete "
            "it to go on."
        ) from error


def _has_known_state(schedule: Any) -> bool:
    """Return whether torch, transformers or this package wrote the class of a schedule.

    The state of another class may have any form, and lists in it any length: only the class itself
    can judge it.
    """
    own_package = __name__.partition(".")[0]
    package = type(schedule).__module__.partition(".")[0]
    return package in ("torch", "transformers", own_package)


def _unlike(own_state: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return the entries of a schedule's own state that another state lacks, or has of another
    kind.
    """
    wrong: list[str] = []
    for key, own in own_state.items():
        # Newer versions of torch add private entries.
        is_lacking = key not in state and not key.startswith("_")
        if is_lacking or _differ(own, state.get(key)):
            wrong.append(f"{key}={own!r:.60}")
    return wrong


def _differ(own: Any, saved: Any) -> bool:
    """Return whether two values of a state are of different kinds; a number may be saved as a
    tensor or an array.
    """
    if saved is None or isinstance(own, bool):
        return False
    if isinstance(own, (list, tuple)):
        return not isinstance(saved, (list, tuple)) or len(own) != len(saved)
    if isinstance(own, (int, float)):
        return not isinstance(saved, (int, float)) and not hasattr(saved, "item")
    return False
