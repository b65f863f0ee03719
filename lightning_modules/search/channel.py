"""How the processes of a search talk about it, apart from what their trainings say to one another."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from ..distributed.health.failure_monitor import OtherProcessError

Result = TypeVar("Result")


class Outcome(NamedTuple):
    """How a trial ended in one process."""

    kind: str
    """`done`, `pruned` or `failed`."""
    caught: bool = False
    """Whether the search goes on after this failure."""
    said: str = ""
    """What failed."""


class Channel:
    """A process group of its own, over gloo: what is said here cannot be mixed up with gradients.

    In one process it does nothing. All processes have to make it, at the same point.

    Args:
        seconds: how long a process waits for the others; as long as one trial may take longer in one than in another.
        seconds_to_fail: how long a process in which a trial has failed waits for the others to say the same.
    """

    def __init__(self, seconds: float = 1800, seconds_to_fail: float = 60) -> None:
        self.alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        self.is_first = self.alone or dist.get_rank() == 0
        self._wait, self._wait_to_fail = timedelta(seconds=seconds), timedelta(seconds=seconds_to_fail)
        self._met = 0
        self._group: Any = None if self.alone else dist.new_group(backend="gloo", timeout=self._wait)
        if not self.alone:
            # Outcomes are left here: whoever waits in vain for another can then still end, which is not so in an
            # exchange over the group.
            from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

            number = self.tell(uuid.uuid4().hex)
            self._board = PrefixStore(f"lightrainer/{number}", _get_default_store())

    def close(self) -> None:
        """Give the group back."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def tell(self, message: Any = None) -> Any:
        """What the first process has to say, in every process."""
        if self.alone:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def share(self, make: Callable[[], Result]) -> Result:
        """What `make` gives in the first process, in every process; it is called nowhere else.

        Raises:
            OtherProcessError: `make` has raised, and this is another process; the first raises what it was.
        """
        if self.alone:
            return make()
        if not self.is_first:
            answer, said = self.tell()
            if said is not None:
                raise OtherProcessError(f"In process 0: {said}")
            return answer
        try:
            made = make()
        except Exception as error:
            self.tell((None, f"{type(error).__name__}: {error}"))
            raise
        self.tell((made, None))
        return made

    def outcomes(self, own: Outcome) -> list[Outcome]:
        """How a trial ended in each process; all have to call it.

        Raises:
            RuntimeError: this process has failed, and the others have not come to the end of the trial in time: they
                wait for it somewhere in the training, so that only the end of all processes helps.
        """
        if self.alone:
            return [own]
        self._met += 1
        keys = [f"{self._met}/{rank}" for rank in range(dist.get_world_size())]
        self._board.set(keys[dist.get_rank()], json.dumps(own))
        try:
            self._board.wait(keys, self._wait_to_fail if own.kind == "failed" else self._wait)
        except RuntimeError as error:
            if own.kind != "failed":
                raise
            raise RuntimeError(
                f"The trial failed in process {dist.get_rank()} and not in the others, which are still training: "
                f"{own.said}. The search cannot go on."
            ) from error
        return [Outcome(*json.loads(self._board.get(key))) for key in keys]
