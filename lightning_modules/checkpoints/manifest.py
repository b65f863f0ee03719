"""The list of files of a checkpoint, by which a later look tells whether something got lost or was damaged.

The reference has no such file. Its name begins with an underscore, which the reference leaves out when it uploads a
folder, and it is no name that either library reads weights or states from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from .checksums import ALGORITHM, checksum, checksum_of_text, checksums
from .jobs import job_mark
from .names import StrPath

MANIFEST_NAME = "_manifest.json"
"""Lies in every checkpoint written here; those of the reference have none."""

_VERSION = 1
_OWN = "checksum"

# People edit these by hand, and a cut-short one cannot be read; so only whether they are there is compared.
_EDITABLE = (".json",)

# Files of these kinds tell by themselves whether they are whole, and somebody may have put others in their place.
_KNOWS_ITSELF = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")


def write_manifest(folder: StrPath) -> None:
    """Write down name, size and checksum of every file below a folder, which is complete but for its manifest.

    Args:
        folder: a checkpoint in the making, see `begin`; to be called once, before `commit`.
    """
    folder = Path(folder)
    found = checksums(folder, [name for name in files_below(folder) if name != MANIFEST_NAME])
    sizes = {name: (folder / name).stat().st_size for name in found}
    job = job_mark()
    content = {"version": _VERSION, "files": sizes, ALGORITHM: found, **({} if job is None else {"job": job})}
    content[_OWN] = _own_checksum(content)
    text = json.dumps(content, indent=2)
    (folder / MANIFEST_NAME).write_text(f"{text}\n", encoding="utf-8")


def read_manifest(folder: StrPath) -> dict[str, int] | None:
    """The sizes of the files in bytes, by their names relative to the folder; None where there is no manifest.

    Raises:
        ValueError: it is damaged, or names files outside of the folder.
    """
    content = _content(Path(folder))
    return None if content is None else _sizes(content)


def read_checksums(folder: StrPath) -> dict[str, str]:
    """The checksums of the files, by their names; none where there is no manifest, or one without.

    Raises:
        ValueError: as for `read_manifest`.
    """
    content = _content(Path(folder))
    found: Any = None if content is None else content.get(ALGORITHM)
    return dict(found) if isinstance(found, dict) else {}


def _content(folder: Path) -> dict[str, Any] | None:
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = content.get(_OWN)
        if (own is not None or ALGORITHM in content) and own != _own_checksum(content):
            raise ValueError("its own checksum differs; if you changed it, remove it, and nothing is compared")
        _sizes(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = str(error).removeprefix(f"{MANIFEST_NAME} ")
        raise ValueError(f"{MANIFEST_NAME} is not readable as a list of files ({said or repr(error)})") from error
    return content


def _sizes(content: Mapping[str, Any]) -> dict[str, int]:
    version, files = content["version"], dict(content["files"])
    if version != _VERSION:
        raise ValueError(f"{MANIFEST_NAME} has version {version!r}, but only {_VERSION} is known here")
    for name, size in files.items():
        if not _stays_inside(name) or not isinstance(size, int) or isinstance(size, bool):
            raise ValueError(f"{MANIFEST_NAME} holds {name!r}: {size!r}, which is no file of its folder with a size")
    return files


def _own_checksum(content: Mapping[str, Any]) -> str:
    """The checksum of all that a manifest says otherwise."""
    return checksum_of_text(json.dumps({key: value for key, value in content.items() if key != _OWN}, sort_keys=True))


def files_below(folder: Path) -> list[str]:
    """All files below a folder, as sorted names relative to it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def manifest_problems(folder: StrPath) -> Iterator[tuple[str, str]]:
    """What the manifest knows and the folder does not have; further files are nobody's business.

    Args:
        folder: the checkpoint; without a manifest it has no problems here.

    Yields:
        the name of a file and what is wrong with it.
    """
    try:
        sizes = read_manifest(folder) or {}
    except ValueError as error:
        yield MANIFEST_NAME, str(error).removeprefix(f"{MANIFEST_NAME} ")
        return
    for name, size in sizes.items():
        if problem := _problem(Path(folder, name), size):
            yield name, problem


def changed_files(folder: StrPath) -> Iterator[str]:
    """Find the files that have the size which they were written with, and other contents; each is read.

    A file of another size was put there on purpose, or does not tell that it is whole: see `manifest_problems`.

    Args:
        folder: the checkpoint; where no checksums were written, nothing is found.

    Yields:
        their names.
    """
    try:
        sizes, expected = read_manifest(folder) or {}, read_checksums(folder)
    except ValueError:  # which is a problem of its own
        return
    for name, size in sizes.items():
        path = Path(folder, name)
        if name not in expected or not path.is_file() or path.stat().st_size != size:
            continue
        try:
            same = checksum(path) == expected[name]
        except OSError:  # the disk cannot read it
            same = False
        if not same:
            yield name


def _problem(path: Path, size: int) -> str | None:
    if not path.is_file():
        return f"is missing, though {MANIFEST_NAME} names it"
    found = path.stat().st_size
    if found >= size or path.suffix in (*_EDITABLE, *_KNOWS_ITSELF):
        return None
    return f"is cut short: it has {found} bytes of {size}"


def _stays_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and ".." not in parts and "\\" not in name and ":" not in name and not name.startswith("/")
