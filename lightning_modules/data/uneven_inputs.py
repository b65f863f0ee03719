"""Stop all ranks together when their streams have different lengths.

Otherwise ranks that still have data would wait in a collective for the others, and deadlock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.utils.data import BatchSampler, IterableDataset

from ..common.collectives import gather_objects, gloo_group, has_other_processes
from ..common.nested import find_batch_size, map_nested
from .batch_samplers import ShardedBatchSampler
from .dispatch import DispatchLoader

logger = logging.getLogger(__name__)

_UNKNOWN_SIZE = -1


class _RankStatus(NamedTuple):
    """Status that a rank sends to the others in each round; flags are 0 or 1.

    Attributes:
        has_batch: whether it has another batch.
        size: number of samples in the batch; -1 if unknown.
        is_last: whether this is its last batch.
    """

    has_batch: int
    size: int
    is_last: int


def may_be_uneven(loader: object) -> bool:
    """Return whether processes may have different numbers of batches."""
    if not has_other_processes():
        return False
    # Rank 0 reads for all, so that they end together.
    if isinstance(loader, DispatchLoader):
        return False
    dataset = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset):
        return True
    return not hasattr(loader, "__len__")


def may_differ_in_rows(loader: object) -> bool:
    """Return whether batches of the same round may have different numbers of rows."""
    if isinstance(loader, DispatchLoader):
        return False
    sharded = getattr(loader, "batch_sampler", None)
    if not isinstance(sharded, ShardedBatchSampler):
        return True
    # Custom batch samplers may choose a different size for each batch.
    return not sharded.even_batches or type(sharded.batch_sampler) is not BatchSampler


class UnevenInputs:
    """Yield batches as long as every process has one.

    In each round the processes exchange whether they have a batch, and its size. It is sent over
    gloo, to avoid a synchronization with the device. All processes must read together.

    Args:
        description: the name of the data in messages.
        same_size: whether to truncate batches to the smallest one of the round, so that their
            outputs can be gathered.
        ends: returns whether the current batch is the last one of this process. The default `bool`
            returns False, because it is not known in advance.

    Attributes:
        is_last: whether this is the last batch on all processes.
        uneven: whether batches have differed in number or size between processes so far.
    """

    def __init__(
        self, description: str, *, same_size: bool = False, ends: Callable[[], bool] = bool
    ) -> None:
        self.description = description
        self.same_size = same_size
        self.ends = ends
        self.is_last = False
        self.uneven = False
        self._has_cut = False

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of this process.

        If another process ends first, one batch that was read is not yielded.
        """
        self.is_last = False
        self.uneven = False
        self._has_cut = False
        rounds = 0
        with _gloo_group() as group:
            for batch in _with_end(batches):
                statuses = gather_objects(self._status(batch), group)

                # Stop as soon as one process has no batch.
                have_batches = [bool(status.has_batch) for status in statuses]
                if not all(have_batches):
                    if any(have_batches):
                        self._report_early_end(rounds, have_batches)
                    return

                rounds += 1

                # There are no further rounds if one process is at its end.
                ranks_at_end = sum(status.is_last for status in statuses)
                self.is_last = ranks_at_end > 0
                if 0 < ranks_at_end < len(statuses):
                    self.uneven = True
                yield self._cut(batch, [status.size for status in statuses])

    def _status(self, batch: object) -> _RankStatus:
        """Return the status of this rank; `batch` is None at the end."""
        if batch is None:
            return _RankStatus(has_batch=0, size=0, is_last=0)
        size = find_batch_size(batch) or _UNKNOWN_SIZE
        return _RankStatus(has_batch=1, size=size, is_last=int(self.ends()))

    def _cut(self, batch: object, sizes: list[int]) -> object:
        """Truncate a batch to the smallest one of the round, if batches must have the same size."""
        smallest = min(sizes)
        if not self.same_size or max(sizes) == smallest:
            return batch
        self.uneven = True
        if not self._has_cut:
            logger.warning(
                "%s: batches of one round have %s samples on the processes. They are cut to the "
                "smallest; the other samples are left out.",
                self.description,
                sizes[:16],
            )
            self._has_cut = True
        size = sizes[dist.get_rank()]
        return map_nested(lambda leaf: _first_rows(leaf, size, smallest), batch)

    def _report_early_end(self, rounds: int, have_batches: list[bool]) -> None:
        """Warn that some processes have no further batches; raise if they had none at all."""
        ended = [rank for rank, has_batch in enumerate(have_batches) if not has_batch]
        consequence = ""
        if self.same_size:
            consequence = " Predictions and metrics leave out the remaining samples."
        message = (
            f"{self.description}: processes {ended[:8]} had {rounds} batches, and the others more. "
            f"All stop after {rounds}.{consequence} Give all processes the same stream, or streams "
            "of the same length, or set dispatch_batches=True in accelerator_config."
        )
        if rounds == 0:
            raise ValueError(message)
        logger.warning(message)


def _with_end(batches: Iterator[object]) -> Iterator[object]:
    """Yield the batches, and None after the last one."""
    yield from batches
    yield None


@contextlib.contextmanager
def _gloo_group() -> Generator[Any]:
    """Provide a gloo group of all processes, which is the default group if that uses gloo."""
    if str(dist.get_backend()) == "gloo":
        yield None
        return
    group = gloo_group()
    try:
        yield group
    finally:
        if dist.is_initialized():
            dist.destroy_process_group(group)


def _first_rows(leaf: Any, size: int, count: int) -> object:
    """Return the first `count` rows of a tensor or array with `size` rows, or the value."""
    if hasattr(leaf, "shape") and len(leaf.shape) > 0 and leaf.shape[0] == size:
        return leaf[:count]
    return leaf
