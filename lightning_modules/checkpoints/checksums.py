"""Checksums of the files of a checkpoint, by which a later look finds a byte that has changed.

xxHash is no protection against people who forge files, but it takes a tenth of the time that writing takes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from threading import Thread

from . import disk

ALGORITHM = "xxh3_64"

_BLOCK = 1 << 20  # bytes
_LARGE = 4 << 20  # bytes; smaller files are flushed in less time than a thread takes
_NOTED = ".checksums-*.json"


def checksum(path: Path) -> str:
    """The checksum of a file, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    from xxhash import xxh3_64

    found, block = xxh3_64(), memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:  # not mapped: a disk that cannot read it would end the process
        while count := file.readinto(block):
            found.update(block[:count])
    return found.hexdigest()


def checksum_of_text(text: str) -> str:
    """The checksum of a text."""
    from xxhash import xxh3_64_hexdigest

    return xxh3_64_hexdigest(text.encode())


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Those of files that were just written, by their names; they are flushed to the disk meanwhile.

    Args:
        folder: a checkpoint in the making.
        names: relative to it. Of those that `note_checksums` has noted nothing is read.
    """
    noted, names = take_noted(folder), [name for name in names if not fnmatch(Path(name).name, _NOTED)]
    with _flushed([folder / name for name in names]):
        return {name: noted.get(name) or checksum(folder / name) for name in names}


def note_checksums(folder: Path, files: Iterable[Path]) -> None:
    """Leave the checksums of files that this process has written to the one that lists all of them.

    Args:
        folder: that of the files; others write into it too.
        files: those that this process has written.
    """
    found = {path.name: checksum(path) for path in files}
    if found:
        path = folder / _NOTED.replace("*", f"{os.getpid()}-{min(found)}")
        path.write_text(json.dumps(found), encoding="utf-8")


def take_noted(folder: Path) -> dict[str, str]:
    """Take what was noted below a folder, by names relative to it; the notes are removed."""
    found: dict[str, str] = {}
    for path in list(folder.rglob(_NOTED)):
        noted: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8"))
        found |= {(path.parent / name).relative_to(folder).as_posix(): value for name, value in noted.items()}
        path.unlink()
    return found


@contextmanager
def _flushed(paths: Iterable[Path]) -> Iterator[None]:
    """Flush the large ones of some files to the disk while the block runs.

    Raises:
        OSError: the disk refused.
    """
    large = [path for path in paths if path.stat().st_size >= _LARGE]
    errors: list[OSError] = []

    def flush() -> None:
        try:
            for path in large:
                disk.sync_path(path)
        except OSError as error:
            errors.append(error)

    thread = Thread(target=flush, name="checkpoint-flush") if large else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        if thread is not None:
            thread.join()
    if errors:
        raise errors[0]
