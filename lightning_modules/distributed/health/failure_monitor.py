"""Identity, heartbeats and faults of all processes in the store of the process group; errors about lost ones."""

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
    """Another process failed, is gone, or missed a timeout."""


# Messages of gloo, NCCL and torch's stores, which have no error classes for it in some versions.
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
    """Return whether torch timed out waiting for another process."""
    return _of_torch(error) and bool(_LATE.search(str(error)))


def is_lost(error: BaseException) -> bool:
    """Return whether torch lost the connection to another process."""
    return _of_torch(error) and not is_late(error) and bool(_LOST.search(str(error)))


def _of_torch(error: BaseException) -> bool:
    """Return whether an error comes from torch's communication; other socket errors are a dataset's or a tracker's."""
    if not isinstance(error, RuntimeError) or isinstance(error, OtherProcessError):
        return False
    return type(error).__module__.startswith("torch.distributed") or (
        type(error) is RuntimeError and bool(_TALKS.search(str(error)))
    )


FAILED, FOLLOWED, LATE = "failed", "followed", "late"
"""Kinds of faults: an error of the process itself; one caused by another process; a timeout waiting for others."""


@dataclass(frozen=True)
class PeerInfo:
    """Identity of a process."""

    rank: int
    pid: int
    owner: str
    host: str
    system: str
    """Kernel and pid namespace; processes of one system can check each other's pids."""


@dataclass(frozen=True)
class Fault:
    """Fault reported by a process."""

    rank: int
    kind: str
    said: str
    session: int
    """Number of the training in its process; -1 if the process itself ends."""


@dataclass(frozen=True)
class Beat:
    """Heartbeat of a process."""

    count: int
    at: float
    doing: str


class FailureMonitor:
    """Status of all processes in the store of the process group, readable without a collective.

    It uses a connection of its own, since that of the group may be blocked.

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
        self._peers: dict[int, PeerInfo] = {
            rank: PeerInfo(rank, os.getpid(), owner_token(), socket.gethostname(), _system())
        }
        self._read: list[Fault] = []
        self._lock = threading.Lock()
        self._beats = 0
        self.is_reachable = True
        self.has_failed = False
        self._try(lambda: self._store.set(f"card/{rank}", json.dumps(asdict(self._peers[rank]))))

    def name(self, rank: int) -> str:
        """Return rank, pid and host of a process, as far as they are known."""
        peer = self._peers.get(rank)
        return f"process {rank}" if peer is None else f"process {rank} (pid {peer.pid} on {peer.host})"

    def read_peers(self, each: bool = False) -> None:
        """Read the identities of the others once all have registered; with `each`, those that have."""
        keys = [f"card/{rank}" for rank in range(self.world_size) if rank not in self._peers]
        if not keys or not self._can_ask():
            return
        if not self._try(lambda: self._store.check(keys)):
            keys = [key for key in keys if each and self._try(lambda key=key: self._store.check([key]))]
        for key in keys:
            text = self._try(lambda key=key: self._store.get(key))
            if text is not None:
                peer = PeerInfo(**json.loads(text))
                self._peers[peer.rank] = peer

    def gone(self) -> list[int]:
        """Return the processes of this system that have ended, as the system reports them."""
        here = _system()
        return [peer.rank for peer in list(self._peers.values()) if peer.system == here and is_gone(peer.owner)]

    def elsewhere(self) -> list[int]:
        """Return the processes on other systems, which only the store knows."""
        here, peers = _system(), self._peers
        return [rank for rank in range(self.world_size) if rank not in peers or peers[rank].system != here]

    def note(self, kind: str, said: str, session: int) -> None:
        """Report a fault of this process."""
        self.has_failed = True
        fault = json.dumps(asdict(Fault(self.rank, kind, said, session)))
        if self._can_ask():
            number = self._try(lambda: self._store.add("noted", 1))
            if number is not None:
                self._try(lambda: self._store.set(f"fault/{number}", fault))

    def faults(self, session: int | None = None) -> list[Fault]:
        """Return the faults of a session and of ended processes, or all."""
        with self._lock:
            noted = self._try(lambda: self._store.add("noted", 0)) if self._can_ask() else 0
            for number in range(len(self._read) + 1, (noted or 0) + 1):
                if not self._try(lambda number=number: self._store.check([f"fault/{number}"])):
                    break  # being written
                text = self._try(lambda number=number: self._store.get(f"fault/{number}"))
                if text is None:
                    break
                self._read.append(Fault(**json.loads(text)))
        return [fault for fault in self._read if session is None or fault.session in (session, -1)]

    def mark_done(self, session: int) -> None:
        """Report that this process has finished a training."""
        if self._can_ask():
            self._try(lambda: self._store.set(f"done/{self.rank}", str(session)))

    def done(self, rank: int) -> int:
        """Return the last training that a process has finished; 0 for none."""
        key = f"done/{rank}"
        said = (
            self._try(lambda: self._store.get(key) if self._store.check([key]) else None) if self._can_ask() else None
        )
        return int(said or 0)

    def beat(self, doing: str) -> None:
        """Write a heartbeat."""
        self._beats += 1
        said = json.dumps([self._beats, time.time(), doing])
        if self._can_ask():
            self._try(lambda: self._store.set(f"beat/{self.rank}", said))

    def beats(self, ranks: Iterable[int]) -> dict[int, Beat]:
        """Return the last heartbeat of each process that wrote one."""
        found = {}
        for rank in ranks:
            key = f"beat/{rank}"
            if self._can_ask() and self._try(lambda key=key: self._store.check([key])):
                said = self._try(lambda key=key: self._store.get(key))
                if said is not None:
                    found[rank] = Beat(*json.loads(said))
        return found

    @property
    def store_rank(self) -> int | None:
        """Return the rank that hosts the store; None if the launcher does."""
        return None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0

    def _can_ask(self) -> bool:
        """Return whether the store is reachable; torch prints many warnings for each attempt on one that is not."""
        if self.store_rank is not None and self.store_rank in self.gone():
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
    """Return the monitor of the default process group, made at the first call; None in a single process."""
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
    """Drop the monitor of a process group that is about to be destroyed."""
    global _known
    _known = None


@functools.cache
def _system() -> str:
    """Return the kernel's boot id and the pid namespace, which differs between containers."""
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
    """Report an error that ends this process to the others."""
    before = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        with contextlib.suppress(Exception):
            if _known is not None and os.getpid() == pid:
                _known[1].note(FOLLOWED if isinstance(error, OtherProcessError) else FAILED, described(error), -1)
        before(kind, error, traceback)

    sys.excepthook = say
