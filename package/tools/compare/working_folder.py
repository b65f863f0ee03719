"""Gives each side a copy of the working folder: the script finds all of its files, and changes none of them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

LIMIT = 2 * 2**30
"""Bytes that one copy may take."""
_GIB = 2**30
_FICLONE = 0x40049409  # from linux/fs.h


class CompareError(Exception):
    """Why nothing could be compared."""


@dataclass(frozen=True, kw_only=True)
class WorkingFolder:
    """A folder that is to be copied."""

    path: Path
    mark: str
    """A folder with a file of this name is left out."""
    linked: Collection[Path] = ()
    """What the script only reads."""
    left_out: Collection[Path] = ()

    def copy(self, target: Path) -> None:
        """Copy it; where the file system can share blocks, as Btrfs and XFS do, that takes no room.

        Raises:
            CompareError: it is too large.
        """
        room = LIMIT
        target.mkdir()
        for folder, folders, names in os.walk(self.path, followlinks=True):
            here = target / Path(folder).relative_to(self.path)
            for name in [*folders, *names]:
                path = Path(folder, name)
                if path in self.linked:
                    (here / name).symlink_to(path)
                elif path.is_dir() and not self._is_left_out(path):
                    (here / name).mkdir()
                    continue
                elif path.is_file() and path not in self.left_out:  # no socket, no link that leads nowhere
                    room -= _copy(path, here / name)
                if name in folders:
                    folders.remove(name)
                if room < 0:
                    raise CompareError(self._too_large())

    def remove_unchanged(self, target: Path) -> None:
        """Remove from a copy what is as it was."""
        for folder, folders, names in os.walk(target, topdown=False):
            for path in (Path(folder, name) for name in [*folders, *names]):
                original = self.path / path.relative_to(target)
                if path.is_symlink() or (path.is_file() and original.is_file() and _stamp(path) == _stamp(original)):
                    path.unlink()
                elif path.is_dir() and original.is_dir() and not any(path.iterdir()):
                    path.rmdir()

    def _is_left_out(self, folder: Path) -> bool:
        return (
            folder in self.left_out
            or folder.name in (".git", "__pycache__", "node_modules")
            or any((folder / name).exists() for name in (self.mark, "pyvenv.cfg"))
        )

    def _too_large(self) -> str:
        sizes = {path.name: _size(path) for path in self.path.iterdir() if not self._is_left_out(path)}
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        said = ", ".join(f"{name} {sizes[name] / _GIB:.1f} GiB" for name in largest)
        return (
            f"The working folder {self.path} holds more than {LIMIT / _GIB:.0f} GiB, and each side gets a copy. The "
            f"largest are {said}. Name what the script only reads with --link, and what it does not need with "
            "--leave-out, or run it in another folder."
        )


def _copy(source: Path, target: Path) -> int:
    """Copy a file; return the bytes that the copy takes."""
    shared = _share_blocks(source, target)
    if not shared:
        shutil.copyfile(source, target)
    shutil.copystat(source, target)
    return 0 if shared else target.stat().st_size


def _share_blocks(source: Path, target: Path) -> bool:
    with source.open("rb") as read, target.open("wb") as written:
        try:
            fcntl.ioctl(written, _FICLONE, read.fileno())
        except OSError:
            return False
    return True


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
