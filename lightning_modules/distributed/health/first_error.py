"""Name the process that failed first in the errors of other processes.

A failing process writes its error to the store of the process group, which keeps the first one.
Terminating the other processes is left to the launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import torch.distributed as dist

from ...common.collectives import has_other_processes
from ...internals.torch_names import default_store

_KEY = "lightrainer/first_error"
_UNCAUGHT_KEY = f"{_KEY}/ended"
"""Key of the first uncaught error of a process, including errors outside of training."""
# Maximum number of characters of an error.
_MAX_CHARACTERS = 300
FULL_TRACEBACK = "LIGHTRAINER_TRACEBACK"
"""Environment variable. The value `full` leaves tracebacks unchanged."""


class OtherProcessError(RuntimeError):
    """Another process failed first, or did not join the process group."""


class Failure(NamedTuple):
    """The error of a process."""

    rank: int
    pid: int
    host: str
    error: str


_trainings = 0
"""Number of trainings and evaluations that this process has begun."""
_has_failed = False


@contextlib.contextmanager
def name_first_error() -> Iterator[None]:
    """Report an error of this process to the others, or name the process that failed before.

    All ranks must enter the context equally often. Errors are unchanged without a process group,
    and with MPI.

    Raises:
        OtherProcessError: torch raised an error after another process had reported a different one.
            The message names that process, and the error of this process is the cause.
    """
    global _trainings
    _trainings += 1
    key = f"{_KEY}/{_trainings}"

    try:
        yield
    except BaseException as error:
        first = _report(error, key)
        if first is None or not _may_be_caused_by_others(error) or first.error == one_line(error):
            raise
        raise OtherProcessError(
            f"Process {first.rank} (pid {first.pid} on {first.host}) failed: "
            f"{first.error.rstrip('. ')}. So process {dist.get_rank()} (pid {os.getpid()} on "
            f"{socket.gethostname()}) cannot continue."
        ) from error


def report_uncaught_errors() -> None:
    """Report uncaught errors to other processes and to torchrun, even outside of training.

    The process that failed first prints its traceback. Processes that fail because of it, or with
    the same error, print one line.
    """
    pid = os.getpid()
    previous_hook = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        # A forked process inherits this hook, but is not in the process group.
        if os.getpid() != pid:
            previous_hook(kind, error.with_traceback(traceback), traceback)
            return

        first = _report(error, _UNCAUGHT_KEY)
        if _is_explained_elsewhere(error, first):
            error = _without_traceback(error, first)
            traceback = None

        # Print before this process exits, because torchrun then terminates all processes.
        previous_hook(kind, error.with_traceback(traceback), traceback)
        _write_file_for_torchrun(error)

    sys.excepthook = report


def has_failed() -> bool:
    """Return whether this process has reported an error."""
    return _has_failed


def one_line(error: BaseException) -> str:
    """Format the type and text of an error in one line."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    if not text:
        return name
    return f"{name}: {text[:_MAX_CHARACTERS]}"


def _report(error: BaseException, key: str) -> Failure | None:
    """Write an error to the store, unless another process has written one.

    Args:
        error: the error of this process.
        key: the key of the training, or `_UNCAUGHT_KEY`.

    Returns:
        The error that another process reported first; None if this is the first error, or if the
        store is not reachable.
    """
    global _has_failed
    if not has_other_processes():
        return None
    _has_failed = True

    # There is no store with MPI.
    store = default_store()
    if store is None:
        return None

    failure = Failure(dist.get_rank(), os.getpid(), socket.gethostname(), one_line(error))
    try:
        # The store keeps an earlier value of the key. `compare_set` returns the stored value.
        first = Failure(*json.loads(store.compare_set(key, "", json.dumps(failure))))
        # Another process may have failed before it began this training.
        if first == failure and store.check([_UNCAUGHT_KEY]):
            first = Failure(*json.loads(store.get(_UNCAUGHT_KEY)))
    except dist.DistError:
        # The process that hosted the store has exited.
        return None
    if first.rank == failure.rank:
        return None
    return first


def _may_be_caused_by_others(error: BaseException) -> bool:
    """Return whether an error of torch may be caused by the failure of another process.

    gloo raises plain RuntimeErrors.
    """
    return type(error) is RuntimeError or isinstance(error, dist.DistError)


def _is_explained_elsewhere(error: BaseException, first: Failure | None) -> bool:
    """Return whether another process prints a traceback that explains the error."""
    if os.environ.get(FULL_TRACEBACK) == "full":
        return False
    # Without a process group, this process failed to join the others, and only its own error
    # explains why.
    if isinstance(error, OtherProcessError):
        return dist.is_available() and dist.is_initialized()
    return first is not None and first.error == one_line(error)


def _without_traceback(error: BaseException, first: Failure | None) -> BaseException:
    """Return the error without cause and context, with a note that names the process which prints
    the traceback.
    """
    error.__cause__ = None
    error.__suppress_context__ = True
    error.__notes__ = []
    if first is not None and not isinstance(error, OtherProcessError):
        error.add_note(f"(as in process {first.rank} on {first.host}, which shows the traceback)")
    return error


def _write_file_for_torchrun(error: BaseException) -> None:
    """Write an error to the file from which torchrun reports the root cause."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    # torchrun may have deleted the folder of the file.
    with contextlib.suppress(OSError):
        try:
            raise error
        except type(error):
            get_error_handler().record_exception(error)
