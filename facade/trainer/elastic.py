"""A training that goes on with other processes, or other batches, than its checkpoint was made with."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
from collections.abc import Iterator
from typing import Any

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints.state_guards import require_position
from ...lightning_modules.common.safe_serialization import from_plain
from ...lightning_modules.common.seeding import load_rng_file, restore_rng_state
from ...lightning_modules.training.losses import LossMeter
from ..arguments.parallelism import copies_of_batches, data_rank, data_ranks, samples_of_rank
from ..evaluation.results import TrainingLength
from .saving import Saving

logger = logging.getLogger(__name__)

_UNTOLD: dict[str, Any] = {
    "evaluated": (),
    "ended": True,
    "progress": None,
    "in_evaluation": None,
    "copies": 1,
    "ahead": 0,
    "asked": None,
    "group": None,
}
"""What Lightning does not say of itself, see `lightning_modules.resumable`."""


class Elastic(Saving):
    """Keeps the samples of a step, and their order, where that can be, and says what becomes of them where it cannot.

    A checkpoint knows how its training was dealt out (`layout`), and what the arguments asked for then (`asked`). Where
    they ask for the same again, on another number of processes, the samples of a step are what is kept.
    """

    _steps_ahead = 0
    """By how many steps the position in the data is ahead of the steps taken, some of which were larger, or smaller."""

    def _data_state(self, checkpoint: str, rank: int | None = None) -> dict[str, Any] | None:
        """What a process wrote into a checkpoint of its position in the data; None if it is of another library.

        Args:
            checkpoint: the folder.
            rank: of the process among those that read different data; by default it is that of this one, or the first
                where there was none of its rank.
        """
        for written_by in (data_rank(self.args), 0) if rank is None else (rank,):
            path = self._data_state_file(checkpoint, written_by * self._copies_before(checkpoint))
            if os.path.isfile(path):
                return self._read_data_state(path)
        return None

    def _read_data_state(self, path: str) -> dict[str, Any]:
        written = checkpoints.load_torch(path)
        try:
            state = from_plain(written)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{path} does not hold a position in the data ({error!r}): take another checkpoint."
            ) from error
        return require_position({**_UNTOLD, **state} if isinstance(state, dict) else state, path)

    def _copies_before(self, checkpoint: str) -> int:
        """How many processes got the same batches when a checkpoint was made, see `copies_of_batches`."""
        paths = (self._data_state_file(checkpoint, rank) for rank in (self.args.process_index, 0))
        path = next((path for path in paths if os.path.isfile(path)), None)
        return 1 if path is None else self._read_data_state(path)["copies"]

    def _data_state_file(self, folder: str, rank: int) -> str:
        return os.path.join(folder, checkpoints.data_state_name(rank))

    def _layout(self) -> dict[str, int]:
        return {
            "world_size": data_ranks(self.args),
            "batch_size": samples_of_rank(self.args, self._train_batch_size),
            "accumulation": self.args.gradient_accumulation_steps,
        }

    def _dealing(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            "layout": self._layout(),
            "copies": copies_of_batches(self.args),
            "asked": self._asked or _asked(self.args),
            "group": self._data_loading.length_group
            or self.args.train_batch_size * self.args.gradient_accumulation_steps,
        }

    @contextlib.contextmanager
    def _same_global_batch(self, checkpoint: str | None) -> Iterator[None]:
        """Keep the samples of a step where nothing but the number of processes changed.

        In the meantime `self.args` is a copy of the arguments with the numbers that are in use.
        """
        stored = None if checkpoint is None else self._data_state(checkpoint)
        given, batch_size = self.args, self._train_batch_size
        self._asked = _asked(given)
        instead = self._instead(stored)
        self._data_loading.length_group = self._group_of(stored, instead)
        if stored is not None and instead is not None:
            self._warn_what_is_kept(stored["layout"], instead)
            self._apply_dealing(*instead)
        try:
            yield
        finally:
            if instead is not None:
                self.args, self._train_batch_size = given, batch_size
                self.accelerator.gradient_accumulation_steps = given.gradient_accumulation_steps
            self._asked = self._data_loading.length_group = None

    def _instead(self, stored: dict[str, Any] | None) -> tuple[int, int] | None:
        """Batch of a process and accumulation that keep the samples of a step; None where the arguments' will do."""
        if stored is None or self._asked_before(stored) != self._asked:
            return None
        now = self._layout()
        each, rest = divmod(_samples(stored["layout"]), now["world_size"])
        if rest or each == now["batch_size"] * now["accumulation"]:
            return None
        batch = next(size for size in range(min(now["batch_size"], each), 0, -1) if each % size == 0)
        return batch, each // batch

    def _asked_before(self, stored: dict[str, Any]) -> dict[str, int]:
        """What the arguments asked for; in checkpoints that do not say so, what the training had."""
        before = stored["layout"]
        unit = before["world_size"] if self._splits_batches else 1
        return stored.get("asked") or {"batch": before["batch_size"] * unit, "accumulation": before["accumulation"]}

    @property
    def _splits_batches(self) -> bool:
        config: Any = self.args.accelerator_config
        return bool(config.split_batches)

    def _group_of(self, stored: dict[str, Any] | None, instead: tuple[int, int] | None) -> int | None:
        """The batch by which lengths are grouped, so that the order stays, as long as a step takes the same samples."""
        now = self._layout()
        samples = _samples(now) if instead is None else now["world_size"] * instead[0] * instead[1]
        if stored is None or samples != _samples(stored["layout"]):
            return None
        before, unit = stored["layout"], stored["layout"]["world_size"] if self._splits_batches else 1
        return stored.get("group") or before["batch_size"] * unit * before["accumulation"]

    def _apply_dealing(self, batch_size: int, accumulation: int) -> None:
        self.args = copy.copy(self.args)
        self._train_batch_size = batch_size * (data_ranks(self.args) if self._splits_batches else 1)
        self.args.per_device_train_batch_size = self._train_batch_size
        self.args.gradient_accumulation_steps = self.accelerator.gradient_accumulation_steps = accumulation

    def _warn_what_is_kept(self, before: dict[str, int], instead: tuple[int, int]) -> None:
        now = self._layout()
        if not self.args.should_log:
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

    def _position_dealt_out_anew(
        self, length: TrainingLength, stored: dict[str, Any], checkpoint: str
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Epoch, window and state of the loader where the samples seen so far end."""
        before, now = stored["layout"], self._layout()
        seen, each = stored["done"] * _samples(before), _samples(now)
        done, rest = divmod(seen, each)
        self._warn_what_changed(before, now, seen, rest)
        if stored["done"] >= stored["windows"]:
            done = length.num_update_steps_per_epoch
        done = min(done, length.num_update_steps_per_epoch)
        first = self._data_state(checkpoint, rank=0) or stored  # its order is the order
        if _is_of_its_own_kind(first["loader"]):
            alone = {**before, "accumulation": now["accumulation"]} == now
            return stored["epoch"], done, stored["loader"] if alone and not rest else None
        return stored["epoch"], done, self._same_order(first["loader"], done * now["accumulation"], checkpoint)

    def _length_from(
        self, length: TrainingLength, sized: bool, epoch: int, done: int, stored: dict[str, Any] | None
    ) -> TrainingLength:
        """How long a training is that took some of its steps with more samples, or fewer, than now.

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
        each = length.num_update_steps_per_epoch
        self._steps_ahead = stored["ahead"]
        if stored["layout"] != self._layout():
            before = self.state.global_step + self._steps_left_out(stored)
            self._steps_ahead = epoch * each + done - before if sized else _ahead_in_stream(stored, done)
        if not sized:  # it is not to begin again before the steps that are left are taken
            windows = length.max_steps + max(self._steps_ahead, 0)
            batches = windows * self.args.gradient_accumulation_steps
            return length._replace(num_update_steps_per_epoch=windows, steps_in_epoch=batches)
        if self._steps_ahead == 0:
            return length
        if self.args.max_steps > 0:
            return length._replace(num_train_epochs=math.ceil((length.max_steps + self._steps_ahead) / each))
        max_steps = max(length.max_steps - self._steps_ahead, 0)
        if self.args.should_log:
            logger.warning(
                "num_train_epochs=%s takes %s steps in all, as those before the checkpoint took another number of "
                "samples; the schedule ends there.",
                self.args.num_train_epochs,
                max_steps,
            )
        return length._replace(max_steps=max_steps)

    def _steps_left_out(self, stored: dict[str, Any]) -> int:
        """Steps of earlier epochs that nobody took, as a callback ended those before, in steps of now."""
        position = stored["epoch"] * stored["windows"] + stored["done"]
        left_out = max(position - self.state.global_step - stored["ahead"], 0)
        return left_out * _samples(stored["layout"]) // _samples(self._layout())

    def _warn_what_changed(self, before: dict[str, int], now: dict[str, int], seen: int, rest: int) -> None:
        if not self.args.should_log:
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

    def _same_order(self, loader: dict[str, Any] | None, handed_out: int, checkpoint: str) -> dict[str, Any] | None:
        """A state with which a loader reads on in the order that was drawn for the epoch."""
        if loader is None or "began" in loader:  # what the iteration began with is all that is known, and enough
            return loader
        if loader["start"] is None:
            return None
        kept = {name: loader[name] for name in ("epoch", "start", "renewed", "seed", "next_seed")}
        path = self._rng_file(checkpoint)
        rng = load_rng_file(path) if path is not None else loader["start"]
        return {**kept, "handed_out": handed_out, "before_ahead": rng, "workers": None}

    def _progress_of_all(self, stored: dict[str, Any], checkpoint: str) -> dict[str, Any] | None:
        """What the next log is made of; of other processes than now, each gets the mean of what they had.

        None where not all of their files are there, as each of several machines may have its own.
        """
        processes = stored["layout"]["world_size"]
        if processes == data_ranks(self.args):
            return stored["progress"]
        states = [self._data_state(checkpoint, rank) for rank in range(processes)]
        each = [state["progress"] for state in states if state is not None and state["progress"] is not None]
        if len(each) < processes:
            return None
        joined = LossMeter.joined([progress["losses"]["losses"] for progress in each])
        return {**each[0], "losses": {**each[0]["losses"], "losses": joined}}

    def _rng_file(self, checkpoint: str) -> str | None:
        """That of this process; the first one also takes that of a first one among more, or fewer, than now."""
        rank, several = data_rank(self.args), self.args.world_size > 1
        ranks = [rank * self._copies_before(checkpoint) if several else None, *([0, None] if rank == 0 else [])]
        paths = [os.path.join(checkpoint, checkpoints.rng_state_name(name)) for name in ranks]
        return next((path for path in paths if os.path.isfile(path)), None)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        path = None if checkpoint is None else self._rng_file(checkpoint)
        if path is None:
            super()._load_rng_state(checkpoint)
        else:
            restore_rng_state(load_rng_file(path), self.args.world_size > 1)


def _is_of_its_own_kind(loader: dict[str, Any] | None) -> bool:
    """Whether it is the state of a loader that is neither ours nor a plain one, such as torchdata's."""
    return loader is not None and "handed_out" not in loader and "began" not in loader


def _asked(args: Any) -> dict[str, int]:
    return {"batch": args.per_device_train_batch_size, "accumulation": args.gradient_accumulation_steps}


def _ahead_in_stream(stored: dict[str, Any], done: int) -> int:
    """As `Elastic._steps_ahead`, by the steps of the present round through a stream; none at its end."""
    return 0 if stored["done"] >= stored["windows"] else stored["ahead"] + done - stored["done"]


def _samples(layout: dict[str, int]) -> int:
    """Samples of all processes in one step."""
    return layout["world_size"] * layout["batch_size"] * layout["accumulation"]
