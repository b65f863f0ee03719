"""Communication between the processes of a search, separate from that of their trainings."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import torch.distributed as dist

from ..common.collectives import has_other_processes
from ..distributed.health import OtherProcessError
from ..internals.torch_names import default_store

Result = TypeVar("Result")

FAILURE = "lightrainer:failure"
"""User attribute of a trial: why it failed."""


class Outcome(NamedTuple):
    """How a trial ended in one process."""

    kind: str
    """`done`, `pruned` or `failed`."""
    caught: bool = False
    """True if the search continues after this failure."""
    message: str = ""
    """The error message of a failed trial."""


class Channel:
    """A separate process group over gloo, so that messages never mix with gradients.

    In a single process it does nothing. All ranks have to create it at the same point.

    Args:
        seconds: timeout; longer than the largest difference between the times that two ranks need
            for the same trial.
        seconds_to_fail: timeout of a rank whose trial failed.
    """

    def __init__(self, seconds: float = 1800, seconds_to_fail: float = 60) -> None:
        self.is_single_process = not has_other_processes()
        self.is_first = self.is_single_process or dist.get_rank() == 0
        self._timeout = timedelta(seconds=seconds)
        self._timeout_to_fail = timedelta(seconds=seconds_to_fail)
        self._trials = 0
        self._group: dist.ProcessGroup | None = None
        if self.is_single_process:
            return

        # It would be an int on ranks outside of the group, but all ranks are in it.
        group = dist.new_group(backend="gloo", timeout=self._timeout)
        self._group = cast(dist.ProcessGroup, group)

        # Outcomes go through the store: a rank that waits there for longer than the timeout gets
        # an error, whereas one that waits in a collective may hang.
        from torch.distributed.distributed_c10d import PrefixStore

        channel_id = self.broadcast(uuid.uuid4().hex)
        self._store = PrefixStore(f"lightrainer/{channel_id}", default_store())

    def close(self) -> None:
        """Destroy the process group."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def broadcast(self, message: object = None) -> Any:
        """Return the message of rank 0 on every rank."""
        if self.is_single_process:
            return message
        messages = [message]
        dist.broadcast_object_list(messages, src=0, group=self._group)
        return messages[0]

    def run_on_first(self, function: Callable[[], Result]) -> Result:
        """Call a function on rank 0 only, and return its result on every rank.

        Raises:
            OtherProcessError: on the other ranks, if the function raised on rank 0; rank 0 raises
                the original error.
        """
        if self.is_single_process:
            return function()

        # The other ranks wait for the pair of result and error message.
        if not self.is_first:
            result, message = self.broadcast()
            if message is not None:
                raise OtherProcessError(f"Process 0 failed: {message}")
            return result

        try:
            result = function()
        except Exception as error:
            self.broadcast((None, f"{type(error).__name__}: {error}"))
            raise
        self.broadcast((result, None))
        return result

    def gather_outcomes(self, outcome: Outcome) -> list[Outcome]:
        """Return how a trial ended on each rank; every rank has to call this.

        Args:
            outcome: that of this rank.

        Raises:
            RuntimeError: the trial failed on this rank, and the other ranks did not finish it in
                time. They probably wait in a collective of the training, so all processes have to
                be terminated.
        """
        if self.is_single_process:
            return [outcome]

        # A key for each trial and rank.
        self._trials += 1
        keys = [f"{self._trials}/{rank}" for rank in range(dist.get_world_size())]
        self._store.set(keys[dist.get_rank()], json.dumps(outcome))

        # After a failure the other ranks usually wait for this one: so the wait is short.
        has_failed = outcome.kind == "failed"
        timeout = self._timeout_to_fail if has_failed else self._timeout
        try:
            self._store.wait(keys, timeout)
        except RuntimeError as error:
            if not has_failed:
                raise
            raise RuntimeError(
                f"The trial failed in process {dist.get_rank()} only: {outcome.message}. The "
                "other processes did not finish it in time."
            ) from error

        outcomes = []
        for key in keys:
            fields = json.loads(self._store.get(key))
            outcomes.append(Outcome(*fields))
        return outcomes
