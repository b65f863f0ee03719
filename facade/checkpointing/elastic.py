"""A training that goes on with other processes, or other batches, than its checkpoint was made with."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints.state_guards import require_position
from ...lightning_modules.common.safe_serialization import from_plain
from ...lightning_modules.common.seeding import load_rng_file
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.training.losses import LossMeter
from ..arguments.deepspeed_config import with_open_batches
from ..arguments.parallelism import copies_of_batches, data_rank, data_ranks, samples_of_rank
from ..evaluation.results import TrainingLength

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)

_NOT_SAID: dict[str, Any] = {
    "evaluated": (),
    "ended": True,
    "progress": None,
    "in_evaluation": None,
    "copies": 1,
    "ahead": 0,
    "asked": None,
    "group": None,
}
"""What a position does not say that plain Lightning wrote, see `lightning_modules.tasks.resumable`."""


class StoredPositions:
    """What processes wrote into checkpoints of their position in the data, and of their generators.

    Args:
        host: the Trainer, whose arguments say which process this is.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host

    def read(self, checkpoint: str | None, rank: int | None = None) -> dict[str, Any] | None:
        """Return the position of a process; None without a checkpoint, or if it is of another library.

        Args:
            checkpoint: the folder.
            rank: of the process among those that read different data; by default it is that of this one, or the first
                of which there is a file: of several machines each may have those of its own processes.
        """
        if checkpoint is None:
            return None
        wanted = data_rank(self.host.args) if rank is None else rank
        path = self.path(checkpoint, self._rank_before(checkpoint, wanted))
        there = [path] if os.path.isfile(path) else self._all_paths(checkpoint) if rank is None else []
        return self._load(there[0]) if there else None

    def path(self, folder: str, rank: int) -> str:
        """Return the file of a process."""
        return os.path.join(folder, checkpoints.data_state_name(rank))

    def _all_paths(self, checkpoint: str) -> list[str]:
        """Files of all processes that are here, in the order of their ranks."""
        first = Path(self.path(checkpoint, 0))
        found = first.parent.glob(first.name.replace("0", "*"))
        return sorted(map(str, found), key=lambda path: (len(path), path))

    def rng_path(self, checkpoint: str) -> str | None:
        """Return the file with this process's generators; the first one takes that of any first one."""
        args = self.host.args
        rank, several = data_rank(args), args.world_size > 1
        ranks = [self._rank_before(checkpoint, rank) if several else None, *([0, None] if rank == 0 else [])]
        paths = [os.path.join(checkpoint, checkpoints.rng_state_name(name)) for name in ranks]
        return next((path for path in paths if os.path.isfile(path)), None)

    def _load(self, path: str) -> dict[str, Any]:
        written = checkpoints.load_torch(path)
        try:
            state = from_plain(written)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{path} does not hold a position in the data ({error!r}): take another checkpoint."
            ) from error
        return require_position({**_NOT_SAID, **state} if isinstance(state, dict) else state, path)

    def _rank_before(self, checkpoint: str, rank: int) -> int:
        """Which process read this data when a checkpoint was made, where several got the same batches, see
        `copies_of_batches`.
        """
        if rank == 0:
            return 0
        own = self.path(checkpoint, self.host.args.process_index)
        there = [own] if os.path.isfile(own) else self._all_paths(checkpoint)
        return rank * (self._load(there[0])["copies"] if there else 1)


class ElasticResumption:
    """Keeps the samples of a step, and their order, where that can be, and says what becomes of them where it cannot.

    A checkpoint knows how its batches were laid out over processes (`layout`), and what the arguments asked for then
    (`asked`). Where they ask for the same again, on another number of processes, the samples of a step are what is
    kept.

    Args:
        host: the Trainer.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host
        self.stored = StoredPositions(host)
        self.length_group: int | None = None
        """The batch by which lengths are grouped, so that their order stays; None means that of the arguments."""
        self.steps_ahead = 0
        """By how many steps the position in the data is ahead of the steps taken, which may have been larger."""
        self._asked: dict[str, int] | None = None

    def layout(self) -> dict[str, int]:
        """Return how the batches of a step are laid out over processes now."""
        args = self.host.args
        return {
            "world_size": data_ranks(args),
            "batch_size": samples_of_rank(args, self.host._train_batch_size),
            "accumulation": args.gradient_accumulation_steps,
        }

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        args = self.host.args
        return {
            "layout": self.layout(),
            "copies": copies_of_batches(args),
            "asked": self._asked or _asked(args),
            "group": self.length_group or args.train_batch_size * args.gradient_accumulation_steps,
            "ahead": self.steps_ahead,
        }

    @contextlib.contextmanager
    def same_global_batch(self, checkpoint: str | None) -> Iterator[None]:
        """Keep the samples of a step where nothing but the number of processes changed.

        In the meantime the Trainer's arguments are a copy of those given, with the numbers that are in use.
        """
        host, stored = self.host, self.stored.read(checkpoint)
        given, batch_size = host.args, host._train_batch_size
        self._asked = _asked(given)
        instead = self._instead(stored)
        self.length_group = self._group_of(stored, instead)
        if stored is not None and instead is not None:
            self._warn_what_is_kept(stored["layout"], instead)
            self._apply(*instead)
        try:
            yield
        finally:
            if instead is not None:
                host.args, host._train_batch_size = given, batch_size
                host.accelerator.apply_accumulation(given)
            self._asked = self.length_group = None

    def position(
        self, length: TrainingLength, stored: dict[str, Any], checkpoint: str
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Return epoch, window and state of the loader where the samples seen so far end."""
        before, now = stored["layout"], self.layout()
        seen, each = stored["done"] * _samples(before), _samples(now)
        done, rest = divmod(seen, each)
        self._warn_what_changed(before, now, seen, rest)
        if stored["done"] >= stored["windows"]:
            done = length.num_update_steps_per_epoch
        done = min(done, length.num_update_steps_per_epoch)
        first = self.stored.read(checkpoint, rank=0) or stored  # its order is the order
        if _is_of_its_own_kind(first["loader"]):
            alone = {**before, "accumulation": now["accumulation"]} == now
            return stored["epoch"], done, stored["loader"] if alone and not rest else None
        return stored["epoch"], done, self._same_order(first["loader"], done * now["accumulation"], checkpoint)

    def length_from(
        self, length: TrainingLength, sized: bool, epoch: int, done: int, stored: dict[str, Any] | None
    ) -> TrainingLength:
        """Return how long a training is that took some of its steps with more samples, or fewer, than now.

        `max_steps` is reached, in as many epochs as that takes; `num_train_epochs` are gone through to their end, in as
        many steps as that takes.

        Args:
            length: what it would be without a checkpoint.
            sized: whether an epoch has a length.
            epoch: where the training goes on.
            done: steps of that epoch, as they are now, that are done.
            stored: what the checkpoint knows of its position.
        """
        if stored is None:
            return length
        args, each = self.host.args, length.num_update_steps_per_epoch
        self.steps_ahead = stored["ahead"]
        if stored["layout"] != self.layout():
            before = self.host.state.global_step + self._steps_left_out(stored)
            self.steps_ahead = epoch * each + done - before if sized else _ahead_in_stream(stored, done)
        if not sized:  # it is not to begin again before the steps that are left are taken
            windows = length.max_steps + max(self.steps_ahead, 0)
            batches = windows * args.gradient_accumulation_steps
            return length._replace(num_update_steps_per_epoch=windows, steps_in_epoch=batches)
        if self.steps_ahead == 0:
            return length
        if args.max_steps > 0:
            return length._replace(num_train_epochs=math.ceil((length.max_steps + self.steps_ahead) / each))
        max_steps = max(length.max_steps - self.steps_ahead, 0)
        if args.should_log:
            logger.warning(
                "num_train_epochs=%s takes %s steps in all, as those before the checkpoint took another number of "
                "samples; the schedule ends there.",
                args.num_train_epochs,
                max_steps,
            )
        return length._replace(max_steps=max_steps)

    def progress(self, stored: dict[str, Any], checkpoint: str) -> dict[str, Any] | None:
        """Return what the next log is made of; of other processes than now, each gets the mean of what they had.

        None where not all of their files are there, as each of several machines may have its own.
        """
        processes = stored["layout"]["world_size"]
        if stored["progress"] is None or processes == data_ranks(self.host.args):
            return stored["progress"]
        states = [self.stored.read(checkpoint, rank) for rank in range(processes)]
        each = [state["progress"] for state in states if state is not None and state["progress"] is not None]
        if len(each) < processes:
            return None
        joined = LossMeter.joined([progress["losses"]["losses"] for progress in each])
        return {**each[0], "losses": {**each[0]["losses"], "losses": joined}}

    def _instead(self, stored: dict[str, Any] | None) -> tuple[int, int] | None:
        """Batch of a process and accumulation that keep the samples of a step; None where the arguments' will do."""
        if stored is None or self._asked_before(stored) != self._asked:
            return None
        now = self.layout()
        each, rest = divmod(_samples(stored["layout"]), now["world_size"])
        if rest or each == now["batch_size"] * now["accumulation"]:
            return None
        batch = next(size for size in range(min(now["batch_size"], each), 0, -1) if each % size == 0)
        return batch, each // batch

    def _asked_before(self, stored: dict[str, Any]) -> dict[str, int]:
        """What the arguments asked for; in checkpoints that do not say so, what the training had."""
        before = stored["layout"]
        unit = before["world_size"] if self._splits_batches else 1
        return stored["asked"] or {"batch": before["batch_size"] * unit, "accumulation": before["accumulation"]}

    @property
    def _splits_batches(self) -> bool:
        config: Any = self.host.args.accelerator_config
        return bool(config.split_batches)

    def _group_of(self, stored: dict[str, Any] | None, instead: tuple[int, int] | None) -> int | None:
        """The batch by which lengths are grouped, so that the order stays, as long as a step takes the same samples."""
        now = self.layout()
        samples = _samples(now) if instead is None else now["world_size"] * instead[0] * instead[1]
        if stored is None or samples != _samples(stored["layout"]):
            return None
        before, unit = stored["layout"], stored["layout"]["world_size"] if self._splits_batches else 1
        return stored["group"] or before["batch_size"] * unit * before["accumulation"]

    def _apply(self, batch_size: int, accumulation: int) -> None:
        host = self.host
        host.args = copy.copy(host.args)
        host._train_batch_size = batch_size * (data_ranks(host.args) if self._splits_batches else 1)
        host.args.per_device_train_batch_size = host._train_batch_size
        host.args.gradient_accumulation_steps = accumulation
        host.args.deepspeed = with_open_batches(host.args.deepspeed)
        host.accelerator.apply_accumulation(host.args)

    def _steps_left_out(self, stored: dict[str, Any]) -> int:
        """Steps of earlier epochs that nobody took, as a callback ended those before, in steps of now."""
        position = stored["epoch"] * stored["windows"] + stored["done"]
        left_out = max(position - self.host.state.global_step - stored["ahead"], 0)
        return left_out * _samples(stored["layout"]) // _samples(self.layout())

    def _same_order(self, loader: dict[str, Any] | None, handed_out: int, checkpoint: str) -> dict[str, Any] | None:
        """A state with which a loader reads on in the order that was drawn for the epoch."""
        if loader is None or "began" in loader:  # what the iteration began with is all that is known, and enough
            return loader
        if loader["start"] is None:
            return None
        kept = {name: loader[name] for name in ("epoch", "start", "renewed", "seed", "next_seed")}
        path = self.stored.rng_path(checkpoint)
        rng = load_rng_file(path) if path is not None else loader["start"]
        return {**kept, "handed_out": handed_out, "before_ahead": rng, "workers": None}

    def _warn_what_is_kept(self, before: dict[str, int], instead: tuple[int, int]) -> None:
        now = self.layout()
        if not self.host.args.should_log:
            return
        changes = [
            f"{name}={new} instead of {old}"
            for name, old, new in (
                ("per_device_train_batch_size", now["batch_size"], instead[0]),
                ("gradient_accumulation_steps", now["accumulation"], instead[1]),
            )
            if old != new
        ]
        logger.warning(
            "The checkpoint was made by %s, and now there %s: %s keeps the %s samples of a step.",
            "one process" if before["world_size"] == 1 else f"{before['world_size']} processes",
            "is one" if now["world_size"] == 1 else f"are {now['world_size']}",
            " and ".join(changes),
            _samples(before),
        )

    def _warn_what_changed(self, before: dict[str, int], now: dict[str, int], seen: int, rest: int) -> None:
        if not self.host.args.should_log:
            return
        changed = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in now if before[name] != now[name])
        each = _samples(now)
        if _samples(before) == each:
            logger.warning(
                "The training goes on with %s; a step still takes %s samples, in the same order.", changed, each
            )
            return
        logger.warning(
            "The training goes on with %s: a step takes %s samples instead of %s, so that the numbers will differ. "
            "%s samples of this epoch are seen%s.",
            changed,
            each,
            _samples(before),
            seen,
            f", the last {rest} of which are seen again" if rest else "",
        )


def _is_of_its_own_kind(loader: dict[str, Any] | None) -> bool:
    """Whether it is the state of a loader that is neither ours nor a plain one, such as torchdata's."""
    return loader is not None and "handed_out" not in loader and "began" not in loader


def _asked(args: Any) -> dict[str, int]:
    return {"batch": args.per_device_train_batch_size, "accumulation": args.gradient_accumulation_steps}


def _ahead_in_stream(stored: dict[str, Any], done: int) -> int:
    """As `ElasticResumption.steps_ahead`, by the steps of the present round through a stream; none at its end."""
    return 0 if stored["done"] >= stored["windows"] else stored["ahead"] + done - stored["done"]


def _samples(layout: dict[str, int]) -> int:
    """Samples of all processes in one step."""
    return layout["world_size"] * layout["batch_size"] * layout["accumulation"]
