"""Train together with other processes: whatever happens to one of them, all hear of it by name.

From an error of torch that says that some connection is broken, the process that broke it is found. A thread gives
signs of life, and ends a process that does not notice that the others are gone.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from .failure_monitor import (
    FAILED,
    FOLLOWED,
    LATE,
    FailureMonitor,
    Fault,
    OtherProcessError,
    current_monitor,
    described,
    is_late,
    is_lost,
)

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
        self.launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._over = threading.Event()

    def run(self) -> None:
        """See `threading.Thread.run`."""
        since: float | None = None
        self._beat()  # so that one which is lost at once has been heard of
        while not self._over.wait(self.interval):
            self.board.look_around()
            self._beat()
            if self._is_orphan():
                self._end(f"torchrun (pid {self.launcher}), which started it, is gone.", failed=True)
            said = self._said()
            if said is None:
                since = None
                continue
            since = time.monotonic() if since is None else since
            if time.monotonic() - since >= self._grace() and not self._over.is_set():
                self._end(said)

    def _beat(self) -> None:
        self.board.beat(f"{self.doing()}, {place(sys._current_frames().get(self.main))}")

    def _is_orphan(self) -> bool:
        """Tell whether torchrun was killed: nobody ends this process any more, and it may be replaced by others."""
        return self.launcher is not None and os.getppid() != self.launcher

    def stop(self) -> None:
        """Let it be over: this process has come out of the training."""
        self._over.set()
        self.join()

    def _grace(self) -> float:
        """Who was waited for in vain has had its time."""
        others = [fault for fault in self.board.faults(self.session) if fault.rank != self.board.rank]
        return min(self.seconds, _LATE_GRACE) if others and all(one.kind == LATE for one in others) else self.seconds

    def _said(self) -> str | None:
        """Return what is known to have gone wrong with the others."""
        others = [fault for fault in self.board.faults(self.session) if fault.rank != self.board.rank]
        own = [fault for fault in self.board.faults(self.session) if fault.rank == self.board.rank]
        if others and not own:
            return cause_of(min(others, key=_importance), self.board)
        gone = [] if own else [rank for rank in self.board.gone() if not self._may_leave(rank)]
        return f"{self.board.name(gone[0])} is gone." if gone else None

    def _was_waited_for(self) -> bool:
        return any(fault.kind == LATE and fault.rank != self.board.rank for fault in self.board.faults(self.session))

    def _may_leave(self, rank: int) -> bool:
        """Tell whether a process may have come to the end of the training before this one."""
        return rank == self.board.keeper or self.board.done(rank) >= self.session

    def _end(self, said: str, *, failed: bool = False) -> None:
        frame = sys._current_frames().get(self.main)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        why = "" if failed else ", as it does not come out of the training by itself"
        message = f"{capital(self.board.name(self.board.rank))} is ended{why}: {said} It stands here:\n{stack}"
        noted = said if failed else f"it hung {place(frame)}"
        self.board.note(FAILED if failed or self._was_waited_for() else FOLLOWED, noted, self.session)
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
    """Return where a thread is, in the code that is nearest and of no library."""
    innermost = frame
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    found = frame or innermost
    if found is None:
        return "nowhere"
    code = found.f_code
    return f"in {code.co_name} ({os.path.basename(code.co_filename)}, line {found.f_lineno})"


_PATIENCE = 4.0
"""Seconds for the others to say, or show, what is the matter. It is there at once, as a rule."""


def find_cause(board: FailureMonitor, session: int, *, late: bool, seconds: float) -> str:
    """Return which process is to blame, and for what.

    Args:
        board: what all say of themselves.
        session: the training.
        late: this process waited for others in vain; otherwise it lost a connection.
        seconds: how long it may have waited.
    """
    before = board.beats(board.elsewhere())
    end = time.monotonic() + _PATIENCE
    while True:
        board.look_around(each=True)
        said = _known(board, session)
        if said is not None:
            return said
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    after = board.beats(range(board.world_size))
    silent = [rank for rank, beat in before.items() if after[rank].count == beat.count and rank != board.rank]
    heard = {fault.rank for fault in board.faults(session)} | {board.rank}
    silent = [rank for rank in silent if rank not in heard]
    if silent:
        return _sentences(board, silent, lambda rank: f"has not been heard of for {_PATIENCE:g} s")
    if not board.is_reachable:
        lost = "the launcher" if board.keeper is None else board.name(board.keeper)
        return f"{capital(lost)}, which keeps what the processes know of each other, cannot be reached."
    if not late:
        return "A process has left, or the network failed; none of the processes says more."
    return _of_late(board, heard, seconds)


def _known(board: FailureMonitor, session: int) -> str | None:
    """Return what failed in another process, or which process is there no more."""
    faults = [fault for fault in board.faults(session) if fault.rank != board.rank]
    failed = {fault.rank: fault for fault in reversed(faults) if fault.kind == FAILED}
    if failed:
        return _sentences(board, sorted(failed), lambda rank: f"failed: {failed[rank].said}")
    heard = {fault.rank for fault in faults}
    gone = [rank for rank in board.gone() if rank not in heard and rank != board.rank]
    if gone:
        return _sentences(
            board,
            gone,
            lambda rank: (
                "has come to the end of its own training, and left the others in theirs"
                if board.done(rank) >= session
                else "has ended without a word. It was killed (by SIGKILL, as the system does when memory runs out: "
                "see dmesg), crashed, or left the script before the others"
            ),
        )
    return next((fault.said for fault in faults if fault.kind not in (FAILED, LATE)), None)


def _of_late(board: FailureMonitor, heard: set[int], seconds: float) -> str:
    """Return those that did not come, and what they were doing."""
    beats = board.beats(range(board.world_size))
    missing = [rank for rank in range(board.world_size) if rank not in heard]

    def doing(rank: int) -> str:
        return f" and was last seen {beats[rank].doing}" if rank in beats else ""

    if missing:
        return _sentences(
            board, missing, lambda rank: f"did not come along for {seconds:g} s (ddp_timeout){doing(rank)}"
        )
    places = "; ".join(f"{board.name(rank)}{doing(rank)}" for rank in range(board.world_size))
    return f"All processes waited for each other for {seconds:g} s (ddp_timeout), at different places: {places}."


def _sentences(board: FailureMonitor, ranks: list[int], about: Callable[[int], str]) -> str:
    shown = [f"{capital(board.name(rank))} {about(rank).rstrip('. ')}." for rank in ranks[:8]]
    return " ".join([*shown, *([f"So did {len(ranks) - 8} more."] if len(ranks) > 8 else [])])


def capital(text: str) -> str:
    """As the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def cause_of(fault: Fault, board: FailureMonitor) -> str:
    """Return what another process said, with its name."""
    if fault.kind == FAILED:
        return f"{capital(board.name(fault.rank))} failed: {fault.said.rstrip('. ')}."
    if fault.kind == LATE:
        return f"{capital(board.name(fault.rank))} has waited for this one as long as it may (ddp_timeout)."
    return fault.said
