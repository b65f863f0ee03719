"""Work in the company of other processes: whatever happens to one of them, all hear of it by name."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator

from .causes import find_cause
from .errors import OtherProcessError, is_late, is_lost
from .failure_monitor import FAILED, FOLLOWED, LATE, FailureMonitor, current_monitor, described
from .watch import Watch

logger = logging.getLogger(__name__)

_LONGEST_GRACE = 30.0

_sessions = 0
_inside = False


@contextlib.contextmanager
def company(seconds: float = 1800, *, doing: Callable[[], str] = str, acts: bool = True) -> Iterator[None]:
    """Train, or evaluate, together: all processes have to come here.

    An error is told to the others. Where it says that another process was lost, or did not come, it becomes one that
    names that process, and why it was lost as far as anybody knows. Within another company it does nothing.

    Args:
        seconds: how long torch waits for another process.
        doing: how far this process is, in some words, to be said if others wait for it.
        acts: also end this process where it cannot find out by itself that the others are gone.

    Raises:
        OtherProcessError: another process failed, is gone, or did not come.
    """
    global _sessions, _inside
    board = None if _inside else current_monitor()
    if board is None:
        yield
        return
    _sessions += 1
    _inside, session = True, _sessions
    board.look_around()
    watch = Watch(board, session, min(seconds, _LONGEST_GRACE), doing) if acts else None
    if watch is not None:
        watch.start()
    try:
        yield
    except BaseException as error:
        _explain(board, session, error, seconds)
        raise
    else:
        board.say_done(session)
    finally:
        _inside = False
        if watch is not None:
            watch.stop()


@contextlib.contextmanager
def meeting(rank: int | None, world_size: int, seconds: float) -> Iterator[None]:
    """Wait for the others to come at all.

    Args:
        rank: of this process.
        world_size: number of processes.
        seconds: how long it waits.

    Raises:
        OtherProcessError: they did not come; names the process that waited, and where.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_late(error) and not is_lost(error):
            raise
        address, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise OtherProcessError(
            f"Process {rank} of {world_size} waited {seconds:g} s (ddp_timeout) at {address}:{port} for the others, "
            f"and not all came: {' '.join(str(error).split()[:40])} See whether {world_size} processes were started, "
            "each with a RANK of its own and the same MASTER_ADDR and MASTER_PORT, and what those say that ended."
        ) from error


def _explain(board: FailureMonitor, session: int, error: BaseException, seconds: float) -> None:
    """Tell the others, and raise a better error where this one comes from them."""
    late = is_late(error)
    if not late and not is_lost(error):
        followed = isinstance(error, OtherProcessError)
        board.note(FOLLOWED if followed else FAILED, described(error), session)
        return
    if late:
        board.note(LATE, described(error), session)
    said = find_cause(board, session, late=late, seconds=seconds)
    board.note(FOLLOWED, said, session)
    raise OtherProcessError(f"{said} So {board.name(board.rank)} cannot go on.") from error
