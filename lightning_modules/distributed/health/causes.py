"""From an error of torch that says that some connection is broken, to the process that broke it."""

from __future__ import annotations

import time
from collections.abc import Callable

from .failure_monitor import FAILED, LATE, FailureMonitor, Fault

_PATIENCE = 4.0
"""Seconds for the others to say, or show, what is the matter. It is there at once, as a rule."""


def find_cause(board: FailureMonitor, session: int, *, late: bool, seconds: float) -> str:
    """Which process is to blame, and for what.

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
    """What failed in another process, or which process is there no more."""
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
    """Those that did not come, and what they were doing."""
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
    """What another process said, with its name."""
    if fault.kind == FAILED:
        return f"{capital(board.name(fault.rank))} failed: {fault.said.rstrip('. ')}."
    if fault.kind == LATE:
        return f"{capital(board.name(fault.rank))} has waited for this one as long as it may (ddp_timeout)."
    return fault.said
