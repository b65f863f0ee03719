"""A full disk in one of several processes, told to all: one that went on alone would leave the others waiting."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from .names import StrPath
from .space import is_disk_full


class DiskErrorConsensus:
    """The parts of one checkpoint, which all processes go through, in the same order.

    Args:
        folder: where it is to be; the error names it.
        processes: how many there are.
    """

    def __init__(self, folder: StrPath, processes: int) -> None:
        self.folder = folder
        self.processes = processes
        self._error: BaseException | None = None

    @contextmanager
    def part(self) -> Iterator[None]:
        """One part. Where there are several processes, a full disk is kept until `agree`: they may meet in the next.

        Raises:
            BaseException: any other error, at once.
        """
        try:
            yield
        except Exception as error:
            if self.processes == 1 or not is_disk_full(error, self.folder):
                raise
            self._error = self._error or error

    def agree(self) -> None:
        """Wait for everyone.

        Raises:
            OSError: the disk of some process is full.
        """
        if self.processes == 1:
            return
        first = self._first_that_failed()
        if self._error is not None:
            raise self._error
        if first is not None:
            raise OSError(errno.ENOSPC, f"the disk is full for process {first}", str(self.folder))

    def _first_that_failed(self) -> int | None:
        import torch
        import torch.distributed as dist

        from ..data.shared_rng import transport_device

        rank = dist.get_rank() if self._error is not None else self.processes
        first = torch.tensor([rank], device=transport_device())
        dist.all_reduce(first, dist.ReduceOp.MIN)
        return None if int(first) == self.processes else int(first)
