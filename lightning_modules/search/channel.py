"""Communication between the processes of a search, apart from that of their trainings."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from ..distributed.health import OtherProcessError
from ..internals.torch_names import default_store

Result = TypeVar("Result")

FAILURE = "lightrainer:failure"
"""Attribute of a trial: the reason of its failure."""


class Outcome(NamedTuple):
    """The end of a trial in one process."""

    kind: str
    """`done`, `pruned` or `failed`."""
    caught: bool = False
    """True if the search continues after this failure."""
    message: str = ""
    """The error."""


class Channel:
    """A process group of its own, over gloo, so that its messages cannot be mixed up with
    gradients.

    In one process it does nothing. All processes have to make it, at the same point.

    Args:
        seconds: timeout, at least the difference between the times that two processes take for a
            trial.
        seconds_to_fail: timeout of a process whose trial has failed.
    """

    def __init__(self, seconds: float = 1800, seconds_to_fail: float = 60) -> None:
        self.alone = (
            not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        )
        self.is_first = self.alone or dist.get_rank() == 0
        self._timeout = timedelta(seconds=seconds)
        self._timeout_to_fail = timedelta(seconds=seconds_to_fail)
        self._trials = 0
        self._group: Any = (
            None if self.alone else dist.new_group(backend="gloo", timeout=self._timeout)
        )
        if not self.alone:
            # Outcomes go through the store: a process can still end after a timeout there, but not
            # in a collective.
            from torch.distributed.distributed_c10d import PrefixStore

            self._store = PrefixStore(
                f"lightrainer/{self.broadcast(uuid.uuid4().hex)}", default_store()
            )

    def close(self) -> None:
        """Destroy the process group."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def broadcast(self, message: Any = None) -> Any:
        """Return the message of the first process in every process."""
        if self.alone:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def run_on_first(self, make: Callable[[], Result]) -> Result:
        """Call `make` in the first process only, and return its result in every process.

        Raises:
            OtherProcessError: `make` has raised, and this is another process; the first raises the
                error itself.
        """
        if self.alone:
            return make()
        if not self.is_first:
            result, message = self.broadcast()
            if message is not None:
                raise OtherProcessError(f"In process 0: {message}")
            return result
        try:
            made = make()
        except Exception as error:
            self.broadcast((None, f"{type(error).__name__}: {error}"))
            raise
        self.broadcast((made, None))
        return made

    def gather_outcomes(self, own: Outcome) -> list[Outcome]:
        """Return the end of a trial in each process; all have to call it.

        Raises:
            RuntimeError: the trial failed in this process, and the others did not finish it in
                time: they wait in a collective of the training, so that only the end of all
                processes helps.
        """
        if self.alone:
            return [own]
        self._trials += 1
        keys = [f"{self._trials}/{rank}" for rank in range(dist.get_world_size())]
        self._store.set(keys[dist.get_rank()], json.dumps(own))
        try:
            self._store.wait(keys, self._timeout_to_fail if own.kind == "failed" else self._timeout)
        except RuntimeError as error:
            if own.kind != "failed":
                raise
            raise RuntimeError(
                f"The trial failed in process {dist.get_rank()} alone: {own.message}."
            ) from error
        return [Outcome(*json.loads(self._store.get(key))) for key in keys]
