"""Stop all ranks together when their streams have different lengths.

Otherwise the ranks that still have data would wait in a collective for those that have ended.
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
    """What a rank reports to the others in a round: 1 for yes, 0 for no.

    Attributes:
        has_batch: it has another batch.
        size: samples in the batch, -1 if unknown.
        is_last: the batch is its last one.
    """

    has_batch: int
    size: int
    is_last: int


def may_be_uneven(loader: object) -> bool:
    """Return whether processes may have different numbers of batches."""
    if not has_other_processes():
        return False
    # Process 0 reads for all, so that they end together.
    if isinstance(loader, DispatchLoader):
        return False
    dataset = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset):
        return True
    return not hasattr(loader, "__len__")


def may_differ_in_rows(loader: object) -> bool:
    """Return whether processes may have batches of different numbers of rows at the same time."""
    if isinstance(loader, DispatchLoader):
        return False
    sharded = getattr(loader, "batch_sampler", None)
    if not isinstance(sharded, ShardedBatchSampler):
        return True
    # Other batch samplers than torch's may choose a size for each batch.
    return not sharded.even_batches or type(sharded.batch_sampler) is not BatchSampler


class UnevenInputs:
    """Yield batches for as long as every process has one.

    In every round the processes exchange whether they have a batch, and its size: a few bytes over
    gloo, so that nothing waits for an accelerator. All have to read together.

    Args:
        description: name of the data, for messages.
        same_size: cut batches to the smallest of the round, so that their outputs can be gathered.
        ends: whether the batch just read is the last one of this process; by default that is not
            known before the end, as `bool()` is False.

    Attributes:
        is_last: no process gets another batch after this one.
        uneven: the batches of the processes have differed in number or size so far.
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

        It reads one more than it yields if another process ends first.
        """
        self.is_last = False
        self.uneven = False
        self._has_cut = False
        rounds = 0
        with _gloo_group() as group:
            for batch in _with_end(batches):
                statuses = gather_objects(self._status(batch), group)

                # All stop as soon as one process has no batch.
                have_batches = [bool(status.has_batch) for status in statuses]
                if not all(have_batches):
                    if any(have_batches):
                        self._report_early_end(rounds, have_batches)
                    return

                rounds += 1

                # There is no further round once one process is at its end.
                ranks_at_end = sum(status.is_last for status in statuses)
                self.is_last = ranks_at_end > 0
                if 0 < ranks_at_end < len(statuses):
                    self.uneven = True
                yield self._cut(batch, [status.size for status in statuses])

    def _status(self, batch: object) -> _RankStatus:
        """Return what this rank reports to the others; `batch` is None at the end."""
        if batch is None:
            return _RankStatus(has_batch=0, size=0, is_last=0)
        size = find_batch_size(batch) or _UNKNOWN_SIZE
        return _RankStatus(has_batch=1, size=size, is_last=int(self.ends()))

    def _cut(self, batch: object, sizes: list[int]) -> object:
        """Cut a batch to the smallest of the round, if batches have to have the same size."""
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
        """Warn that some processes have no further batch; raise if they had none at all."""
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
    """Provide a gloo group of all processes: the default group if that is one."""
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
    """Return the first `count` rows of a tensor or array of `size` rows; other values as is."""
    if hasattr(leaf, "shape") and len(leaf.shape) > 0 and leaf.shape[0] == size:
        return leaf[:count]
    return leaf
