"""The few file-system operations that crash safety rests on: flush to disk, exchange two folders, delete at once."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def sync_path(path: Path) -> None:
    """Flush one file, or the list of names in one folder, to the disk.

    Folders cannot be opened on Windows and cannot be flushed on a few network file systems; there this does nothing.
    """
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush every file below `folder`, then every folder, the deepest first."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(root, name)
            if not path.is_symlink():
                sync_path(path)
        sync_path(Path(root))


def exchange(first: Path, second: Path) -> bool:
    """Let two existing folders swap names in one step; False where the system or the file system cannot.

    Linux has this since 3.15 (`renameat2`) on its local file systems; Python has no function for it.
    """
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0


def delete(path: Path) -> None:
    """Remove a file, a link or a folder with all it holds; an error is raised, never hidden."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
