"""Convert `StopIteration` from user code, which a loop would mistake for the end of its data."""

from __future__ import annotations

import traceback
from contextlib import ContextDecorator
from types import TracebackType


def stop_iteration_error(error: StopIteration) -> RuntimeError:
    """Return the error to raise from a `StopIteration` of user code.

    The message names the function that raised it.
    """
    function = "A function"
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        last = frames[-1]
        function = f"{last.name} ({last.filename}, line {last.lineno})"
    return RuntimeError(
        f"{function} raised StopIteration: an iterator is exhausted, but another value is needed. "
        "Create a new iterator there, or pass a default to next()."
    )


class StopIterationGuard(ContextDecorator):
    """Convert a `StopIteration` that leaves the `with` block to a `RuntimeError`, as PEP 479 does
    for generators.

    Lightning's loops catch `StopIteration` both from fetching a batch and from hooks, and would
    treat it as the end of the data.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        """Raise a `RuntimeError` for a `StopIteration`."""
        if isinstance(error, StopIteration):
            raise stop_iteration_error(error) from error


stop_iteration_guard = StopIterationGuard()
"""Shared instance without state, used as a context manager or decorator."""
