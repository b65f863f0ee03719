"""Ownership of checkpoint folders: the writing process, the job of `torchrun`, and concurrent
trainings.

- An unfinished folder carries the token of its process in its name, so that a later run can
  distinguish the leftovers of a killed process from the work of a living one.
- A checkpoint names its job: processes restarted by `torchrun` resume only from checkpoints of
  their own job. `--rdzv-id` does not identify a job, since users reuse it; the log folder of each
  launcher does, and it stays the same across restarts.
- The process that writes checkpoints into a folder locks a file in it, so that a second training is
  refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..common.local_paths import StrPath
from ..common.process_identity import is_of_this_host, process_state

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

LOCK_NAME = ".training.lock"
"""Name of the locked file in a folder of checkpoints."""

JOB = "LIGHTRAINER_JOB"
"""Names the job of a process, where it is a trial of a sweep: its retries resume from its
checkpoints.
"""

IDLE_SECONDS = 3600.0
"""Seconds without a change after which a folder counts as abandoned if its owner is on another
machine.
"""

PATIENCE = 5.0
"""Seconds in which a lock may become free: that of a killed process does so once its memory is
freed.
"""

_TAKEN = (errno.EACCES, errno.EAGAIN)
_ATTEMPT = re.compile(r"[\\/]attempt_\d+[\\/]")

_launchers: tuple[str, ...] = ()
_training = 0
_reserved: dict[str, int] = {}  # folder -> process; a forked process does not have the lock


def is_abandoned(folder: Path, owner: str, *, is_reserved: bool = False) -> bool:
    """Return whether `folder` will not be finished: its owner has ended, or is on another machine
    and idle for long.

    A process of this host before a restart of machine or container cannot be told from one of
    another container of the same name: it has ended where this process has reserved the folder.

    Args:
        folder: an unfinished folder.
        owner: the token in its name, as `process_token` made it.
        is_reserved: this process has reserved the folder above it by `reserve_folder`.
    """
    state = process_state(owner)
    if state == "elsewhere" and is_reserved and is_of_this_host(owner):
        return True
    return state == "ended" or time.time() - _last_change(folder) > IDLE_SECONDS


def _last_change(folder: Path) -> float:
    newest = 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except FileNotFoundError:
            continue  # being written or deleted right now
    return newest


def current_job() -> str | None:
    """Return a unique name of the job of this process: its trial of a sweep, or its `torchrun`;
    None without one.
    """
    if os.environ.get(JOB):
        return os.environ[JOB]
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    found = _ATTEMPT.search(file)
    return f"{socket.gethostname()}:{file[: found.start()]}" if found else None


def restarts() -> int:
    """Return the number of restarts by `torchrun`."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def begin_training(launchers: Iterable[str]) -> None:
    """Begin a training, by which checkpoints are marked from now on.

    Args:
        launchers: one for each machine. A job lives as long as one of them does.
    """
    global _launchers, _training
    _launchers = tuple(sorted(set(launchers)))
    _training += 1


def job_mark() -> dict[str, Any] | None:
    """Return the mark of checkpoints: the job and the number of the training in its script; None
    without `torchrun`.
    """
    return {"launchers": list(_launchers), "training": _training} if _launchers else None


def is_of_this_training(folder: StrPath) -> bool:
    """Return whether a checkpoint was written by this training before its processes were
    restarted.
    """
    try:
        job = json.loads((Path(folder) / "_manifest.json").read_text(encoding="utf-8")).get("job")
    except (OSError, ValueError, AttributeError):
        return False
    if not isinstance(job, dict) or job.get("training") != _training:
        return False
    return bool(set(_launchers) & set(job.get("launchers") or ()))


class FolderInUseError(RuntimeError):
    """Another process trains with the same folder of checkpoints."""


@contextmanager
def reserve_folder(folder: StrPath) -> Iterator[bool]:
    """Reserve a folder of checkpoints for one process; trainings inside of a training of this
    process may share it.

    The lock is a POSIX one: it ends with its process, however that ends, forked processes do not
    inherit it, and machines that share a disk see it. On file systems without locks, nothing is
    checked.

    Args:
        folder: is created if needed.

    Yields:
        whether it is reserved.

    Raises:
        FolderInUseError: another process has the lock.
    """
    place = os.path.realpath(folder)
    if _reserved.get(place) == os.getpid():
        yield True
        return
    path = Path(place, LOCK_NAME)
    with ExitStack() as locked:
        is_reserved = _lock(path, locked)
        if is_reserved:
            _reserved[place] = os.getpid()
            locked.callback(_reserved.pop, place)
            locked.callback(path.unlink, missing_ok=True)
        yield is_reserved


def _lock(path: Path, locked: ExitStack) -> bool:
    """Lock a file until the stack is left, and write to it who this is; return False where files
    cannot be locked.
    """
    if fcntl is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = locked.enter_context(path.open("a+", encoding="utf-8"))
    except OSError:  # left by a killed process of another user
        return False
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:
                break
            # the other process deleted it as it ended
            file = locked.enter_context(path.open("a+", encoding="utf-8"))
            continue
        except OSError as error:
            if error.errno not in _TAKEN:
                return False
            taken = error
        if time.monotonic() > give_up:
            file.seek(0)
            raise FolderInUseError(
                f"output_dir={str(path.parent)!r} is in use: {file.read() or 'a process'} trains "
                "there. Pass another."
            ) from taken
        time.sleep(0.05)
    file.truncate(0)
    file.write(f"process {os.getpid()} of {socket.gethostname()}, since {time.ctime()},")
    file.flush()
    return True
