"""Manifest of a checkpoint: the list of its files with sizes and checksums, to find lost or damaged
ones.

Checksums are xxHash: no protection against forgery, but they take a tenth of the time of writing.

The reference has no such file. Its name begins with an underscore, so that the reference does not
upload it, and neither library reads weights or states from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from xxhash import xxh3_64, xxh3_64_hexdigest

from ..common.local_paths import StrPath
from .disk import sync_path
from .owners import job_mark

ALGORITHM = "xxh3_64"

_BLOCK = 1 << 16  # bytes; more takes longer to allocate than a small file to read
_NOTED = ".checksums-*.json"


def checksum(path: StrPath) -> str:
    """Return the checksum of a file, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    found = xxh3_64()
    block = memoryview(bytearray(_BLOCK))
    # not mapped: a read error would kill the process by SIGBUS
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            found.update(block[:count])
    return found.hexdigest()


def record_checksums(folder: Path, files: Iterable[Path]) -> None:
    """Write the checksums of this process's files for the process that writes the manifest.

    Args:
        folder: the folder of the files; other processes write into it too.
        files: the files that this process has written.
    """
    found = {path.name: checksum(path) for path in files}
    if found:
        path = folder / _NOTED.replace("*", f"{os.getpid()}-{min(found)}")
        path.write_text(json.dumps(found), encoding="utf-8")


MANIFEST_NAME = "_manifest.json"
"""Exists in every checkpoint written here; those of the reference have none."""

_VERSION = 1
_OWN = "checksum"


def write_manifest(folder: StrPath) -> None:
    """Write name, size and checksum of every file below a folder, which is complete except for its
    manifest.

    Args:
        folder: an unfinished checkpoint, see `begin`; to be called once, before `commit`.
    """
    folder = Path(folder)
    names = files_below(folder)

    # What other processes have noted of their files.
    noted: dict[str, str] = {}
    for name in names:
        path = folder / name
        if fnmatch(path.name, _NOTED):
            for file, value in json.loads(path.read_text(encoding="utf-8")).items():
                noted[(path.parent / file).relative_to(folder).as_posix()] = value
            path.unlink()

    sizes: dict[str, int] = {}
    checksums: dict[str, str] = {}
    for name in names:
        path = os.path.join(folder, name)
        if name == MANIFEST_NAME or fnmatch(os.path.basename(name), _NOTED):
            continue
        sizes[name] = os.path.getsize(path)
        checksums[name] = noted.get(name) or checksum(path)
    (folder / MANIFEST_NAME).write_text(_text_of(sizes, checksums), encoding="utf-8")


def refresh_manifest(folder: StrPath) -> bool:
    """Take the present contents of files into the manifest that were changed or removed since it
    was written.

    For changes that are known to be on purpose, since they cannot be told from damage later. Files
    that the manifest does not name are not added.

    Args:
        folder: a complete checkpoint; one whose manifest is missing or was edited is left as it is.

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
    written_at = path.stat().st_ctime_ns  # a copy may bring an earlier time of modification along
    sizes: dict[str, int] = {}
    checksums: dict[str, str] = {}
    for name, size in manifest.sizes.items():
        file = folder / name
        if not file.is_file():
            continue
        now = file.stat()
        sizes[name] = now.st_size
        if now.st_ctime_ns >= written_at or now.st_size != size or name not in manifest.checksums:
            checksums[name] = checksum(file)
        else:
            checksums[name] = manifest.checksums[name]
    if Manifest(sizes, checksums) == manifest:
        return False
    unfinished = folder / f".{MANIFEST_NAME}.partial"
    unfinished.write_text(_text_of(sizes, checksums), encoding="utf-8")
    sync_path(unfinished)
    os.replace(unfinished, path)
    return True


def _text_of(sizes: Mapping[str, int], checksums: Mapping[str, str]) -> str:
    """Return the text of a manifest, which ends with a checksum of itself."""
    content: dict[str, Any] = {"version": _VERSION, "files": sizes, ALGORITHM: checksums}
    job = job_mark()
    if job is not None:
        content["job"] = job
    text = json.dumps(content, sort_keys=True)
    return f'{text[:-1]}, "{_OWN}": "{xxh3_64_hexdigest(text.encode())}"}}\n'


class Manifest(NamedTuple):
    """Files of a checkpoint, by names relative to its folder."""

    sizes: dict[str, int]
    """In bytes."""

    checksums: dict[str, str]
    """Empty if an older version wrote the manifest."""


def read_manifest(folder: StrPath) -> Manifest | None:
    """Return the manifest of a checkpoint; None where there is none.

    Raises:
        ValueError: it is damaged, or names files outside of the folder.
    """
    path = Path(folder, MANIFEST_NAME)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = content.get(_OWN)
        if (own is not None or ALGORITHM in content) and own != _own_checksum(content):
            raise ValueError(
                "its own checksum differs; if you changed it, remove it, and nothing is compared"
            )
        return Manifest(_sizes(content), dict(content.get(ALGORITHM, {})))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{MANIFEST_NAME} is not readable as a list of files ({error})") from error


def _sizes(content: Mapping[str, Any]) -> dict[str, int]:
    version = content["version"]
    files = dict(content["files"])
    if version != _VERSION:
        raise ValueError(f"it has version {version!r}, but only {_VERSION} is known here")
    for name, size in files.items():
        if not _stays_inside(name) or not isinstance(size, int) or isinstance(size, bool):
            raise ValueError(
                f"it holds {name!r}: {size!r}, which is no file of its folder with a size"
            )
    return files


def _own_checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of all other entries of a manifest."""
    others = {key: value for key, value in content.items() if key != _OWN}
    return xxh3_64_hexdigest(json.dumps(others, sort_keys=True).encode())


def files_below(folder: Path) -> list[str]:
    """Return all files below a folder, as sorted names relative to it."""
    found = []
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            found += [f"{entry.name}/{name}" for name in files_below(Path(entry))]
        elif entry.is_file():
            found.append(entry.name)
    return sorted(found)


def is_changed(folder: Path, name: str, manifest: Manifest) -> bool:
    """Read a file and return whether its contents differ from those written, or cannot be read."""
    try:
        return checksum(folder / name) != manifest.checksums[name]
    except OSError:
        return True


def _stays_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return (
        bool(parts)
        and ".." not in parts
        and "\\" not in name
        and ":" not in name
        and not name.startswith("/")
    )
