"""Report a failure of one process in all of them, with its rank and cause.

From an error of torch about a broken connection, the process that broke it is found. A thread writes heartbeats, and
ends a process that does not notice that the others are gone.
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
def monitor_peers(seconds: float = 1800, *, doing: Callable[[], str] = str, acts: bool = True) -> Iterator[None]:
    """Monitor the other processes while training or evaluating; all processes have to enter the context.

    An error is reported to the others. If it is about another process that was lost or timed out, it is replaced by one
    that names that process and the cause, as far as it is known. A nested context does nothing.

    Args:
        seconds: the timeout of torch's collectives.
        doing: describes the progress of this process, for errors of others that wait for it.
        acts: also end this process if it hangs after the others are gone.

    Raises:
        OtherProcessError: another process failed, is gone, or timed out.
    """
    global _sessions, _inside
    monitor = None if _inside else current_monitor()
    if monitor is None:
        yield
        return
    _sessions += 1
    _inside, session = True, _sessions
    monitor.read_peers()
    watch = Watchdog(monitor, session, min(seconds, _LONGEST_GRACE), doing) if acts else None
    if watch is not None:
        watch.start()
    try:
        yield
    except BaseException as error:
        _explain(monitor, session, error, seconds)
        raise
    else:
        monitor.mark_done(session)
    finally:
        _inside = False
        if watch is not None:
            watch.stop()


@contextlib.contextmanager
def rendezvous(rank: int | None, world_size: int, seconds: float) -> Iterator[None]:
    """Explain a timeout of the rendezvous that runs in the context.

    Args:
        rank: of this process.
        world_size: number of processes.
        seconds: the timeout.

    Raises:
        OtherProcessError: not all processes joined; names the process that waited, and the address.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_late(error) and not is_lost(error):
            raise
        address, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        waited = f"Process {rank} of {world_size} waited {seconds:g} s (ddp_timeout) at {address}:{port} for the others"
        raise OtherProcessError(f"{waited}, and not all came: {' '.join(str(error).split()[:40])}") from error


def _explain(monitor: FailureMonitor, session: int, error: BaseException, seconds: float) -> None:
    """Report an error to the others; replace one that they caused by one that names the cause."""
    late = is_late(error)
    if not late and not is_lost(error):
        followed = isinstance(error, OtherProcessError)
        monitor.note(FOLLOWED if followed else FAILED, described(error), session)
        return
    if late:
        monitor.note(LATE, described(error), session)
    said = find_cause(monitor, session, late=late, seconds=seconds)
    monitor.note(FOLLOWED, said, session)
    raise OtherProcessError(f"{said} So {monitor.name(monitor.rank)} cannot go on.") from error


_LATE_GRACE = 5.0
"""Seconds longer than the others search for a late process, so that it finds out itself that it was late."""

_LIBRARIES = ("torch", "lightning", "lightrainer", "threading", "contextlib")


class Watchdog(threading.Thread):
    """Thread that reads the monitor once a second while this process trains.

    A process notices the failure of another one in its next collective: gloo raises at once when a connection is lost.
    It does not if the other process lives on, or if this one hangs outside of a collective. Then it is ended from here,
    with a stack trace.

    Args:
        monitor: the monitor.
        session: number of the training.
        seconds: time for this process to leave the training by itself.
        doing: describes the progress of this process.
    """

    interval = 1.0

    def __init__(self, monitor: FailureMonitor, session: int, seconds: float, doing: Callable[[], str]) -> None:
        super().__init__(name="lightrainer-peers", daemon=True)
        self.monitor = monitor
        self.session = session
        self.seconds = seconds
        self.doing = doing
        self.main = threading.get_ident()
        self.launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._over = threading.Event()

    def run(self) -> None:
        """See `threading.Thread.run`."""
        since: float | None = None
        self._beat()  # so that a process lost at once has a heartbeat
        while not self._over.wait(self.interval):
            self.monitor.read_peers()
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
        self.monitor.beat(f"{self.doing()}, {place(sys._current_frames().get(self.main))}")

    def _is_orphan(self) -> bool:
        """Return whether torchrun was killed: it can no longer end this process, which may be replaced by others."""
        return self.launcher is not None and os.getppid() != self.launcher

    def stop(self) -> None:
        """Stop the thread after the training."""
        self._over.set()
        self.join()

    def _others(self) -> list[Fault]:
        """Return the faults of the other processes."""
        return [fault for fault in self.monitor.faults(self.session) if fault.rank != self.monitor.rank]

    def _grace(self) -> float:
        """Return the seconds before this process is ended: fewer if the others timed out waiting for it."""
        others = self._others()
        return min(self.seconds, _LATE_GRACE) if others and all(one.kind == LATE for one in others) else self.seconds

    def _said(self) -> str | None:
        """Return the known fault of another process; None without one, or if this process has failed itself."""
        if any(fault.rank == self.monitor.rank for fault in self.monitor.faults(self.session)):
            return None
        if others := self._others():
            return cause_of(min(others, key=lambda fault: (FAILED, FOLLOWED, LATE).index(fault.kind)), self.monitor)
        gone = [rank for rank in self.monitor.gone() if not self._may_leave(rank)]
        return f"{self.monitor.name(gone[0])} is gone." if gone else None

    def _may_leave(self, rank: int) -> bool:
        """Return whether a process may have finished the training before this one."""
        return rank == self.monitor.store_rank or self.monitor.done(rank) >= self.session

    def _end(self, said: str, *, failed: bool = False) -> None:
        frame = sys._current_frames().get(self.main)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        why = "" if failed else ", as it does not come out of the training by itself"
        message = f"{capital(self.monitor.name(self.monitor.rank))} is ended{why}: {said} It stands here:\n{stack}"
        late = any(fault.kind == LATE for fault in self._others())
        noted = said if failed else f"it hung {place(frame)}"
        self.monitor.note(FAILED if failed or late else FOLLOWED, noted, self.session)
        logger.critical(message)
        if not logger.isEnabledFor(logging.CRITICAL):
            print(message, file=sys.stderr)
        for child in multiprocessing.active_children():
            child.kill()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)


def place(frame: FrameType | None) -> str:
    """Return the innermost position of a thread outside of libraries."""
    innermost = frame
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    found = frame or innermost
    if found is None:
        return "nowhere"
    code = found.f_code
    return f"in {code.co_name} ({os.path.basename(code.co_filename)}, line {found.f_lineno})"


_PATIENCE = 4.0
"""Seconds to wait for reports or heartbeats of the others, which usually are there at once."""


def find_cause(monitor: FailureMonitor, session: int, *, late: bool, seconds: float) -> str:
    """Return a sentence that names the process that caused an error, and its fault.

    Args:
        monitor: the monitor.
        session: number of the training.
        late: True if this process timed out, False if it lost a connection.
        seconds: the timeout.
    """
    before = monitor.beats(monitor.elsewhere())
    end = time.monotonic() + _PATIENCE
    while (said := _known(monitor, session)) is None and time.monotonic() <= end:
        time.sleep(0.1)
    if said is not None:
        return said
    after = monitor.beats(before)
    heard = {fault.rank for fault in monitor.faults(session)} | {monitor.rank}
    silent = [rank for rank, beat in before.items() if after.get(rank) == beat and rank not in heard]
    if silent:
        return _sentences(monitor, silent, lambda rank: f"has sent no heartbeat for {_PATIENCE:g} s")
    if not monitor.is_reachable:
        lost = "the launcher" if monitor.store_rank is None else monitor.name(monitor.store_rank)
        return f"{capital(lost)}, which keeps what the processes know of each other, cannot be reached."
    if not late:
        return "A process has left, or the network failed; none of the processes says more."
    return _of_late(monitor, heard, seconds)


def _known(monitor: FailureMonitor, session: int) -> str | None:
    """Return the reported failure of another process, or the processes that have ended."""
    monitor.read_peers()
    faults = [fault for fault in monitor.faults(session) if fault.rank != monitor.rank]
    failed = {fault.rank: fault for fault in reversed(faults) if fault.kind == FAILED}
    if failed:
        return _sentences(monitor, sorted(failed), lambda rank: f"failed: {failed[rank].said}")
    heard = {fault.rank for fault in faults}
    gone = [rank for rank in monitor.gone() if rank not in heard and rank != monitor.rank]
    if gone:
        return _sentences(
            monitor,
            gone,
            lambda rank: (
                "has come to the end of its own training, and left the others in theirs"
                if monitor.done(rank) >= session
                else "has ended without a word. It was killed (by SIGKILL, as the system does when memory runs out: "
                "see dmesg), crashed, or left the script before the others"
            ),
        )
    return next((fault.said for fault in faults if fault.kind not in (FAILED, LATE)), None)


def _of_late(monitor: FailureMonitor, heard: set[int], seconds: float) -> str:
    """Return the processes that missed a timeout, with their last heartbeats."""
    beats = monitor.beats(range(monitor.world_size))
    missing = [rank for rank in range(monitor.world_size) if rank not in heard]

    def doing(rank: int) -> str:
        return f" and was last seen {beats[rank][1]}" if rank in beats else ""

    if missing:
        return _sentences(
            monitor, missing, lambda rank: f"did not reach the collective for {seconds:g} s (ddp_timeout){doing(rank)}"
        )
    places = "; ".join(f"{monitor.name(rank)}{doing(rank)}" for rank in range(monitor.world_size))
    return f"All processes waited for each other for {seconds:g} s (ddp_timeout), at different places: {places}."


def _sentences(monitor: FailureMonitor, ranks: list[int], about: Callable[[int], str]) -> str:
    shown = [f"{capital(monitor.name(rank))} {about(rank).rstrip('. ')}." for rank in ranks[:8]]
    return " ".join([*shown, *([f"So did {len(ranks) - 8} more."] if len(ranks) > 8 else [])])


def capital(text: str) -> str:
    """Capitalise the first letter."""
    return text[:1].upper() + text[1:]


def cause_of(fault: Fault, monitor: FailureMonitor) -> str:
    """Return the fault of another process as a sentence."""
    if fault.kind == FAILED:
        return f"{capital(monitor.name(fault.rank))} failed: {fault.said.rstrip('. ')}."
    if fault.kind == LATE:
        return f"{capital(monitor.name(fault.rank))} has waited for this one as long as it may (ddp_timeout)."
    return fault.said
