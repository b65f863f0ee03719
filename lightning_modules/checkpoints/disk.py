"""Disk operations of checkpoints: flush, delete, free space, and a full disk.

Free space is checked before a checkpoint is begun, so that none fails half-way. A full disk of one
process is raised in all of them, since one that went on alone would hang in a collective.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..common.collectives import transport_device
from ..common.local_paths import StrPath
from ..common.nested import leaves

_log = logging.getLogger(__name__)


def sync_path(path: StrPath) -> None:
    """Flush one file, or the entries of one folder, to the disk.

    Folders cannot be opened on Windows and cannot be flushed on a few network file systems; there
    this does nothing.
    """
    is_folder = os.path.isdir(path)
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
            path = os.path.join(root, name)
            if not os.path.islink(path):
                sync_path(path)
        sync_path(root)


def delete(path: Path) -> None:
    """Remove a file, a link or a folder with its contents."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


MARGIN = 1 << 20  # bytes for small files: states, arguments, headers

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(OSError):
    """There is not enough space for a checkpoint; nothing has been written."""

    def __init__(self, folder: StrPath, needed: int, free: int) -> None:
        super().__init__(
            errno.ENOSPC,
            f"a checkpoint needs about {needed:,} bytes, but only {free:,} bytes are free; free "
            "some space, or set save_total_limit or save_only_model",
            str(folder),
        )


def tensor_bytes(values: Any) -> int:
    """Return the size of all tensors in nested dicts, lists and tuples; shared memory counts
    once.
    """
    tensors = [leaf for leaf in leaves(values) if isinstance(leaf, torch.Tensor)]
    return sum(
        {
            (one.device, one.data_ptr(), one.shape): one.numel() * one.element_size()
            for one in tensors
        }.values()
    )


def free_space(folder: StrPath) -> int:
    """Return the bytes that an ordinary user may still write below a folder, which need not
    exist yet.
    """
    while not os.path.exists(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    return shutil.disk_usage(folder).free


def require_space(folder: StrPath, needed: int, *, spare: Iterable[StrPath] = ()) -> list[Path]:
    """Return the checkpoints to delete to make space for a new one.

    Args:
        folder: the folder of the new one.
        needed: bytes of its tensors.
        spare: checkpoints that may be deleted, in this order.

    Returns:
        the shortest beginning of `spare` whose deletion makes enough room, mostly none.

    Raises:
        DiskFullError: not even all of `spare` is enough.
    """
    free = found = free_space(folder)
    doomed: list[Path] = []
    for candidate in map(Path, spare):
        if free >= needed + MARGIN:
            break
        doomed.append(candidate)
        free += sum(file.stat().st_size for file in candidate.rglob("*") if file.is_file())
    if free < needed + MARGIN:
        raise DiskFullError(folder, needed + MARGIN, found)
    return doomed


def is_disk_full(error: BaseException, folder: StrPath) -> bool:
    """Return whether an error was caused by a full disk; some libraries report it only in the
    message.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        if os.strerror(errno.ENOSPC) in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    # torch's writer of zip files says only that a write failed.
    return isinstance(error, OSError) and error.errno is None and free_space(folder) < MARGIN


def warn_if_disk_full(error: BaseException, folder: StrPath) -> None:
    """Warn about a full disk instead of ending the training.

    Raises:
        BaseException: the error itself, if it has another cause.
    """
    if not is_disk_full(error, folder):
        raise error
    _log.warning(
        "No checkpoint was written to %s, for the disk is full (%s). Training goes on, and the "
        "older checkpoints are untouched. Free some space, or set save_total_limit or "
        "save_only_model.",
        Path(folder),
        error,
    )


def run_on_all_ranks(jobs: Iterable[Callable[[], object]], folder: StrPath, processes: int) -> None:
    """Run the jobs of a checkpoint on all processes, and raise a full disk of one of them on all;
    collective.

    A process whose disk is full runs its other jobs all the same, as these may be collective.

    Args:
        jobs: in the order in which all processes run them; some processes may have fewer that are
            not collective.
        folder: the checkpoint, for the error.
        processes: number of processes.

    Raises:
        OSError: the disk of some process is full.
        BaseException: any other error, at once.
    """
    if processes == 1:
        for job in jobs:
            job()
        return

    full: Exception | None = None
    for job in jobs:
        try:
            job()
        except Exception as error:
            if not is_disk_full(error, folder):
                raise
            full = full or error

    rank = processes if full is None else dist.get_rank()
    first = torch.tensor([rank], device=transport_device())
    dist.all_reduce(first, dist.ReduceOp.MIN)
    if full is not None:
        raise full
    if first < processes:
        raise OSError(errno.ENOSPC, f"the disk is full for process {int(first)}", str(folder))
