"""`StopIteration` from user code, which a loop would mistake for the end of its data."""

from __future__ import annotations

import traceback
from contextlib import ContextDecorator
from types import TracebackType


def stop_iteration_error(error: StopIteration) -> RuntimeError:
    """Return the error to raise `from` a `StopIteration` of user code.

    It names the function that raised it.
    """
    function = "A function"
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        last = frames[-1]
        function = f"{last.name} ({last.filename}, line {last.lineno})"
    return RuntimeError(
        f"{function} raised StopIteration: an iterator has ended although a value of it is still "
        "needed. Start it again there, or pass a default to next()."
    )


class StopIterationGuard(ContextDecorator):
    """As PEP 479 for generators: turn a `StopIteration` that leaves the block into a
    `RuntimeError`.

    Lightning's loops catch `StopIteration` around the fetching of a batch and all hooks together,
    and end as if the data had ended.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        """Raise the `RuntimeError` if needed."""
        if isinstance(error, StopIteration):
            raise stop_iteration_error(error) from error


stop_iteration_guard = StopIterationGuard()
"""The one instance, which has no state: `with stop_iteration_guard:`, or above a method."""
