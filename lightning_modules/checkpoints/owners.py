"""Track which process, job and training a checkpoint folder belongs to.

- The name of an unfinished folder contains a token of the process that writes it, so that a later
  run can distinguish leftovers of a killed process from a folder that is being written.
- A checkpoint records its job, so that processes restarted by `torchrun` resume only from
  checkpoints of the same job. A job is identified by the log folder of its launcher, which stays
  the same across restarts, and not by `--rdzv-id`, which users reuse.
- The process that writes checkpoints to a folder locks a file in it, so that a second training with
  the same folder raises.
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
"""Environment variable with the name of the job in a trial of a sweep. Retries of a trial are the
same job, so that they resume from its checkpoints.
"""

IDLE_SECONDS = 3600.0
"""Seconds without a change after which a folder counts as abandoned, if its owner is on another
machine.
"""

LOCK_TIMEOUT = 5.0
"""Seconds to wait for a lock. A killed process keeps its lock until its memory is freed."""

_LOCKED_BY_OTHER = (errno.EACCES, errno.EAGAIN)
_ATTEMPT = re.compile(r"[\\/]attempt_\d+[\\/]")

_launchers: tuple[str, ...] = ()
_training_number = 0

_reserved: dict[str, int] = {}
"""Process id of the lock's holder by folder. A forked process does not inherit locks."""


def is_abandoned(folder: Path, owner: str, *, is_reserved: bool = False) -> bool:
    """Return whether an unfinished folder is left over from a process that has exited.

    The owner has exited, or is on another machine and has not written for `IDLE_SECONDS`. An owner
    from before a restart of this machine cannot be distinguished from one in another container with
    the same host name. It counts as exited if this process has reserved the parent folder.

    Args:
        folder: an unfinished folder.
        owner: the `process_token` in its name.
        is_reserved: whether this process has reserved the parent folder by `reserve_folder`.
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
            # The file was deleted in the meantime.
            continue
    return newest


def current_job() -> str | None:
    """Return a unique name of this process's job; None outside of sweeps and `torchrun`.

    The job is a trial of a sweep, or the processes of `torchrun`.
    """
    trial = os.environ.get(JOB)
    if trial:
        return trial

    # The part of the path before the attempt is the log folder of the launcher.
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
    """Begin a training. Manifests written from now on record it.

    Args:
        launchers: names of the launchers, one for each machine. A job continues as long as one of
            them runs.
    """
    global _launchers, _training_number
    _launchers = tuple(sorted(set(launchers)))
    _training_number += 1


def job_mark() -> dict[str, object] | None:
    """Return the manifest's entry that identifies the job and the training within its script; None
    without `torchrun`.
    """
    if not _launchers:
        return None
    return {"launchers": list(_launchers), "training": _training_number}


def is_of_this_training(folder: StrPath) -> bool:
    """Return whether this training wrote a checkpoint before its processes were restarted."""
    path = Path(folder) / "_manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        job: dict[str, Any] = dict(manifest.get("job") or {})
        launchers: set[str] = set(job.get("launchers") or ())
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    is_same_training = job.get("training") == _training_number
    return is_same_training and not launchers.isdisjoint(_launchers)


class FolderInUseError(RuntimeError):
    """Another process writes checkpoints to the same folder."""


@contextmanager
def reserve_folder(folder: StrPath) -> Generator[bool]:
    """Reserve a checkpoint folder for this process.

    Nested trainings in this process may use the same folder. A POSIX lock is released when the
    process exits for any reason, is not inherited by forked processes, and is visible to other
    machines that share the disk. On file systems without locks, nothing is checked.

    Args:
        folder: created if missing.

    Yields:
        Whether the folder is reserved.

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
            # Callbacks run in reverse order, so the file is deleted while it is still locked.
            locked.callback(_reserved.pop, real_path)
            locked.callback(path.unlink, missing_ok=True)
        yield is_reserved


def _lock(path: Path, locked: ExitStack) -> bool:
    """Lock a file until the exit stack closes, and write the holder of the lock to it.

    Returns:
        False if files cannot be locked here.
    """
    if fcntl is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = locked.enter_context(path.open("a+", encoding="utf-8"))
    except OSError:
        # Left by a killed process of another user.
        return False

    # Retry, because a killed process keeps its lock until its memory is freed.
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:
                break
            # The holder deleted the file when it finished. Lock a new file.
            file = locked.enter_context(path.open("a+", encoding="utf-8"))
            continue
        except OSError as error:
            if error.errno not in _LOCKED_BY_OTHER:
                return False
            lock_error = error
        if time.monotonic() > deadline:
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
