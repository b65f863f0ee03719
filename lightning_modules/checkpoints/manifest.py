"""Manifest of a checkpoint: sizes and checksums of its files, to detect missing or damaged ones.

Checksums are xxHash. They do not protect against forgery, but take a tenth of the time of writing.

The reference has no such file. The name begins with an underscore, so that the reference does not
upload the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from xxhash import xxh3_64, xxh3_64_hexdigest

from ..common.file_names import INCOMPLETE_NAME
from ..common.local_paths import StrPath
from .disk import sync_path
from .owners import job_mark

ALGORITHM = "xxh3_64"

_CHECKSUMS_NAME = ".checksums-*.json"
"""Pattern of the files in which other processes record checksums for the manifest."""


def checksum(path: StrPath) -> str:
    """Return the checksum of a file, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    # Do not memory-map the file: a read error would kill the process by SIGBUS.
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, xxh3_64).hexdigest()


def record_checksums(folder: Path, files: Iterable[Path]) -> None:
    """Write the checksums of this process's files for the process that writes the manifest.

    Args:
        folder: the folder of the files; other processes write into it too.
        files: the files that this process has written.
    """
    checksums = {path.name: checksum(path) for path in files}
    if not checksums:
        return
    # A process id is not unique across machines.
    unique = f"{os.getpid()}-{min(checksums)}"
    path = folder / _CHECKSUMS_NAME.replace("*", unique)
    path.write_text(json.dumps(checksums), encoding="utf-8")


MANIFEST_NAME = "_manifest.json"
"""Name of the manifest. Checkpoints of the reference have no manifest."""

_VERSION = 1

_OWN_CHECKSUM = "checksum"
"""Key of the checksum of the manifest's other entries."""


def write_manifest(folder: StrPath) -> None:
    """Write the manifest of a folder whose other files are complete.

    Args:
        folder: an unfinished checkpoint, between `staging.begin` and `staging.commit`.
    """
    folder = Path(folder)

    # Collect the checksums that other processes have recorded for their files.
    recorded: dict[str, str] = {}
    for path in list(folder.rglob(_CHECKSUMS_NAME)):
        content: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        for file, value in content.items():
            relative = (path.parent / file).relative_to(folder)
            recorded[relative.as_posix()] = value
        path.unlink()

    sizes: dict[str, int] = {}
    checksums: dict[str, str] = {}
    for name in files_below(folder):
        path = folder / name
        if name == MANIFEST_NAME:
            continue
        sizes[name] = path.stat().st_size
        checksums[name] = recorded.get(name) or checksum(path)
    (folder / MANIFEST_NAME).write_text(_manifest_text(sizes, checksums), encoding="utf-8")


def refresh_manifest(folder: StrPath) -> bool:
    """Update the manifest for files that were modified or removed since it was written.

    Call it right after intended changes, because they cannot be distinguished from damage later.
    Files that the manifest does not list are not added.

    Args:
        folder: a complete checkpoint. Nothing changes if its manifest is missing or was edited.

    Returns:
        whether there were such changes.
    """
    folder = Path(folder)
    path = folder / MANIFEST_NAME
    try:
        manifest = read_manifest(folder)
    except ValueError:
        return False
    if manifest is None:
        return False

    # Compare the inode change time, because a file copied over another one may keep an earlier
    # modification time.
    written_at = path.stat().st_ctime_ns
    sizes: dict[str, int] = {}
    checksums: dict[str, str] = {}
    for name, size in manifest.sizes.items():
        file = folder / name
        if not file.is_file():
            continue
        status = file.stat()
        sizes[name] = status.st_size
        checksums[name] = manifest.checksums[name]
        if status.st_ctime_ns >= written_at or status.st_size != size:
            checksums[name] = checksum(file)
    if Manifest(sizes, checksums) == manifest:
        return False

    # Replace it atomically, so that a killed process leaves the old manifest or the new one.
    unfinished = folder / f".{MANIFEST_NAME}.partial"
    unfinished.write_text(_manifest_text(sizes, checksums), encoding="utf-8")
    sync_path(unfinished)
    os.replace(unfinished, path)
    return True


def copy_unlisted_files(folder: Path, new: Path) -> None:
    """Copy the files of a checkpoint that its manifest does not list, such as a user's own files.

    Args:
        folder: a checkpoint, complete or not. It may be missing.
        new: the version that replaces it, with its manifest. Files in it are not overwritten.
    """
    listed = {MANIFEST_NAME, INCOMPLETE_NAME}
    with suppress(ValueError):
        manifest = read_manifest(folder)
        if manifest is not None:
            listed.update(manifest.sizes)
    for name in files_below(folder):
        copy = new / name
        if name not in listed and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, copy)


def _manifest_text(sizes: Mapping[str, int], checksums: Mapping[str, str]) -> str:
    """Return the text of a manifest, which ends with the checksum of the rest of the text."""
    content: dict[str, Any] = {"version": _VERSION, "files": sizes, ALGORITHM: checksums}
    job = job_mark()
    if job is not None:
        content["job"] = job
    text = json.dumps(content, sort_keys=True)
    # `read_manifest` removes the checksum again before it compares it.
    own_checksum = xxh3_64_hexdigest(text.encode())
    return f'{text[:-1]}, "{_OWN_CHECKSUM}": "{own_checksum}"}}\n'


class Manifest(NamedTuple):
    """Files of a checkpoint, by names relative to its folder."""

    sizes: dict[str, int]
    """In bytes."""

    checksums: dict[str, str]


def read_manifest(folder: StrPath) -> Manifest | None:
    """Return the manifest of a checkpoint; None if it has no manifest.

    Raises:
        ValueError: it is damaged, or lists files outside of the folder.
    """
    path = Path(folder, MANIFEST_NAME)
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        own_checksum = content.pop(_OWN_CHECKSUM, None)
        text = json.dumps(content, sort_keys=True)
        if own_checksum != xxh3_64_hexdigest(text.encode()):
            raise ValueError(
                "its checksum does not match. If you edited it on purpose, delete it to skip "
                "verification"
            )
        if content["version"] != _VERSION:
            raise ValueError(
                f"it has version {content['version']!r}, but only version {_VERSION} is supported"
            )

        sizes: dict[str, int] = dict(content["files"])
        checksums: dict[str, str] = dict(content[ALGORITHM])
        for name, size in sizes.items():
            if type(size) is not int or name not in checksums or not _stays_inside(name):
                raise ValueError(
                    f"its entry {name!r}: {size!r} is not a file in its folder with a size and a "
                    "checksum"
                )
        return Manifest(sizes, checksums)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{MANIFEST_NAME} is not readable as a list of files ({error})") from error


def files_below(folder: Path) -> list[str]:
    """Return the sorted relative paths of all files below a folder."""
    files = filter(Path.is_file, folder.rglob("*"))
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _stays_inside(name: str) -> bool:
    """Return whether a path in a manifest stays below its folder, on any operating system."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/"):
        return False
    # On Windows these are separators and drives.
    return "\\" not in name and ":" not in name
