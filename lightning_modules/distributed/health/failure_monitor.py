"""Identity, heartbeats and faults of all processes in the store of the process group; errors about lost ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from ...common.process_identity import process_state, process_token


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


class PeerInfo(NamedTuple):
    """Identity of a process."""

    rank: int
    pid: int
    token: str
    """See `process_token`."""
    host: str


class Fault(NamedTuple):
    """Fault reported by a process."""

    rank: int
    kind: str
    said: str
    session: int
    """Number of the training in its process; -1 if the process itself ends."""


class FailureMonitor:
    """Status of all processes in the store of the process group, readable without a collective.

    It uses a connection of its own, since that of the group may be blocked. All methods return what is known where the
    store cannot be reached any more.

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
        self._peers = {rank: PeerInfo(rank, os.getpid(), process_token(), socket.gethostname())}
        self._read: list[Fault] = []
        self._lock = threading.Lock()
        self._beats = 0
        self.is_reachable = True
        self.has_failed = False
        self._set(f"card/{rank}", self._peers[rank])

    def name(self, rank: int) -> str:
        """Return rank, pid and host of a process, as far as they are known."""
        peer = self._peers.get(rank)
        return f"process {rank}" if peer is None else f"process {rank} (pid {peer.pid} on {peer.host})"

    def read_peers(self) -> None:
        """Read the identities of the processes that have registered since."""
        for rank in range(self.world_size):
            if rank not in self._peers and (found := self._get(f"card/{rank}")):
                self._peers[rank] = PeerInfo(*found)

    def gone(self) -> list[int]:
        """Return the processes of this system that have ended, as the system reports them."""
        return [peer.rank for peer in list(self._peers.values()) if process_state(peer.token) == "ended"]

    def elsewhere(self) -> list[int]:
        """Return the processes on other systems, which only the store knows."""
        peers = self._peers
        return [
            rank
            for rank in range(self.world_size)
            if rank not in peers or process_state(peers[rank].token) == "elsewhere"
        ]

    def note(self, kind: str, said: str, session: int) -> None:
        """Report a fault of this process."""
        self.has_failed = True
        number = self._try(lambda: self._store.add("noted", 1))
        self._set(f"fault/{number}", Fault(self.rank, kind, said, session))

    def faults(self, session: int | None = None) -> list[Fault]:
        """Return the faults of a session and of ended processes, or all."""
        with self._lock:
            for number in range(len(self._read) + 1, (self._try(lambda: self._store.add("noted", 0)) or 0) + 1):
                found = self._get(f"fault/{number}")
                if found is None:  # being written
                    break
                self._read.append(Fault(*found))
        return [fault for fault in self._read if session is None or fault.session in (session, -1)]

    def mark_done(self, session: int) -> None:
        """Report that this process has finished a training."""
        self._set(f"done/{self.rank}", session)

    def done(self, rank: int) -> int:
        """Return the last training that a process has finished; 0 for none."""
        return self._get(f"done/{rank}") or 0

    def beat(self, doing: str) -> None:
        """Write a heartbeat."""
        self._beats += 1
        self._set(f"beat/{self.rank}", (self._beats, doing))

    def beats(self, ranks: Iterable[int]) -> dict[int, tuple[int, str]]:
        """Return the last heartbeat of each process that wrote one: its number, and what the process was doing."""
        found = {rank: self._get(f"beat/{rank}") for rank in ranks}
        return {rank: beat for rank, beat in found.items() if beat is not None}

    @property
    def store_rank(self) -> int | None:
        """Return the rank that hosts the store; None if the launcher does."""
        return None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0

    def _set(self, key: str, value: Any) -> None:
        self._try(lambda: self._store.set(key, json.dumps(value)))

    def _get(self, key: str) -> Any:
        """Return a value; None if it is not there."""
        found = self._try(lambda: self._store.get(key) if self._store.check([key]) else None)
        return None if found is None else json.loads(found)

    def _try(self, work: Callable[[], Any]) -> Any:
        """Access the store, unless it is known to be gone: torch prints many warnings for each attempt."""
        if self.is_reachable and self.store_rank is not None and self.store_rank in self.gone():
            self.is_reachable = False
        try:
            return work() if self.is_reachable else None
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
    from ...internals.torch_names import default_store

    store = default_store()
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
