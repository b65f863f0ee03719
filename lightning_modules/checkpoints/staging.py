"""Write folders `checkpoint-N` atomically.

A reader never sees an incomplete folder under its final name. A folder is written under a hidden
name in the same parent folder, flushed, and renamed. Hidden names have the form `.NAME.KIND-OWNER`,
which does not match `checkpoint-<digits>` or the glob `checkpoint-*`:

- `partial`: being written. Safe to delete.
- `replaced`: an older version, moved out of the way of the new one.
- `deleted`: being deleted by `discard`.

Guarantees if the process is killed at any moment:

1. A folder under its final name is complete. 2. A new name appears atomically (`rename`). 3. An
existing name is replaced in two steps. A process that is killed between them leaves no folder
   of that name; the next `restore_replaced` gives the name back to the older version.
4. The same holds for a power failure, as far as the disk honours `fsync`: the old version is
   deleted only after the new name is on the disk. With `commit(flush=False)`, a power failure
   before the flush may leave truncated files under the final name, which the manifest reveals, and
   no older version has been deleted yet.

A folder is replaced as a whole, including files that others have added to it.

With several processes, the main one calls `begin`, `commit` and `abort`. The others write to
`staging_path(final, owner)`, where `owner` is the main process's `process_token()`, broadcast once.
The caller needs a barrier after `begin` and before `commit`.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..common.local_paths import StrPath
from ..common.process_identity import process_token
from . import disk
from .owners import is_abandoned

_log = logging.getLogger(__name__)

_HIDDEN = re.compile(r"^\.(?P<name>.+)\.(?P<kind>partial|replaced|deleted)-(?P<owner>.+-\d+-\d+)$")


def staging_path(final: StrPath, owner: str | None = None, kind: str = "partial") -> Path:
    """Return the hidden folder in which `final` is written, replaced or deleted.

    All processes that pass the same owner get the same path.

    Args:
        final: the folder's name when it is complete.
        owner: the `process_token()` of the main process. None means this process.
        kind: the kind of the hidden folder.
    """
    path = Path(final)
    return path.parent / f".{path.name}.{kind}-{owner or process_token()}"


def final_path(folder: StrPath) -> Path:
    """Return the final path of a folder that may have a hidden name."""
    path = Path(folder)
    hidden = _HIDDEN.match(path.name)
    if hidden is None:
        return path
    return path.with_name(hidden["name"])


def begin(final: StrPath, owner: str | None = None) -> Path:
    """Create the empty folder in which the processes write `final`.

    Removes a folder that an earlier attempt of this process left.

    Args:
        final: the folder's name when it is complete.
        owner: as for `staging_path`.

    Raises:
        FileExistsError: `final` is a file.
    """
    final = Path(final)
    if final.is_file():
        raise FileExistsError(
            f"cannot write a folder as {final}: a file of that name exists. Move it away."
        )
    staging = staging_path(final, owner)
    try:
        staging.mkdir(parents=True)
    except FileExistsError:
        # Left by an interrupted attempt.
        disk.delete(staging)
        staging.mkdir()
    return staging


def require_visible(staging: StrPath, final: StrPath) -> None:
    """Check on another machine that the folder created by `begin` is visible there.

    Raises:
        ValueError: the folder is on a local disk of the first machine.
    """
    # Network file systems may cache that a folder is missing. Creating it bypasses the cache, and
    # fails if the folder exists.
    staging = Path(staging)
    staging.parent.mkdir(parents=True, exist_ok=True)
    try:
        staging.mkdir()
    except FileExistsError:
        return
    staging.rmdir()
    raise ValueError(
        f"{socket.gethostname()} does not see {final}; a checkpoint cannot be spread over several "
        "disks. Set output_dir to a disk that all machines share, or with DeepSpeed set "
        "save_on_each_node=True."
    )


def commit(staging: StrPath, final: StrPath, *, flush: bool = True) -> None:
    """Flush `staging` to the disk and rename it, replacing an older version.

    Args:
        staging: the folder created by `begin`.
        final: the folder's name when it is complete.
        flush: flush before the rename. If False, the caller flushes afterwards, see
            `writing.try_to_flush`. A folder that replaces an older version is always flushed first.

    Raises:
        FileNotFoundError: `staging` is missing, because `begin` was not called, or the folder was
            committed or aborted already.
        OSError: the disk reports an error. An older version under the final name is kept.
    """
    staging = Path(staging)
    final = Path(final)
    if not staging.is_dir():
        raise FileNotFoundError(
            f"nothing to rename to {final}: {staging} is missing. Call begin() before each "
            "commit()."
        )
    replaces = os.path.lexists(final)
    if flush or replaces:
        disk.sync_tree(staging)
    if not replaces:
        os.rename(staging, final)
        if flush:
            disk.sync_path(final.parent)
        return

    # If the process is killed between the two renames, `restore_replaced` restores the old version
    # later. After an error it is restored here.
    replaced = staging_path(final, kind="replaced")
    disk.delete(replaced)
    try:
        os.rename(final, replaced)
        os.rename(staging, final)
    except BaseException:
        if not os.path.lexists(final):
            os.rename(replaced, final)
        raise
    disk.sync_path(final.parent)

    # The new version is on the disk, so the old one can be deleted.
    abort(replaced)


def abort(staging: StrPath) -> None:
    """Remove an unfinished folder. An older version under the final name is kept.

    Only warns if the folder cannot be removed, so that an earlier error is not hidden.
    """
    with _warning_of(Path(staging)):
        disk.delete(Path(staging))


@contextmanager
def staged_folder(final: StrPath) -> Generator[Path]:
    """Yield a folder that gets its final name only if the `with` block succeeds (one process).

    Args:
        final: the folder's name when it is complete.

    Yields:
        The empty folder to write to. After an exception it is removed, and the exception is raised
            again.
    """
    staging = begin(final)
    try:
        yield staging
        commit(staging, final)
    except BaseException:
        abort(staging)
        raise


def discard(folder: StrPath) -> None:
    """Delete a folder atomically by renaming it first.

    Only warns if it cannot be deleted: a disk error must not stop the training.
    """
    folder = Path(folder)
    deleted = staging_path(folder, kind="deleted")
    with _warning_of(folder):
        disk.delete(deleted)
        os.rename(folder, deleted)
        abort(deleted)


def restore_replaced(run_dir: StrPath, *, is_reserved: bool = False) -> None:
    """Restore folders whose process was killed while it replaced them.

    Call it before searching for checkpoints. Several processes may call it at the same time.

    Args:
        run_dir: the folder that holds the checkpoints; it may be missing.
        is_reserved: this process has reserved it by `reserve_folder`.
    """
    for path, kind in _abandoned(Path(run_dir), is_reserved):
        final = final_path(path)
        if kind != "replaced" or os.path.lexists(final):
            continue
        # If it fails, another process has restored the folder.
        with suppress(OSError):
            os.rename(path, final)
            _log.warning("%s was restored: the process that replaced it was killed.", final)


def remove_leftovers(run_dir: StrPath, *, is_reserved: bool = False) -> list[Path]:
    """Clean up after processes that were killed while they wrote or deleted folders in `run_dir`.

    Called by the main process when a run starts, and by a conversion, which may also write a file.
    Folders that were being replaced are restored first. Those of running processes are not touched.

    Args:
        run_dir: the folder that holds the checkpoints; it may be missing.
        is_reserved: this process has reserved it by `reserve_folder`.

    Returns:
        The hidden folders and files that were removed.
    """
    restore_replaced(run_dir, is_reserved=is_reserved)
    removed: list[Path] = []
    for path, _ in _abandoned(Path(run_dir), is_reserved):
        abort(path)
        removed.append(path)
    return removed


def _abandoned(run_dir: Path, is_reserved: bool) -> list[tuple[Path, str]]:
    """Return the hidden folders and files of processes that have exited, each with its kind."""
    if not run_dir.is_dir():
        return []
    abandoned: list[tuple[Path, str]] = []
    for path in run_dir.iterdir():
        hidden = _HIDDEN.match(path.name)
        if hidden and is_abandoned(path, hidden["owner"], is_reserved=is_reserved):
            abandoned.append((path, hidden["kind"]))
    return abandoned


@contextmanager
def _warning_of(folder: Path) -> Generator[None]:
    """Warn if the `with` block cannot delete a folder."""
    try:
        yield
    except OSError as error:
        _log.warning(
            "The folder %s could not be deleted (%s); delete it by hand to free its space.",
            folder,
            error,
        )
