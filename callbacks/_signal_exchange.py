"""Agree across ranks on a signal or an elapsed time limit, without synchronizing the device."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class SignalExchange:
    """Shares a signal among all ranks with asynchronous all-reduces over gloo.

    All ranks call `exchange` at the same places; a value sent in one call is received in the next.
    An exchange takes some tenths of a millisecond, so it is skipped where steps are short: in each
    exchange the ranks also agree on the number of calls until the next one.

    Attributes:
        agreed_signal: the largest signal number that any rank has sent; 0 before.
    """

    interval_seconds = 0.025
    """The time between two exchanges, where steps are shorter."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.agreed_signal: int = 0
        # Typed as Any: torch declares an int too, which it returns to ranks outside of the group.
        self._group: Any = dist.new_group(backend="gloo")  # pyright: ignore[reportUnknownMemberType] - untyped in torch

        # The exchange that is in progress: its handle, and the tensor that it reduces.
        self._pending: dist.Work | None = None
        self._reduced: torch.Tensor | None = None

        # Calls so far, the call of the last exchange, and the call of the next one.
        self._calls = 0
        self._last_exchange = 0
        self._next_exchange: int = 0
        self._calls_between: int = 1
        self._last_exchange_time = time.perf_counter()

    def exchange(self, signal_number: int, wait: bool) -> int:
        """Send this rank's signal, and return the one that the ranks have agreed on.

        Args:
            signal_number: the signal number of this rank; 0 for none.
            wait: wait for the result. Otherwise the result is that of the previous exchange.
        """
        if self.agreed_signal:
            return self.agreed_signal

        self._calls += 1
        self._receive()
        is_due = wait or self._calls >= self._next_exchange
        if is_due and not self.agreed_signal:
            self._send(signal_number)
            if wait:
                self._receive()
        return self.agreed_signal

    def close(self) -> None:
        """Destroy the process group, unless the other ranks no longer answer."""
        import torch.distributed as dist

        pending = self._pending
        self._pending = None

        # An exchange that is under way has to end before its group is destroyed.
        try:
            if pending is not None:
                pending.wait(timedelta(seconds=2))
        except RuntimeError:
            return
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    def _send(self, signal_number: int) -> None:
        import torch
        import torch.distributed as dist

        now = time.perf_counter()
        calls = max(self._calls - self._last_exchange, 1)
        seconds_per_call = (now - self._last_exchange_time) / calls
        self._last_exchange_time = now
        self._last_exchange = self._calls

        # At most twice as many calls as last time, since the first steps may take longer or
        # shorter than the others.
        calls_in_interval = self.interval_seconds / max(seconds_per_call, 1e-9)
        calls_between = int(min(calls_in_interval, 2 * self._calls_between))

        # The maximum of the negative numbers is the smallest number of calls of all ranks.
        self._reduced = torch.tensor(
            [signal_number, -max(calls_between, 1)], dtype=torch.int32, device="cpu"
        )
        self._pending = dist.all_reduce(  # pyright: ignore[reportUnknownMemberType] - untyped in torch
            self._reduced, dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def _receive(self) -> None:
        pending = self._pending
        self._pending = None
        if pending is None or self._reduced is None:
            return
        pending.wait()
        reduced = cast("list[int]", self._reduced.tolist())  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        self.agreed_signal = reduced[0]
        self._calls_between = -reduced[1]
        self._next_exchange = self._last_exchange + self._calls_between


def world_size() -> int:
    """Return the number of processes; 1 if torch.distributed is not initialized."""
    # Looked up in sys.modules, so that torch is not imported.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()
