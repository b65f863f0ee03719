"""Name the process that failed first in the errors of the others.

A process that fails writes its error to the store of the process group, which keeps the first one.
Nothing here terminates other processes: that is the launcher's task.
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
_ENDED = f"{_KEY}/ended"
"""Key of the first error that ended a process, also outside of a training."""
# Characters of an error that are reported.
_LONGEST_TEXT = 300
FULL_TRACEBACK = "LIGHTRAINER_TRACEBACK"
"""Environment variable; `full` leaves tracebacks unchanged."""


class OtherProcessError(RuntimeError):
    """Another process failed first, or did not join the process group."""


class Failure(NamedTuple):
    """The error of a process."""

    rank: int
    pid: int
    host: str
    error: str


_trainings = 0
"""Trainings and evaluations that this process has begun."""
_has_failed = False


@contextlib.contextmanager
def name_first_error() -> Iterator[None]:
    """Report an error of this process to the others, and name theirs if it came first.

    All processes have to enter the context equally often. Without a process group, or over MPI,
    errors stay as they are.

    Raises:
        OtherProcessError: torch raised an error, and another process had reported a different one
            before; names that process. The error of this process is the cause.
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
    """Report an uncaught error to the other processes and to torchrun, even outside of a training.

    The process that failed first prints its traceback. Processes that end because of it, or by the
    same error, print one line.
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

        first = _report(error, _ENDED)
        if _is_explained_elsewhere(error, first):
            error = _without_traceback(error, first)
            traceback = None

        # Print first, because torchrun terminates all processes when the first one has exited.
        previous_hook(kind, error.with_traceback(traceback), traceback)
        _write_file_for_torchrun(error)

    sys.excepthook = report


def has_failed() -> bool:
    """Return True if this process has reported an error."""
    return _has_failed


def one_line(error: BaseException) -> str:
    """Return type and text of an error in one line."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    if not text:
        return name
    return f"{name}: {text[:_LONGEST_TEXT]}"


def _report(error: BaseException, key: str) -> Failure | None:
    """Write an error to the store, unless another process has written one.

    Args:
        error: the error of this process.
        key: the key of the training, or `_ENDED`.

    Returns:
        The error that another process reported before; None if this is the first one, or if the
        store is not reachable.
    """
    global _has_failed
    if not has_other_processes():
        return None
    _has_failed = True

    # MPI has no store.
    store = default_store()
    if store is None:
        return None

    failure = Failure(dist.get_rank(), os.getpid(), socket.gethostname(), one_line(error))
    try:
        # Written only if the key is empty, and returned as it is then.
        first = Failure(*json.loads(store.compare_set(key, "", json.dumps(failure))))
        # The other process may have ended before it began this training.
        if first == failure and store.check([_ENDED]):
            first = Failure(*json.loads(store.get(_ENDED)))
    except dist.DistError:
        # The process that hosted the store has exited.
        return None
    if first.rank == failure.rank:
        return None
    return first


def _may_be_caused_by_others(error: BaseException) -> bool:
    """Return whether torch may have raised an error because another process failed.

    gloo has no class for these errors.
    """
    return type(error) is RuntimeError or isinstance(error, dist.DistError)


def _is_explained_elsewhere(error: BaseException, first: Failure | None) -> bool:
    """Return whether another process prints the traceback that explains an error."""
    if os.environ.get(FULL_TRACEBACK) == "full":
        return False
    # Without a group this process could not join the others, and only its error explains why.
    if isinstance(error, OtherProcessError):
        return dist.is_available() and dist.is_initialized()
    return first is not None and first.error == one_line(error)


def _without_traceback(error: BaseException, first: Failure | None) -> BaseException:
    """Return the error so that it is printed in one line, with a note that names the process which
    prints the traceback.
    """
    error.__cause__ = None
    error.__suppress_context__ = True
    error.__notes__ = []
    if first is not None and not isinstance(error, OtherProcessError):
        error.add_note(f"(as in process {first.rank} on {first.host}, which shows the traceback)")
    return error


def _write_file_for_torchrun(error: BaseException) -> None:
    """Write an error to the file from which torchrun shows the cause at the end."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    # torchrun may have deleted the folder of the file.
    with contextlib.suppress(OSError):
        try:
            raise error
        except type(error):
            get_error_handler().record_exception(error)
