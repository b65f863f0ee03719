"""Agree across ranks on a signal or an elapsed time limit, without synchronizing the
accelerator.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any


class SignalExchange:
    """Shares a signal among all ranks with asynchronous all-reduces over gloo.

    All ranks call `exchange` at the same places; a value sent in one call is received in the next.
    An exchange takes some tenths of a millisecond, so short steps skip it: each exchange also
    agrees on the call that does the next one.
    """

    seconds = 0.025
    """The time between two exchanges, where steps are shorter."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._group: Any = dist.new_group(backend="gloo")
        self._under_way: Any = None
        self._values: Any = None
        self._calls = self._sent_at = self._next = 0
        self._interval = 1
        self._clock = time.perf_counter()
        self.agreed = 0

    def exchange(self, number: int, now: bool) -> int:
        """Send this rank's signal, 0 for none, and return the one agreed on last time, or with
        `now` this time.
        """
        if self.agreed:
            return self.agreed
        self._calls += 1
        self._receive()
        if not self.agreed and (now or self._calls >= self._next):
            self._send(number)
            if now:
                self._receive()
        return self.agreed

    def leave(self) -> None:
        """Destroy the process group, unless the other ranks do not answer any more."""
        import torch.distributed as dist

        under_way = self._under_way
        self._under_way = None
        try:
            if under_way is not None:
                under_way.wait(timedelta(seconds=2))
        except RuntimeError:
            return
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    def _send(self, number: int) -> None:
        import torch
        import torch.distributed as dist

        clock = time.perf_counter()
        each = (clock - self._clock) / max(self._calls - self._sent_at, 1)
        # the first steps may not be like others
        wanted = int(min(self.seconds / max(each, 1e-9), 2 * self._interval))
        self._clock = clock
        self._sent_at = self._calls
        self._values = torch.tensor([number, -max(wanted, 1)], dtype=torch.int32, device="cpu")
        self._under_way = dist.all_reduce(
            self._values, dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def _receive(self) -> None:
        under_way = self._under_way
        self._under_way = None
        if under_way is not None:
            under_way.wait()
            self.agreed, longest = self._values.tolist()
            self._interval = -longest
            self._next = self._sent_at + self._interval


def processes() -> int:
    """Return the world size; 1 where torch.distributed is not initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()
