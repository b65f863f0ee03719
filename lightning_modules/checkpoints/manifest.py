"""Manifest of a checkpoint: the list of its files with sizes and checksums, to find lost or damaged ones.

Checksums are xxHash: no protection against forgery, but they take a tenth of the time of writing.

The reference has no such file. Its name begins with an underscore, so that the reference does not upload it, and
neither library reads weights or states from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
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
    with open(path, "rb", buffering=0) as file:  # not mapped: a read error would kill the process by SIGBUS
        while count := file.readinto(block):
            found.update(block[:count])
    return found.hexdigest()


def note_checksums(folder: Path, files: Iterable[Path]) -> None:
    """Write the checksums of this process's files for the process that writes the manifest.

    Args:
        folder: the folder of the files; other processes write into it too.
        files: the files that this process has written.
    """
    found = {path.name: checksum(path) for path in files}
    if found:
        path = folder / _NOTED.replace("*", f"{os.getpid()}-{min(found)}")
        path.write_text(json.dumps(found), encoding="utf-8")


def _take_noted(folder: Path) -> dict[str, str]:
    """Return and remove the checksums noted below a folder, by names relative to it."""
    found: dict[str, str] = {}
    for path in list(folder.rglob(_NOTED)):
        noted: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8"))
        for name, value in noted.items():
            found[(path.parent / name).relative_to(folder).as_posix()] = value
        path.unlink()
    return found


MANIFEST_NAME = "_manifest.json"
"""Exists in every checkpoint written here; those of the reference have none."""

_VERSION = 1
_OWN = "checksum"

# Their own formats reveal truncation, and a user may have edited them, or replaced them by smaller ones.
_KNOWS_ITSELF = (".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")


def write_manifest(folder: StrPath) -> None:
    """Write name, size and checksum of every file below a folder, which is complete except for its manifest.

    Args:
        folder: an unfinished checkpoint, see `begin`; to be called once, before `commit`.
    """
    folder = Path(folder)
    noted = _take_noted(folder)
    names = [name for name in files_below(folder) if name != MANIFEST_NAME]
    paths = {name: os.path.join(folder, name) for name in names}
    sizes = {name: os.path.getsize(path) for name, path in paths.items()}
    found = {name: noted.get(name) or checksum(path) for name, path in paths.items()}
    (folder / MANIFEST_NAME).write_text(_text_of(sizes, found), encoding="utf-8")


def refresh_manifest(folder: StrPath) -> bool:
    """Take the present contents of files into the manifest that were changed or removed since it was written.

    For changes that are known to be on purpose, since they cannot be told from damage later. Files that the manifest
    does not name are not added.

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
            raise ValueError("its own checksum differs; if you changed it, remove it, and nothing is compared")
        return Manifest(_sizes(content), dict(content.get(ALGORITHM, {})))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{MANIFEST_NAME} is not readable as a list of files ({error})") from error


def _sizes(content: Mapping[str, Any]) -> dict[str, int]:
    version, files = content["version"], dict(content["files"])
    if version != _VERSION:
        raise ValueError(f"it has version {version!r}, but only {_VERSION} is known here")
    for name, size in files.items():
        if not _stays_inside(name) or not isinstance(size, int) or isinstance(size, bool):
            raise ValueError(f"it holds {name!r}: {size!r}, which is no file of its folder with a size")
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


def missing_or_cut_short(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the names of files that the folder lacks or that are truncated, each with its problem."""
    for name, size in manifest.sizes.items():
        if problem := _problem(folder / name, size):
            yield name, problem


def of_written_size(folder: Path, manifest: Manifest) -> list[str]:
    """Return the files with a checksum whose size is the written one; others are truncated, or replaced on purpose."""
    sizes = {name: size for name, size in manifest.sizes.items() if name in manifest.checksums}
    return [
        name for name, size in sizes.items() if (folder / name).is_file() and (folder / name).stat().st_size == size
    ]


def is_changed(folder: Path, name: str, manifest: Manifest) -> bool:
    """Read a file and return whether its contents differ from those written, or cannot be read."""
    try:
        return checksum(folder / name) != manifest.checksums[name]
    except OSError:
        return True


def _problem(path: Path, size: int) -> str | None:
    if not path.is_file():
        return f"is missing, though {MANIFEST_NAME} names it"
    found = path.stat().st_size
    if found >= size or path.suffix in _KNOWS_ITSELF:
        return None
    return f"is cut short: it has {found} bytes of {size}"


def _stays_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and ".." not in parts and "\\" not in name and ":" not in name and not name.startswith("/")
