"""A thread that gives signs of life, and ends a process that does not notice that the others are gone."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from .causes import capital, cause_of
from .failure_monitor import FAILED, FOLLOWED, LATE, FailureMonitor, Fault

logger = logging.getLogger(__name__)

_LATE_GRACE = 5.0
"""Longer than the others look for whoever did not come; in that time one that was late itself finds out."""

_LIBRARIES = ("torch", "lightning", "lightrainer", "threading", "contextlib")


class Watch(threading.Thread):
    """Looks at the board once a second while this process trains.

    Where another process has failed, this one finds out when it exchanges something with it: gloo notices at once that
    a connection is gone. It does not where the other one lives on, nor where this one never comes to an exchange since
    it hangs. Then nothing can wake it, and it is ended from here, with the place at which it stood.

    Args:
        board: the board.
        session: which training it is.
        seconds: the time to come out of the training by itself.
        doing: the place in the training, in some words.
    """

    interval = 1.0

    def __init__(self, board: FailureMonitor, session: int, seconds: float, doing: Callable[[], str]) -> None:
        super().__init__(name="lightrainer-peers", daemon=True)
        self.board = board
        self.session = session
        self.seconds = seconds
        self.doing = doing
        self.main = threading.get_ident()
        self._over = threading.Event()

    def run(self) -> None:
        """See `threading.Thread.run`."""
        since: float | None = None
        while not self._over.wait(self.interval):
            self.board.look_around()
            self.board.beat(f"{self.doing()}, {place(sys._current_frames().get(self.main))}")
            said = self._said()
            if said is None:
                since = None
                continue
            since = time.monotonic() if since is None else since
            if time.monotonic() - since >= self._grace() and not self._over.is_set():
                self._end(said)

    def stop(self) -> None:
        """Let it be over: this process has come out of the training."""
        self._over.set()
        self.join()

    def _grace(self) -> float:
        """Who was waited for in vain has had its time."""
        others = [fault for fault in self.board.faults(self.session) if fault.rank != self.board.rank]
        return min(self.seconds, _LATE_GRACE) if others and all(one.kind == LATE for one in others) else self.seconds

    def _said(self) -> str | None:
        """What is known to have gone wrong with the others."""
        others = [fault for fault in self.board.faults(self.session) if fault.rank != self.board.rank]
        own = [fault for fault in self.board.faults(self.session) if fault.rank == self.board.rank]
        if others and not own:
            return cause_of(min(others, key=_importance), self.board)
        gone = [] if own else [rank for rank in self.board.gone() if not self._may_leave(rank)]
        return f"{self.board.name(gone[0])} is gone." if gone else None

    def _was_waited_for(self) -> bool:
        return any(fault.kind == LATE and fault.rank != self.board.rank for fault in self.board.faults(self.session))

    def _may_leave(self, rank: int) -> bool:
        """Whether a process may have come to the end of the training before this one."""
        return rank == self.board.keeper or self.board.done(rank) >= self.session

    def _end(self, said: str) -> None:
        frame = sys._current_frames().get(self.main)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        message = (
            f"{capital(self.board.name(self.board.rank))} is ended, as it does not come out of the training by itself: "
            f"{said} It stands here:\n{stack}"
        )
        where = place(frame)
        self.board.note(FAILED if self._was_waited_for() else FOLLOWED, f"it hung {where}", self.session)
        logger.critical(message)
        if not logger.isEnabledFor(logging.CRITICAL):
            print(message, file=sys.stderr)
        for child in multiprocessing.active_children():
            child.kill()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)


def _importance(fault: Fault) -> int:
    return (FAILED, FOLLOWED, LATE).index(fault.kind)


def place(frame: FrameType | None) -> str:
    """Where a thread is, in the code that is nearest and of no library."""
    innermost = frame
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    found = frame or innermost
    if found is None:
        return "nowhere"
    code = found.f_code
    return f"in {code.co_name} ({os.path.basename(code.co_filename)}, line {found.f_lineno})"
