"""Refuse the state of an optimizer or a schedule that was written by another kind of object.

Shapes of the tensors in the state of an optimizer are checked by `optim.optimizer_fit`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

from torch.optim import Optimizer

from ..common.local_paths import StrPath

_KNOWN_PACKAGES = ("torch", "transformers", __name__.partition(".")[0])
"""Packages whose schedules have states of known entries."""


@contextlib.contextmanager
def loading_optimizer(optimizer: Optimizer, path: StrPath) -> Generator[None]:
    """Refuse a state of another kind of optimizer that is loaded within this context.

    The optimizer is restored. Otherwise the first step would raise an error about an option that
    the other kind does not have.

    Args:
        optimizer: has not made a step yet.
        path: the path of its state, for the message.

    Raises:
        ValueError: the state does not fit; names the options of both.
    """
    groups = optimizer.param_groups
    state = optimizer.state

    # Require only options that its groups have: a class may have further defaults.
    required = set[str]().union(*groups).intersection(getattr(optimizer, "defaults", ()))
    try:
        with _plain_errors(path, optimizer):
            yield
        options = set[str]().union(*optimizer.param_groups)
        missing: set[str] = set()
        for group in optimizer.param_groups:
            missing.update(required.difference(group))
        if missing:
            raise ValueError(
                f"{path} was written by another kind of optimizer: its options are "
                f"{', '.join(sorted(options - {'params'}))}, but {type(optimizer).__name__} needs "
                f"{', '.join(sorted(missing))} too. Set `optim` as before, or delete the file."
            )
    except ValueError:
        # Give back the earlier state. An error in that must not hide the one to report.
        with contextlib.suppress(Exception):
            optimizer.__setstate__({"state": state, "param_groups": groups})
        raise


@contextlib.contextmanager
def loading_schedule(schedule: Any, state: Mapping[str, Any], path: StrPath) -> Generator[None]:
    """Refuse a state of another kind of schedule that is loaded within this context.

    Args:
        schedule: the schedule of learning rates. States of classes that scripts define are not
            compared.
        state: the state to load.
        path: its file, for the message.

    Raises:
        ValueError: the state does not fit; names what it holds, and what was expected. The
            schedule stays as it was.
    """
    # The state of a class of a script may have any entries, and lists in it any length: only the
    # class itself can check it.
    differences: list[str] = []
    if type(schedule).__module__.partition(".")[0] in _KNOWN_PACKAGES:
        for key, value in schedule.state_dict().items():
            # Newer versions of torch add private entries.
            is_missing = key not in state and not key.startswith("_")
            if is_missing or _are_of_different_kinds(value, state.get(key)):
                differences.append(f"{key}={value!r:.60}")
    if differences:
        raise ValueError(
            f"{path} was written by another kind of schedule: it holds {state!r:.400}, but "
            f"{type(schedule).__name__} has {', '.join(differences)}. Set `lr_scheduler_type` as "
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
def _plain_errors(path: StrPath, loaded: object) -> Generator[None]:
    """Raise errors of torch and other libraries about a state as a ValueError with its path."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if os.fspath(path) in str(error):
            raise
        raise ValueError(
            f"{path} does not fit {type(loaded).__name__}: {type(error).__name__}: {error}. Delete "
            "it to continue without it."
        ) from error


def _are_of_different_kinds(present: object, saved: object) -> bool:
    """Return whether two values of a state are of different kinds.

    A number may be saved as a tensor or an array.
    """
    if saved is None or isinstance(present, bool):
        return False
    if isinstance(present, (list, tuple)):
        if not isinstance(saved, (list, tuple)):
            return True
        return len(cast("Sequence[Any]", present)) != len(cast("Sequence[Any]", saved))
    if isinstance(present, (int, float)):
        return not isinstance(saved, (int, float)) and not hasattr(saved, "item")
    return False
