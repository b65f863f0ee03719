"""Synchronise a local checkpoint folder with an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ...lightning_modules import checkpoints
from ...lightning_modules.common.local_paths import url_of
from ..hub.errors import describe

INCOMPLETE = "_incomplete"
"""File of a checkpoint that is being uploaded or deleted."""

_PROGRAMMING_ERRORS = (AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Errors that are never caused by a storage or a disk."""

_CHECKPOINT = re.compile(r"checkpoint-[0-9]+(?=/)")
_NOT_SENT = re.compile(r"(^|/)(\.|checkpoint-[0-9]+(/|$))|\.tmp$")
"""Hidden files, checkpoints, which are uploaded as a whole, and temporary files."""


class StoreFolder:
    """A local folder and its copy in the store. Names are relative to both.

    Methods raise the errors of the storage library, and may be retried. `store_errors` adds a
    remedy.

    Args:
        folder: the local folder, as `local_folder` returns it.
    """

    def __init__(self, folder: str) -> None:
        import fsspec

        self.folder = Path(folder)
        self.address = str(url_of(folder))
        options = {}
        # fsspec does not create missing local folders by default.
        if self.address.startswith("file:"):
            options["auto_mkdir"] = True
        storage, root = fsspec.url_to_fs(self.address, **options)
        # Names are relative to the URL from here on.
        self._files: Any = fsspec.filesystem("dir", path=root, fs=storage)
        self._sent: dict[str, tuple[int, int]] = {}
        """Uploaded files outside of checkpoints, with their modification time and size."""

    def send(self, name: str) -> None:
        """Upload a checkpoint, replacing an older one.

        Sets the modification time of the local folder to 0, which marks it as uploaded. Any change
        of the folder sets another time.
        """
        folder = self.folder / name
        begun = folder.stat()
        self._clear(name)
        for path in folder.rglob("*"):
            if path.is_file():
                self._put(path)
        self._files.rm_file(f"{name}/{INCOMPLETE}")

        # Do not mark it as uploaded if it was written again in the meantime.
        if folder.stat().st_mtime_ns == begun.st_mtime_ns:
            os.utime(folder, (0, 0))

    def send_others(self) -> None:
        """Upload changed files outside of checkpoints, except hidden ones."""
        for path in self._other_files():
            name = path.relative_to(self.folder).as_posix()
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size)
            if self._sent.get(name) != version:
                self._put(path)
                self._sent[name] = version

    def _other_files(self) -> Iterator[Path]:
        """Yield the files outside of checkpoints, except hidden ones."""
        # Unlike `rglob`, `walk` skips a folder that disappears, such as that of a checkpoint which
        # the training renames in the meantime.
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                if not _NOT_SENT.search(path.relative_to(self.folder).as_posix()):
                    yield path

    def discard(self, name: str) -> None:
        """Delete a checkpoint from the store."""
        self._clear(name)
        self._files.rm(name, recursive=True)

    def local_checkpoints(self) -> list[str]:
        """Return the local checkpoints, sorted by step."""
        return [folder.name for folder in checkpoints.list_checkpoints(self.folder)]

    def unsent(self) -> list[str]:
        """Return the local checkpoints that were not uploaded since their last change, by step."""
        names: list[str] = []
        for folder in checkpoints.list_checkpoints(self.folder):
            if folder.stat().st_mtime:
                names.append(folder.name)
        return names

    def stored_checkpoints(self, *, complete: bool = True) -> list[str]:
        """Return the complete checkpoints in the store, or the incomplete ones, sorted by step."""
        files = set(self._find(""))
        names: set[str] = set()
        for file in files:
            match = _CHECKPOINT.match(file)
            if match is None:
                continue
            is_complete = f"{match[0]}/{INCOMPLETE}" not in files
            if is_complete == complete:
                names.add(match[0])
        return sorted(names, key=lambda name: int(name.partition("-")[2]))

    def fetch(self, name: str) -> None:
        """Download a checkpoint, unless the local copy is the same and intact.

        Does nothing if the checkpoint is missing or incomplete in the store.
        """
        folder = self.folder / name
        files = self._find(name)
        if not files or f"{name}/{INCOMPLETE}" in files:
            return

        # If the manifests are equal, check the local files against the manifest.
        manifest = f"{name}/_manifest.json"
        own_manifest = self.folder / manifest
        is_same = False
        if manifest in files and own_manifest.is_file():
            is_same = self._files.cat_file(manifest) == own_manifest.read_bytes()
        if is_same and not checkpoints.problems(folder, weights=False):
            return

        with checkpoints.staged_folder(folder) as staging:
            targets: list[str] = []
            for file in files:
                name_in_folder = os.path.relpath(file, name)
                targets.append(str(staging / name_in_folder))
            self._files.get(files, targets)

        # Mark it as uploaded, see `send`.
        os.utime(folder, (0, 0))

    def _find(self, name: str) -> list[str]:
        """Return the files of a checkpoint in the store, or all files for an empty name."""
        self._files.invalidate_cache()
        # A name in the store must not lead outside of the local folder.
        return [file for file in self._files.find(name) if ".." not in file.split("/")]

    def _put(self, path: Path) -> None:
        self._files.put_file(str(path), path.relative_to(self.folder).as_posix())

    def _clear(self, name: str) -> None:
        """Mark a checkpoint as incomplete, and delete its files."""
        mark = f"{name}/{INCOMPLETE}"
        empty = self.folder / ".empty"
        self.folder.mkdir(parents=True, exist_ok=True)
        empty.touch()

        # Uploading a file also creates its folder, if the storage has folders.
        self._files.put_file(str(empty), mark)
        for file in self._find(name):
            if file != mark:
                self._files.rm_file(file)


@cache
def open_store(folder: str) -> StoreFolder | None:
    """Return the store of a local folder; None if the folder has no URL."""
    if not url_of(folder):
        return None
    return StoreFolder(folder)


class StoreError(ConnectionError):
    """The store or its local folder could not be read or written. The message has a remedy."""


@contextmanager
def store_errors(output_dir: str) -> Iterator[None]:
    """Convert errors of the storage and of the local disk to `StoreError`.

    Args:
        output_dir: the local folder of the training.
    """
    try:
        yield
    except (StoreError, *_PROGRAMMING_ERRORS):
        raise
    except Exception as error:
        # Storage libraries have no common error class: they raise their own classes, and Python's
        # `OSError`, `RuntimeError` and `ValueError`.
        raise StoreError(
            f"{url_of(output_dir) or 'The store'} could not be read or written "
            f"({describe(error)}). {output_dir} still has all files. Check the bucket, the "
            "network, and that the credentials may list, read, write and delete; "
            "trainer.save_state() or the next start uploads the remaining files."
        ) from error
