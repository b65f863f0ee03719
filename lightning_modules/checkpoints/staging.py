"""Write folders `checkpoint-N` atomically: a reader never sees an incomplete one under its final name.

A folder is written under a hidden name in the same parent folder, flushed, and renamed. The hidden names are
`.NAME.KIND-OWNER` and match neither the pattern `checkpoint-<digits>` nor the glob `checkpoint-*`:

- `partial`: being written; also an old version after its exchange with the new one. Can be deleted.
- `ready`: complete and flushed, about to replace an older version.
- `replaced`: the older version, moved out of the way.
- `deleted`: being deleted by `discard`.

Guarantees, at whatever moment the process is killed:

1. A folder under its final name is complete.
2. A new name appears in one step (`rename`).
3. An existing name is replaced in one step where the system can exchange two folders (Linux, local file systems).
   Elsewhere there is an instant without the final name, with both versions complete beside it: the next
   `remove_leftovers` renames the new one (or, failing that, the old one).
4. The same holds for a power failure, as far as the disk honours `fsync`: the old version is deleted only after the
   new name is on the disk. With `commit(flush=False)`, a power failure before the flush may leave truncated files under
   the final name, which the manifest reveals, and no older version has been deleted yet.

A folder is replaced as a whole, with the files that others have put into it.

With several processes, the main one calls `begin`, `commit` and `abort`; the others write into
`staging_path(final, owner)`, where `owner` is the main process's `process_token()`, broadcast once. Between `begin` and
the writing, and between the writing and `commit`, the caller puts a barrier.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..common.local_paths import StrPath
from ..common.process_identity import process_token
from . import disk
from .owners import is_abandoned

_log = logging.getLogger(__name__)

_HIDDEN = re.compile(r"^\.(?P<name>.+)\.(?P<kind>partial|ready|replaced|deleted)-(?P<owner>.+-\d+-\d+)$")


def staging_path(final: StrPath, owner: str | None = None) -> Path:
    """Return the folder in which `final` is written: the same for all processes that pass the same owner.

    Args:
        final: the folder's name when it is complete.
        owner: the main process's `process_token()`; None means this process.
    """
    return _hidden(Path(final), "partial", owner)


def final_path(folder: StrPath) -> Path:
    """Return the name that a folder has when it is complete."""
    path = Path(folder)
    hidden = _HIDDEN.match(path.name)
    return path.with_name(hidden["name"]) if hidden else path


def begin(final: StrPath, owner: str | None = None) -> Path:
    """Make the empty folder in which the processes write `final`; remove that of an earlier attempt of this process.

    Args:
        final: the folder's name when it is complete.
        owner: as for `staging_path`.

    Raises:
        FileExistsError: `final` is an ordinary file.
    """
    final = Path(final)
    if final.is_file():
        raise FileExistsError(f"a folder is to be written as {final}, but a file of that name exists; move it away")
    staging = staging_path(final, owner)
    try:
        staging.mkdir(parents=True)
    except FileExistsError:
        disk.delete(staging)
        staging.mkdir()
    return staging


def commit(staging: StrPath, final: StrPath, *, flush: bool = True) -> None:
    """Flush `staging` to the disk and rename it, replacing an older version.

    Args:
        staging: the folder made by `begin`.
        final: the folder's name when it is complete.
        flush: flush before the rename; else the caller flushes after it, see `BackgroundWriter.flush`. A folder that
            replaces an older version is flushed before the rename in any case.

    Raises:
        FileNotFoundError: there is no `staging`: `begin` was not called, or it was committed or aborted already.
        OSError: the disk refused; an older version under the final name is still there.
    """
    staging, final = Path(staging), Path(final)
    if not staging.is_dir():
        raise FileNotFoundError(f"nothing to rename to {final}: {staging} is not there; call begin() once per commit()")
    replaces = os.path.lexists(final)
    if flush or replaces:
        disk.sync_tree(staging)
    if not replaces:
        os.rename(staging, final)
        if flush:
            disk.sync_path(final.parent)
        return
    outdated = staging if disk.exchange(staging, final) else _replace_by_renames(staging, final)
    disk.sync_path(final.parent)
    abort(outdated)


def abort(staging: StrPath) -> None:
    """Remove an unfinished folder; an older version under the final name stays.

    If it cannot be removed, a warning says so, so that the error that led here is not hidden.
    """
    with _warning_of(Path(staging)):
        disk.delete(Path(staging))


@contextmanager
def staged_folder(final: StrPath) -> Iterator[Path]:
    """Write a folder that gets its final name only if the `with` block succeeds (one process).

    Args:
        final: the folder's name when it is complete.

    Yields:
        the empty folder to write into. After an exception it is removed, and the exception goes on.
    """
    staging = begin(final)
    try:
        yield staging
        commit(staging, final)
    except BaseException:
        abort(staging)
        raise


def discard(folder: StrPath) -> None:
    """Delete a folder atomically, by renaming it first.

    A folder that cannot be deleted is left with a warning: a disk error must not end a training run.
    """
    folder = Path(folder)
    doomed = _hidden(folder, "deleted")
    with _warning_of(folder):
        disk.delete(doomed)
        os.rename(folder, doomed)
        abort(doomed)


def remove_leftovers(run_dir: StrPath, *, is_reserved: bool = False) -> list[Path]:
    """Clean up after processes that were killed while they wrote or deleted folders in `run_dir`.

    To be called by the main process when a run starts. A folder that was being replaced when its process died gets its
    final name back. Folders of living processes are left alone.

    Args:
        run_dir: the folder that holds the checkpoints; it may be missing.
        is_reserved: this process has reserved it by `exclusive`.

    Returns:
        the hidden folders that were removed or renamed.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        return []
    found = []
    for path in run_dir.iterdir():
        match = _HIDDEN.match(path.name)
        if match and path.is_dir() and is_abandoned(path, match["owner"], is_reserved=is_reserved):
            found.append((match["kind"], path))
    # Of several complete versions of one folder the newest gets the name: new ones before old ones.
    found.sort(key=lambda one: (one[0] != "ready", -one[1].stat().st_mtime))
    for kind, path in found:
        final = final_path(path)
        if kind in ("ready", "replaced") and not os.path.lexists(final):
            os.rename(path, final)
            _log.warning("%s was restored: its process was killed while it replaced that folder.", final)
        else:
            abort(path)
    return [path for _, path in found]


@contextmanager
def _warning_of(folder: Path) -> Iterator[None]:
    """Warn of a folder that the block cannot delete."""
    try:
        yield
    except OSError as error:
        _log.warning("The folder %s could not be deleted (%s); delete it by hand to free its space.", folder, error)


def _hidden(final: Path, kind: str, owner: str | None = None) -> Path:
    return final.parent / f".{final.name}.{kind}-{owner or process_token()}"


def _replace_by_renames(staging: Path, final: Path) -> Path:
    """Replace `final` by `staging` in three steps, each of which `remove_leftovers` can finish or undo."""
    owner = process_token()
    ready, replaced = _hidden(final, "ready", owner), _hidden(final, "replaced", owner)
    disk.delete(replaced)
    disk.delete(ready)
    os.rename(staging, ready)
    disk.sync_path(final.parent)
    try:
        os.rename(final, replaced)
        try:
            os.rename(ready, final)
        except OSError:
            with suppress(OSError):  # the next run restores it
                os.rename(replaced, final)
            raise
    except OSError:
        if os.path.lexists(final):  # else the next run renames it
            abort(ready)
        raise
    return replaced
