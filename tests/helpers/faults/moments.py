"""When a training is killed: moments that a process brings about itself, so that they come again
with the same seed.
"""

import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "open")


@dataclass(frozen=True)
class Moment:
    """The `count`-th time that something happens in the processes `ranks`.

    `what` is one of:

    - "change": just before a change to the file system below the output folder, in whatever thread;
    - "pass": in a forward pass of the model, so inside a window or an evaluation;
    - "sample": when a batch is put together, in a worker where there are any, which then dies
      alone;
    - "byte": in the middle of the writing of a file, which gets this long and no longer;
    - "second": whenever that is.
    """

    what: str
    count: float
    number: int = signal.SIGKILL
    ranks: tuple[int, ...] = (0,)

    @property
    def from_outside(self) -> float | None:
        """Seconds after which another process has to send the signal."""
        return self.count if self.what == "second" else None


class Counter:
    """Counts what happens in this process, and sends it the signal when the moment has come."""

    def __init__(self, moment: Moment | None, output: Path, rank: int) -> None:
        self.seen = {"change": 0, "pass": 0, "sample": 0}
        self.moment = moment if moment is not None and rank in moment.ranks else None
        self.output = str(output)

    def start(self) -> None:
        """From now on."""
        sys.addaudithook(self._watch)
        if self.moment is not None and self.moment.what == "byte":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(self.moment.count),) * 2)

    def note(self, what: str) -> None:
        """One more of these."""
        self.seen[what] += 1
        if self.moment is not None and (what, self.seen[what]) == (
            self.moment.what,
            self.moment.count,
        ):
            os.kill(os.getpid(), self.moment.number)

    def model(self, model: Any) -> Any:
        """The same model, whose passes are counted."""
        model.register_forward_pre_hook(lambda *_: self.note("pass"))
        return model

    def collator(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same collator, whose batches are counted."""

        def counted(samples: Any) -> Any:
            self.note("sample")
            return collate(samples)

        return counted

    def _watch(self, event: str, args: tuple[Any, ...]) -> None:
        if (
            event in CHANGES
            and str(args[0]).startswith(self.output)
            and (event != "open" or writes(args))
        ):
            self.note("change")


def writes(args: tuple[Any, ...]) -> bool:
    """Whether the arguments of an "open" are those of a file to be written."""
    return bool(
        args[2] & (os.O_WRONLY | os.O_RDWR)
        or (isinstance(args[1], str) and set(args[1]) & set("wax"))
    )


def drawn(
    what: str, draw: random.Random, seen: list[dict[str, float]], part: float, number: int
) -> Moment:
    """A moment of this kind in the next part of a training.

    Args:
        what: the kind.
        draw: the generator.
        seen: by process, how much there is of each kind in the whole of the training.
        part: of that.
        number: of the signal.
    """
    ranks = draw.choice([*((rank,) for rank in range(len(seen))), tuple(range(len(seen)))])
    if what == "second":  # a resumed training begins to train as late as the whole one
        return Moment(what, draw.uniform(0.0, seen[0][what] * (part + 0.2)), signal.SIGKILL, ranks)
    reach = part * min(seen[rank][what] for rank in ranks)
    return Moment(what, draw.randint(1, max(2, int(reach))), number, ranks)
