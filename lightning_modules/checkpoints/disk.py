"""Disk operations for checkpoints: flush, delete, check free space, and handle a full disk.

Free space is checked before a checkpoint is written, so that writing does not fail half-way. If the
disk of one rank is full, all ranks raise; otherwise the others would hang in the next collective.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Generator, Hashable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist

from ..common.collectives import min_over_ranks
from ..common.flushing import flush
from ..common.local_paths import StrPath
from ..common.nested import leaves

_log = logging.getLogger(__name__)


def sync_path(path: StrPath) -> None:
    """Flush one file, or the entries of one folder, to the disk.

    Does nothing where flushing is not supported: for folders on Windows, and as `flush`.
    """
    is_folder = os.path.isdir(path)
    flags = os.O_RDONLY
    if os.name == "nt":
        if is_folder:
            return
        # Windows flushes only files that are open for writing.
        flags = os.O_RDWR

    descriptor = os.open(path, flags)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush every file below `folder` and every folder, deepest first."""
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


MARGIN = 1 << 20
"""Bytes reserved for small files: states, arguments, headers."""

_DISK_FULL_CODES = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(OSError):
    """A checkpoint needs more space than the disk has; nothing has been written."""

    def __init__(self, folder: StrPath, needed: int, free: int) -> None:
        super().__init__(
            errno.ENOSPC,
            f"a checkpoint needs about {needed:,} bytes, but only {free:,} bytes are free; free "
            "some space, or set save_total_limit or save_only_model",
            str(folder),
        )


def tensor_bytes(values: object) -> int:
    """Return the size of all tensors in nested dicts, lists and tuples, in bytes.

    Tied tensors count once.
    """
    sizes: dict[Hashable, int] = {}
    for leaf in leaves(values):
        if isinstance(leaf, torch.Tensor):
            key = (leaf.device, leaf.data_ptr(), leaf.shape)
            sizes[key] = leaf.numel() * leaf.element_size()
    return sum(sizes.values())


def free_space(folder: StrPath) -> int:
    """Return the free bytes that an unprivileged user can write below a folder.

    Args:
        folder: a folder that may not exist yet.
    """
    while not os.path.exists(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    return shutil.disk_usage(folder).free


def require_space(folder: StrPath, needed: int, *, spare: Iterable[StrPath] = ()) -> list[Path]:
    """Return the checkpoints to delete to make space for a new one.

    Args:
        folder: the folder of the new one.
        needed: size of its tensors, in bytes.
        spare: checkpoints that may be deleted, in this order.

    Returns:
        The first elements of `spare`, as few as free enough space. Usually empty.

    Raises:
        DiskFullError: deleting all of `spare` would not free enough space.
    """
    required = needed + MARGIN
    free_now = free_space(folder)

    # Delete as few checkpoints as possible.
    free = free_now
    to_delete: list[Path] = []
    for candidate in spare:
        if free >= required:
            break
        checkpoint = Path(candidate)
        to_delete.append(checkpoint)
        free += _size_of_folder(checkpoint)
    if free < required:
        raise DiskFullError(folder, required, free_now)
    return to_delete


def _size_of_folder(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            size += path.stat().st_size
    return size


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, reports a full disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _DISK_FULL_CODES:
            return True
        # Some libraries report it only in the message.
        if os.strerror(errno.ENOSPC) in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def warn_if_disk_full(error: BaseException, folder: StrPath) -> None:
    """Log a warning if the error reports a full disk, so that training continues.

    Raises:
        BaseException: the error itself, if it reports anything else.
    """
    if not is_disk_full(error):
        raise error
    _log.warning(
        "No checkpoint was written to %s because the disk is full (%s). Training continues, and "
        "older checkpoints are kept. Free some space, or set save_total_limit or save_only_model.",
        Path(folder),
        error,
    )


@contextlib.contextmanager
def full_disk_on_all_ranks(folder: StrPath, processes: int) -> Generator[None]:
    """Raise on all ranks if the block finds the disk of one rank full.

    All processes must call this.

    Args:
        folder: the checkpoint, for the error message.
        processes: the world size.

    Raises:
        OSError: the disk of some rank is full.
        BaseException: any other error of this rank, without waiting for the others.
    """
    if processes == 1:
        yield
        return

    own_error: Exception | None = None
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        # Raised after the collective below, because the other ranks wait in it.
        own_error = error

    # The lowest rank whose disk is full; the number of processes if no disk is.
    own_rank = processes if own_error is None else dist.get_rank()
    first_rank = min_over_ranks(own_rank)
    if own_error is not None:
        raise own_error
    if first_rank < processes:
        raise OSError(errno.ENOSPC, f"the disk of rank {first_rank} is full", str(folder))
