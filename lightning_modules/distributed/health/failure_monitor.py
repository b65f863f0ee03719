"""The store in which processes say who they are, that they are there, and what went wrong; errors of torch about it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...common.process_identity import is_gone, owner_token


class OtherProcessError(RuntimeError):
    """Something went wrong in another process than this one."""


# What gloo, NCCL and the stores of torch write. They have no classes for it, or not in all versions.
_LOST = re.compile(
    r"connection closed by|connection reset|connection refused|connection was likely closed|broken pipe|socket closed|"
    r"remote process exited|remote process has been terminated|network error|ncclRemoteError|ncclSystemError|"
    r"pair closure|communicator was aborted|socket timeout|no route to host|software caused connection abort",
    re.IGNORECASE,
)
_LATE = re.compile(
    r"timed out waiting \d+ ?ms|timed out after|wait timeout after|watchdog.*time(d ?)?out|operation timed out|"
    r"timed out initializing|timeout\(ms\)",
    re.IGNORECASE,
)
_TALKS = re.compile(r"gloo|nccl|store|socket|c10d|process ?group|rank|peer", re.IGNORECASE)


def is_late(error: BaseException) -> bool:
    """Tell whether torch waited for another process as long as it may."""
    return _of_torch(error) and bool(_LATE.search(str(error)))


def is_lost(error: BaseException) -> bool:
    """Tell whether torch lost the connection to another process."""
    return _of_torch(error) and not is_late(error) and bool(_LOST.search(str(error)))


def _of_torch(error: BaseException) -> bool:
    """Tell whether it may be about processes: errors of sockets in general are a dataset's, or a tracker's."""
    if not isinstance(error, RuntimeError) or isinstance(error, OtherProcessError):
        return False
    return type(error).__module__.startswith("torch.distributed") or (
        type(error) is RuntimeError and bool(_TALKS.search(str(error)))
    )


FAILED, FOLLOWED, LATE = "failed", "followed", "late"
"""An error of the process itself; one that came from another process; it waited for others in vain."""


@dataclass(frozen=True)
class PeerInfo:
    """Who a process is."""

    rank: int
    pid: int
    owner: str
    host: str
    system: str
    """Processes of one system see each other."""


@dataclass(frozen=True)
class Fault:
    """What a process says when it cannot go on."""

    rank: int
    kind: str
    said: str
    session: int
    """The training in which it was, counted in each process; -1 where the process itself ends."""


@dataclass(frozen=True)
class Beat:
    """A sign of life."""

    count: int
    at: float
    doing: str


class FailureMonitor:
    """In the store of the process group, which it needs no exchange to read: so also where others do not answer.

    A connection of its own is used, since the one of the group may be waiting for somebody.

    Args:
        store: of the process group.
        rank: of this process.
        world_size: number of processes.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        from torch.distributed.distributed_c10d import PrefixStore

        own = store.clone() if hasattr(store, "clone") else store
        if own is not store:
            own.set_timeout(timedelta(seconds=10))
        self._store: Any = PrefixStore("lightrainer/peers", own)
        self.rank = rank
        self.world_size = world_size
        self._cards: dict[int, PeerInfo] = {
            rank: PeerInfo(rank, os.getpid(), owner_token(), socket.gethostname(), _system())
        }
        self._read: list[Fault] = []
        self._lock = threading.Lock()
        self._beats = 0
        self.is_reachable = True
        self.has_failed = False
        self._try(lambda: self._store.set(f"card/{rank}", json.dumps(asdict(self._cards[rank]))))

    def name(self, rank: int) -> str:
        """Return a process as people find it: its rank, pid and host, as far as they are known."""
        card = self._cards.get(rank)
        return f"process {rank}" if card is None else f"process {rank} (pid {card.pid} on {card.host})"

    def look_around(self, each: bool = False) -> None:
        """Read who the others are, once all of them have said so; with `each` those who have."""
        keys = [f"card/{rank}" for rank in range(self.world_size) if rank not in self._cards]
        if not keys or not self._can_ask():
            return
        if not self._try(lambda: self._store.check(keys)):
            keys = [key for key in keys if each and self._try(lambda key=key: self._store.check([key]))]
        for key in keys:
            text = self._try(lambda key=key: self._store.get(key))
            if text is not None:
                card = PeerInfo(**json.loads(text))
                self._cards[card.rank] = card

    def gone(self) -> list[int]:
        """Return those on this system that are there no more; what is asked is the system, not the board."""
        here = _system()
        return [card.rank for card in list(self._cards.values()) if card.system == here and is_gone(card.owner)]

    def elsewhere(self) -> list[int]:
        """Return those on other hosts, of which only the board can tell."""
        here, cards = _system(), self._cards
        return [rank for rank in range(self.world_size) if rank not in cards or cards[rank].system != here]

    def note(self, kind: str, said: str, session: int) -> None:
        """Say that something went wrong here."""
        self.has_failed = True
        fault = json.dumps(asdict(Fault(self.rank, kind, said, session)))
        if self._can_ask():
            number = self._try(lambda: self._store.add("noted", 1))
            if number is not None:
                self._try(lambda: self._store.set(f"fault/{number}", fault))

    def faults(self, session: int | None = None) -> list[Fault]:
        """Return what has gone wrong: in a session and with whole processes, or all of it."""
        with self._lock:
            noted = self._try(lambda: self._store.add("noted", 0)) if self._can_ask() else 0
            for number in range(len(self._read) + 1, (noted or 0) + 1):
                if not self._try(lambda number=number: self._store.check([f"fault/{number}"])):
                    break  # it is being written
                text = self._try(lambda number=number: self._store.get(f"fault/{number}"))
                if text is None:
                    break
                self._read.append(Fault(**json.loads(text)))
        return [fault for fault in self._read if session is None or fault.session in (session, -1)]

    def say_done(self, session: int) -> None:
        """Say that this process has come to the end of a training."""
        if self._can_ask():
            self._try(lambda: self._store.set(f"done/{self.rank}", str(session)))

    def done(self, rank: int) -> int:
        """Return the last training to whose end a process has come; 0 if to none."""
        key = f"done/{rank}"
        said = (
            self._try(lambda: self._store.get(key) if self._store.check([key]) else None) if self._can_ask() else None
        )
        return int(said or 0)

    def beat(self, doing: str) -> None:
        """Give a sign of life."""
        self._beats += 1
        said = json.dumps([self._beats, time.time(), doing])
        if self._can_ask():
            self._try(lambda: self._store.set(f"beat/{self.rank}", said))

    def beats(self, ranks: Iterable[int]) -> dict[int, Beat]:
        """Return the last sign of life of each process that gave one."""
        found = {}
        for rank in ranks:
            key = f"beat/{rank}"
            if self._can_ask() and self._try(lambda key=key: self._store.check([key])):
                said = self._try(lambda key=key: self._store.get(key))
                if said is not None:
                    found[rank] = Beat(*json.loads(said))
        return found

    @property
    def keeper(self) -> int | None:
        """The process without which there is no board; None where it is the launcher."""
        return None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0

    def _can_ask(self) -> bool:
        """Tell whether the board is there. torch prints a page of warnings for each attempt on one that is not."""
        if self.keeper is not None and self.keeper in self.gone():
            self.is_reachable = False
        return self.is_reachable

    def _try(self, work: Callable[[], Any]) -> Any:
        if not self.is_reachable:
            return None
        try:
            return work()
        except RuntimeError:
            self.is_reachable = False
            return None


_known: tuple[weakref.ref[Any], FailureMonitor] | None = None


def current_monitor() -> FailureMonitor | None:
    """Return the board of the default process group, made when it is first asked for; None in a single process."""
    global _known
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() == 1:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    if store is None:  # MPI has none
        return None
    if _known is None or _known[0]() is not store:
        _known = weakref.ref(store), FailureMonitor(store, distributed.get_rank(), distributed.get_world_size())
        _warn_at_the_end(os.getpid())
    return _known[1]


def leave_monitor() -> None:
    """Forget the board of a process group that is about to be destroyed."""
    global _known
    _known = None


@functools.cache
def _system() -> str:
    """Return the kernel and the namespace in which pids mean something; of two containers each has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()}"


def described(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _warn_at_the_end(pid: int) -> None:
    """Let an error that ends this process be read by the others."""
    before = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        with contextlib.suppress(Exception):
            if _known is not None and os.getpid() == pid:
                _known[1].note(FOLLOWED if isinstance(error, OtherProcessError) else FAILED, described(error), -1)
        before(kind, error, traceback)

    sys.excepthook = say
