"""The list of files of a checkpoint with their sizes, by which a later look tells whether something got lost.

The reference has no such file. Its name begins with an underscore, which the reference leaves out when it uploads a
folder, and it is no name that either library reads weights or states from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .jobs import job_mark
from .names import StrPath

MANIFEST_NAME = "_manifest.json"
"""Lies in every checkpoint written here; those of the reference have none."""

_VERSION = 1

# People edit these by hand, and a cut-short one cannot be read; so only whether they are there is compared.
_EDITABLE = (".json",)

# Files of these kinds tell by themselves whether they are whole, and somebody may have put others in their place.
_KNOWS_ITSELF = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")


def write_manifest(folder: StrPath) -> None:
    """Write down the name and size of every file below a folder, which is complete but for its manifest.

    Args:
        folder: a checkpoint in the making, see `begin`; to be called once, before `commit`.
    """
    folder = Path(folder)
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST_NAME)
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}
    job = job_mark()
    content = {"version": _VERSION, "files": sizes, **({} if job is None else {"job": job})}
    text = json.dumps(content, indent=2)
    (folder / MANIFEST_NAME).write_text(f"{text}\n", encoding="utf-8")


def read_manifest(folder: StrPath) -> dict[str, int] | None:
    """The sizes of the files in bytes, by their names relative to the folder; None where there is no manifest.

    Raises:
        ValueError: it is damaged, or names files outside of the folder.
    """
    path = Path(folder) / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, files = content["version"], dict(content["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{MANIFEST_NAME} is not readable as a list of files ({error!r})") from error
    if version != _VERSION:
        raise ValueError(f"{MANIFEST_NAME} has version {version!r}, but only {_VERSION} is known here")
    for name, size in files.items():
        if not _stays_inside(name) or not isinstance(size, int) or isinstance(size, bool):
            raise ValueError(f"{MANIFEST_NAME} holds {name!r}: {size!r}, which is no file of its folder with a size")
    return files


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
