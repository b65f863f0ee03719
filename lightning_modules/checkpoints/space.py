"""Free space on the disk: looked at before a checkpoint is begun, so that none fails half-way."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .names import StrPath

_MARGIN = 1 << 20  # bytes for what is small: states, arguments, file headers

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(OSError):
    """There is not enough space for a checkpoint; nothing has been written."""

    def __init__(self, folder: StrPath, needed: int, free: int) -> None:
        super().__init__(
            errno.ENOSPC,
            f"a checkpoint needs about {_readable(needed)}, but only {_readable(free)} are free; free some space, or "
            "set save_total_limit or save_only_model",
            str(folder),
        )


def bytes_of(values: Any) -> int:
    """Size of all tensors in nested dicts, lists and tuples; memory that several share counts once."""
    sizes: dict[Any, int] = {}
    _collect(values, sizes)
    return sum(sizes.values())


def free_space(folder: StrPath) -> int:
    """Bytes that an ordinary user may still write below a folder, which need not be there yet."""
    path = Path(folder).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_space(folder: StrPath, needed: int, *, spare: Iterable[StrPath] = ()) -> list[Path]:
    """What has to be deleted to have the space for a checkpoint.

    Args:
        folder: where it is to be written.
        needed: bytes of its tensors.
        spare: checkpoints that may go, the first one first.

    Returns:
        the shortest beginning of `spare` whose deletion makes enough room, mostly none.

    Raises:
        DiskFullError: not even all of `spare` is enough.
    """
    free = found = free_space(folder)
    doomed: list[Path] = []
    for candidate in map(Path, spare):
        if free >= needed + _MARGIN:
            break
        doomed.append(candidate)
        free += sum(file.stat().st_size for file in candidate.rglob("*") if file.is_file())
    if free < needed + _MARGIN:
        raise DiskFullError(folder, needed + _MARGIN, found)
    return doomed


def is_disk_full(error: BaseException, folder: StrPath) -> bool:
    """Whether an error was a full disk: some libraries report one in words of their own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        if os.strerror(errno.ENOSPC) in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    # torch's writer of zip files says only that a write failed.
    return isinstance(error, OSError) and free_space(folder) < _MARGIN


def _collect(values: Any, sizes: dict[Any, int]) -> None:
    import torch

    if isinstance(values, torch.Tensor):
        sizes[(values.device, values.data_ptr(), values.shape)] = values.numel() * values.element_size()
    elif isinstance(values, dict):
        for value in values.values():
            _collect(value, sizes)
    elif isinstance(values, (list, tuple)):
        for value in values:
            _collect(value, sizes)


def _readable(size: int) -> str:
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.3g} {units[0]}"
