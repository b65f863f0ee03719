"""Stop all processes together when their streams are of different lengths, instead of hanging in
a collective.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from ..common.nested import find_batch_size, map_nested
from .dispatch import DispatchLoader

logger = logging.getLogger(__name__)

_UNKNOWN = -1


def may_be_uneven(loader: Any) -> bool:
    """Return whether processes may have different numbers of batches; not if process 0 reads for
    all.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return False
    if isinstance(loader, DispatchLoader):
        return False
    dataset = getattr(loader, "dataset", None)
    return isinstance(dataset, IterableDataset) or dataset is None or not hasattr(loader, "__len__")


class UnevenInputs:
    """Yield batches for as long as every process has one.

    In every round the processes exchange whether they have a batch, and its size: a few bytes over
    gloo, so that there is no synchronisation with an accelerator. All have to read together.

    Args:
        what: name of the data, for the warning.
        same_size: cut batches to the smallest of the round, so that their outputs can be gathered.
        ends: whether the batch just read is the last one of this process.
    """

    def __init__(
        self, what: str, *, same_size: bool = False, ends: Callable[[], bool] = bool
    ) -> None:
        self.what = what
        self.same_size = same_size
        self.ends = ends
        self.is_last = False
        """True if no process gets another batch after this one."""
        self.uneven = False
        """True if the batches of the processes have differed in number or size so far."""
        self._left_out = 0

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of this process; it reads one more than it yields if another process
        ends first.
        """
        self.is_last = self.uneven = False
        self._left_out, count = 0, 0
        with _group_of_hosts() as group:
            for batch in _with_end(batches):
                own = 0 if batch is None else find_batch_size(batch) or _UNKNOWN
                said = _exchanged(
                    [int(batch is not None), own, int(batch is not None and self.ends())], group
                )
                if not all(there for there, *_ in said):
                    if any(there for there, *_ in said):
                        self._warn_of_end(count, [bool(there) for there, *_ in said])
                    return
                count += 1
                self.is_last = any(last for *_, last in said)
                self.uneven |= self.is_last and not all(last for *_, last in said)
                yield self._cut(batch, [size for _, size, _ in said])

    def _cut(self, batch: Any, sizes: list[int]) -> Any:
        least = min(sizes)
        if not self.same_size or max(sizes) == least:
            return batch
        self.uneven = True
        if not self._left_out:
            said = "%s: the processes have batches of %s samples in one round, cut to the smallest."
            logger.warning(said, self.what, sizes[:16])
        own = sizes[dist.get_rank()]
        self._left_out += own - least
        return map_nested(lambda leaf: _shorter(leaf, own, least), batch)

    def _warn_of_end(self, count: int, there: list[bool]) -> None:
        ended = [rank for rank, more in enumerate(there) if not more]
        said = (
            f"{self.what}: processes {ended[:8]} had {count} batches, and the others more. All "
            "stop after "
            f"{count}.{' The rest is in no prediction and no metric.' * self.same_size} Streams "
            "have to be the same in all processes, or as long; or set dispatch_batches=True in "
            "accelerator_config."
        )
        if count == 0:
            raise ValueError(said)
        logger.warning(said)


def _with_end(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches, and None when there are no more."""
    yield from batches
    yield None


def _exchanged(said: list[int], group: Any) -> list[list[int]]:
    own = torch.tensor(said, device="cpu")
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own, group=group)
    return [one.tolist() for one in gathered]


@contextlib.contextmanager
def _group_of_hosts() -> Iterator[Any]:
    """Provide a gloo group of all processes: the default group if that is one."""
    if str(dist.get_backend()) == "gloo":
        yield None
        return
    group: Any = dist.new_group(backend="gloo")
    try:
        yield group
    finally:
        if dist.is_initialized():
            dist.destroy_process_group(group)


def _shorter(leaf: Any, size: int, least: int) -> Any:
    sized = hasattr(leaf, "shape") and len(leaf.shape) > 0 and leaf.shape[0] == size
    return leaf[:least] if sized else leaf
