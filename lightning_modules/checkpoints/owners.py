"""Ownership of checkpoint folders: writing processes, jobs of `torchrun`, concurrent trainings.

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
from collections.abc import Generator, Iterable
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
"""Environment variable with the name of the job, in a trial of a sweep. Retries of the trial have
the same job, so that they resume from its checkpoints.
"""

IDLE_SECONDS = 3600.0
"""Seconds without a change after which a folder counts as abandoned if its owner is on another
machine.
"""

PATIENCE = 5.0
"""Seconds to wait for a lock: a killed process keeps its lock until its memory is freed."""

_LOCKED_BY_OTHER = (errno.EACCES, errno.EAGAIN)
_ATTEMPT = re.compile(r"[\\/]attempt_\d+[\\/]")

_launchers: tuple[str, ...] = ()
_training = 0

_reserved: dict[str, int] = {}
"""The process that holds the lock of each folder: a forked process does not inherit the lock."""


def is_abandoned(folder: Path, owner: str, *, is_reserved: bool = False) -> bool:
    """Return whether a folder will never be completed.

    That is the case if its owner has ended, or if it is on another machine and has changed nothing
    for long. A process from before a restart of this machine or container cannot be distinguished
    from one in another container of the same name. It counts as ended if this process has reserved
    the folder.

    Args:
        folder: an unfinished folder.
        owner: the token in its name, as `process_token` made it.
        is_reserved: this process has reserved the folder above it by `reserve_folder`.
    """
    state = process_state(owner)
    was_before_restart = state == "elsewhere" and is_reserved and is_of_this_host(owner)
    if state == "ended" or was_before_restart:
        return True
    return time.time() - _last_change(folder) > IDLE_SECONDS


def _last_change(folder: Path) -> float:
    newest = 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except FileNotFoundError:
            # It is being written or deleted right now.
            continue
    return newest


def current_job() -> str | None:
    """Return a unique name of the job of this process; None without one.

    The job is a trial of a sweep, or the processes of `torchrun`.
    """
    trial = os.environ.get(JOB)
    if trial:
        return trial

    # The path before the attempt is the log folder of the launcher.
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    attempt = _ATTEMPT.search(file)
    if attempt is None:
        return None
    return f"{socket.gethostname()}:{file[: attempt.start()]}"


def restarts() -> int:
    """Return the number of restarts by `torchrun`."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if not text.isdigit():
        return 0
    return int(text)


def begin_training(launchers: Iterable[str]) -> None:
    """Begin a training, with which checkpoints are marked from now on.

    Args:
        launchers: names of the launchers, one for each machine. A job lives as long as one of them.
    """
    global _launchers, _training
    _launchers = tuple(sorted(set(launchers)))
    _training += 1


def job_mark() -> dict[str, object] | None:
    """Return the entry of manifests that names the job, and the number of the training in its
    script; None without `torchrun`.
    """
    if not _launchers:
        return None
    return {"launchers": list(_launchers), "training": _training}


def is_of_this_training(folder: StrPath) -> bool:
    """Return whether this training wrote a checkpoint, before its processes were restarted."""
    path = Path(folder) / "_manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        job: dict[str, Any] = dict(manifest.get("job") or {})
        launchers: set[str] = set(job.get("launchers") or ())
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    is_same_training = job.get("training") == _training
    return is_same_training and not launchers.isdisjoint(_launchers)


class FolderInUseError(RuntimeError):
    """Another process trains with the same folder of checkpoints."""


@contextmanager
def reserve_folder(folder: StrPath) -> Generator[bool]:
    """Reserve a folder of checkpoints for one process.

    Trainings inside of a training of this process may share it. The lock is a POSIX one: it ends
    with its process, however that ends, forked processes do not inherit it, and machines that share
    a disk see it. On file systems without locks, nothing is checked.

    Args:
        folder: is created if needed.

    Yields:
        whether it is reserved.

    Raises:
        FolderInUseError: another process has the lock.
    """
    real_path = os.path.realpath(folder)
    if _reserved.get(real_path) == os.getpid():
        yield True
        return

    path = Path(real_path, LOCK_NAME)
    with ExitStack() as locked:
        is_reserved = _lock(path, locked)
        if is_reserved:
            _reserved[real_path] = os.getpid()
            # Undone in reverse order: the file is deleted while it is locked.
            locked.callback(_reserved.pop, real_path)
            locked.callback(path.unlink, missing_ok=True)
        yield is_reserved


def _lock(path: Path, locked: ExitStack) -> bool:
    """Lock a file until the stack is left, and write into it which process has the lock.

    Returns:
        False where files cannot be locked.
    """
    if fcntl is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = locked.enter_context(path.open("a+", encoding="utf-8"))
    except OSError:
        # A killed process of another user left the file.
        return False

    # A process that was killed keeps its lock until its memory is freed.
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:
                break
            # The other process deleted the file when it ended: lock the new file of that name.
            file = locked.enter_context(path.open("a+", encoding="utf-8"))
            continue
        except OSError as error:
            if error.errno not in _LOCKED_BY_OTHER:
                return False
            lock_error = error
        if time.monotonic() > give_up:
            file.seek(0)
            holder = file.read() or "a process"
            raise FolderInUseError(
                f"output_dir={str(path.parent)!r} is in use: {holder} trains there. Pass another "
                "folder."
            ) from lock_error
        time.sleep(0.05)

    file.truncate(0)
    file.write(f"process {os.getpid()} of {socket.gethostname()}, since {time.ctime()},")
    file.flush()
    return True
