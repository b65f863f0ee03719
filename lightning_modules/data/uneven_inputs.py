"""Streams that give some processes more than others: all of them stop together, instead of waiting for ever."""

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
    """Tell whether only reading tells how many batches each process has; not where the first one reads for all."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return False
    if isinstance(loader, DispatchLoader):
        return False
    dataset = getattr(loader, "dataset", None)
    return isinstance(dataset, IterableDataset) or dataset is None or not hasattr(loader, "__len__")


class UnevenInputs:
    """What each process reads, as long as all of them have something.

    In every round the processes tell each other whether they have a batch, and how large it is: a few bytes, over the
    network of the hosts, so that no accelerator is waited for. All have to read together.

    Args:
        what: what is read, for the warning.
        same_size: cut batches to the smallest of the round, as exchanging what comes out of them asks for.
        ends: whether the batch just read is the last one of this process.
    """

    def __init__(self, what: str, *, same_size: bool = False, ends: Callable[[], bool] = bool) -> None:
        self.what = what
        self.same_size = same_size
        self.ends = ends
        self.is_last = False
        """Whether no process gets another batch after this one."""
        self.uneven = False
        """Whether some processes had other batches than others, up to now."""
        self._left_out = 0

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of this process, of which it reads one more than it gets where another has no more."""
        self.is_last = self.uneven = False
        self._left_out, count = 0, 0
        with _group_of_hosts() as group:
            for batch in _with_end(batches):
                own = 0 if batch is None else find_batch_size(batch) or _UNKNOWN
                said = _exchanged([int(batch is not None), own, int(batch is not None and self.ends())], group)
                if not all(there for there, *_ in said):
                    if any(there for there, *_ in said):
                        self._warn_who_ended(count, [bool(there) for there, *_ in said])
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
            logger.warning(
                "%s: the processes have batches of %s samples in the same round. As many as the smallest one has are "
                "used of each, the others are left out. Give all processes the same stream, or as many samples.",
                self.what,
                ", ".join(map(str, sizes[:16])),
            )
        own = sizes[dist.get_rank()]
        self._left_out += own - least
        return map_nested(lambda leaf: _shorter(leaf, own, least), batch)

    def _warn_who_ended(self, count: int, there: list[bool]) -> None:
        ended = [rank for rank, more in enumerate(there) if not more]
        others = [rank for rank, more in enumerate(there) if more]
        said = (
            f"{self.what}: {_processes(ended)} had {count} batches, and {_processes(others)} more. "
            f"All stop after {count}, so that none waits for another for ever."
            + " The rest is in no prediction and no metric."
            * self.same_size
        )
        advice = (
            " Streams have to be the same in all processes, which then share them; or as long, where each reads one of "
            "its own. dispatch_batches=True in accelerator_config lets process 0 read for all."
        )
        if count == 0:
            raise ValueError(said + advice)
        logger.warning(said + advice)


def _with_end(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches, and None when there are no more."""
    yield from batches
    yield None


def _exchanged(said: list[int], group: Any) -> list[list[int]]:
    own = torch.tensor(said)
    everybody = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, own, group=group)
    return [one.tolist() for one in everybody]


@contextlib.contextmanager
def _group_of_hosts() -> Iterator[Any]:
    """A group that exchanges what is in main memory: that of all processes, where it does."""
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


def _processes(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    return f"processes {', '.join(map(str, ranks[:8]))}" + (" and others" if len(ranks) > 8 else "")
