"""Reject an optimizer or schedule state that was written by another class.

`optim.optimizer_fit` checks the shapes of tensors in optimizer states.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

from torch.optim import Optimizer

from ..common.local_paths import StrPath

_KNOWN_PACKAGES = ("torch", "transformers", __name__.partition(".")[0])
"""Packages whose schedules have known state entries."""


@contextlib.contextmanager
def loading_optimizer(optimizer: Optimizer, path: StrPath) -> Generator[None]:
    """Reject the state of another class of optimizer that is loaded in the `with` block.

    Restores the optimizer after an error. Without this check, the first step would fail with an
    unclear error about a missing option.

    Args:
        optimizer: an optimizer that has not taken a step yet.
        path: the file of its state, for the message.

    Raises:
        ValueError: the state does not fit. The message names the options of both.
    """
    groups = optimizer.param_groups
    state = optimizer.state

    # Require only the defaults that its groups use; a class may have others.
    required = set[str]().union(*groups).intersection(getattr(optimizer, "defaults", ()))
    try:
        with _as_value_error(path, optimizer):
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
        # Restore the earlier state. An error there must not hide the error to report.
        with contextlib.suppress(Exception):
            optimizer.__setstate__({"state": state, "param_groups": groups})
        raise


@contextlib.contextmanager
def loading_schedule(schedule: Any, state: Mapping[str, Any], path: StrPath) -> Generator[None]:
    """Reject the state of another class of schedule that is loaded in the `with` block.

    Args:
        schedule: the learning rate schedule. States of user-defined classes are not compared.
        state: the state to load.
        path: its file, for the message.

    Raises:
        ValueError: the state does not fit. The message names the saved and expected entries. The
            schedule is unchanged.
    """
    # The state of a user-defined class may have any entries, which only the class itself can check.
    differences: list[str] = []
    if type(schedule).__module__.partition(".")[0] in _KNOWN_PACKAGES:
        for key, value in schedule.state_dict().items():
            # Newer torch versions add private entries.
            is_missing = key not in state and not key.startswith("_")
            if is_missing or _are_of_different_kinds(value, state.get(key)):
                differences.append(f"{key}={value!r:.60}")
    if differences:
        raise ValueError(
            f"{path} was written by another kind of schedule: it holds {state!r:.400}, but "
            f"{type(schedule).__name__} has {', '.join(differences)}. Set `lr_scheduler_type` as "
            "before, or delete the file."
        )

    # A class with slots has no `__dict__` to restore.
    attributes = getattr(schedule, "__dict__", {})
    before = dict(attributes)
    try:
        with _as_value_error(path, schedule):
            yield
    except ValueError:
        attributes.clear()
        attributes.update(before)
        raise


@contextlib.contextmanager
def _as_value_error(path: StrPath, loaded: object) -> Generator[None]:
    """Convert errors of torch and other libraries about a state to a ValueError with its path."""
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
    """Return whether a saved value has another kind than the present one.

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
