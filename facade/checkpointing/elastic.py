"""Elastic resumption: with another number of processes or another batch size than before."""

from __future__ import annotations

import contextlib
import copy
import glob
import logging
import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import IterableDataset

from ...callbacks.recording import joined_sums
from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import data_state_name, rng_state_name
from ...lightning_modules.common.safe_serialization import from_plain
from ...lightning_modules.common.seeding import load_rng_file
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.epoch_loader import EpochLoader
from ...lightning_modules.data.loader_state import (
    of_other_batches,
    with_other_batches,
    workers_in,
)
from ...lightning_modules.training.loss_meter import LossMeter
from ..arguments.deepspeed_config import with_open_batches
from ..arguments.parallelism import copies_of_batches, data_rank, data_ranks, samples_of_rank
from ..evaluation.results import TrainingLength

if TYPE_CHECKING:
    from .. import Trainer
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

_DEFAULTS: dict[str, Any] = {
    "evaluated": (),
    "ended": True,
    "copies": 1,
    "ahead": 0,
    "progress": None,
    "in_evaluation": None,
    "asked": None,
    "loader_batch": None,
}
"""Defaults for positions that plain Lightning wrote, see `lightning_modules.tasks.resuming`."""

_ENTRY_TYPES: dict[str, Any] = {
    "epoch": int,
    "done": int,
    "windows": int,
    "copies": int,
    "ended": bool,
    "layout": Mapping,
    "loader_batch": int | None,
    "loader": Mapping | None,
    "asked": Mapping | None,
    "in_evaluation": Mapping | None,
    "progress": Mapping | None,
}
"""Types of the entries of a position."""

_NAMES = {
    "world_size": "world_size",
    "batch_size": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
}
"""Names of the arguments behind the entries of a layout."""


def _load(path: str) -> dict[str, Any]:
    content = checkpoints.load_torch(path)
    try:
        state = {**_DEFAULTS, **from_plain(content)}
        for name, types in _ENTRY_TYPES.items():
            if not isinstance(state[name], types):
                raise TypeError(f"{name}={state[name]!r:.60}, but expected is {types}")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path} does not hold a position in the data ({error!r}): take another checkpoint, or "
            "delete the file to count from the step."
        ) from error
    return state


class ElasticResumption:
    """Resume with another layout of batches over processes.

    Keeps the samples per step and their order if possible; warns otherwise.

    A checkpoint holds the layout of batches over processes (`layout`) and the arguments at that
    time (`asked`). If the arguments are unchanged, but not the number of processes, the samples per
    step are kept.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.steps_ahead = 0
        """Steps by which the data position is ahead of the global step, if earlier steps were
        larger.
        """
        self.batch_size = 0
        """Samples of a batch of the loader, set before each attempt to train."""
        self.loader_batch: int | None = None
        """Samples that a batch of the loader has in this process, if the loader tells. Loaders of
        scripts need not use the batch size of the arguments.
        """
        self._asked: dict[str, int] | None = None

    def stored(self, checkpoint: str | None, rank: int | None = None) -> dict[str, Any] | None:
        """Return the saved position of a rank; None if the checkpoint has none.

        Checkpoints of other libraries have no positions.

        Args:
            checkpoint: the folder of the checkpoint.
            rank: data-parallel rank; by default that of this process. If its file is missing, the
                first file is taken: each machine may hold only the files of its own processes.
        """
        if checkpoint is None:
            return None
        paths = glob.glob(os.path.join(glob.escape(checkpoint), data_state_name("*")))
        if not paths:
            return None

        # Shorter names first: 9 comes before 10.
        first_path = min(paths, key=lambda path: (len(path), path))
        first = _load(first_path)
        reader = data_rank(self.trainer.args) if rank is None else rank

        # Several processes may have read the same data, see `copies_of_batches`; the first of them
        # wrote this file.
        path = os.path.join(checkpoint, data_state_name(reader * first["copies"]))
        if path != first_path and os.path.isfile(path):
            return _load(path)
        return first if rank is None or path == first_path else None

    def rng_path(self, checkpoint: str) -> str | None:
        """Return the file with the random generators of this rank; None if it is missing.

        Rank 0, and ranks that the run of the checkpoint did not have, accept the file of rank 0 of
        a run with any number of processes. So samplers draw the same order in all ranks.
        """
        args = self.trainer.args
        rank = data_rank(args)
        stored = self.stored(checkpoint)

        # The name of the file has a rank in it, except in runs of one process.
        ranks: list[int | None] = [None]
        if args.world_size > 1:
            copies = 1 if stored is None else stored["copies"]
            ranks = [rank * copies]

        # The file of the first rank may be that of a run of one process, or of several.
        is_new_rank = stored is not None and rank >= stored["layout"]["world_size"]
        if rank == 0 or is_new_rank:
            ranks += [0, None]

        for name in ranks:
            path = os.path.join(checkpoint, rng_state_name(name))
            if os.path.isfile(path):
                return path
        return None

    def layout(self) -> dict[str, int]:
        """Return the current layout of the batches of a step over processes."""
        args = self.trainer.args
        layout = {
            "world_size": data_ranks(args),
            "batch_size": samples_of_rank(args, self.batch_size),
            "accumulation": args.gradient_accumulation_steps,
        }
        if args.max_tokens_per_batch:
            layout["tokens"] = args.max_tokens_per_batch
        return layout

    def layouts(self, stored: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the layout of a checkpoint and the current one, in batches of the loaders.

        Args:
            stored: position in the checkpoint.
        """
        before = dict(stored["layout"])
        now = self.layout()
        if stored["loader_batch"] is not None and self.loader_batch is not None:
            before["batch_size"] = stored["loader_batch"]
            now["batch_size"] = self.loader_batch
        return before, now

    def state(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        args = self.trainer.args
        return {
            "layout": self.layout(),
            "copies": copies_of_batches(args),
            "asked": self._asked or self._asked_now(),
            "ahead": self.steps_ahead,
            "loader_batch": self.loader_batch,
        }

    @contextlib.contextmanager
    def same_global_batch(
        self, checkpoint: str | None, batch_size: int
    ) -> Iterator[TrainingArguments | None]:
        """Keep the samples per step if only the number of processes changed.

        Yields a copy of the arguments with the batch size and the accumulation that keep them, or
        None if the arguments already do.

        Args:
            checkpoint: the folder to resume from.
            batch_size: samples of a batch of the loader.
        """
        self.batch_size = batch_size
        stored = self.stored(checkpoint)

        # Checkpoints of this run get the user's arguments, not the adjusted ones, so that the next
        # resumption compares with the former.
        self._asked = self._asked_now()
        adjusted = None
        if stored is not None and stored["layout"] != self.layout():
            adjusted = self._adjusted(stored)
        adjusted_args = None
        if adjusted is not None:
            adjusted_args = self._adjusted_arguments(*adjusted)
        try:
            yield adjusted_args
        finally:
            self._asked = None

    def require_known_order(self, dataloader: Any, stored: dict[str, Any], checkpoint: str) -> None:
        """Refuse to resume in the middle of a stream whose samples would come in another order.

        Args:
            dataloader: the training data.
            stored: position in the checkpoint.
            checkpoint: the folder of the checkpoint.

        Raises:
            ValueError: the stream was sharded in another way when the checkpoint was made.
        """
        # The order matters only in a stream, and only an EpochLoader resumes in the middle of one.
        if not isinstance(dataloader, EpochLoader):
            return
        if not isinstance(dataloader.dataset, IterableDataset):
            return
        is_in_middle = 0 < stored["done"] < stored["windows"]
        state = self._position_of_rank_0(stored, checkpoint)["loader"]
        if not is_in_middle or state is None or "handed_out" not in state:
            return

        problem = self._problem_with_order(dataloader, state, *self.layouts(stored))
        if problem is not None:
            raise ValueError(
                f"{checkpoint} was made in the middle of a stream, the rest of which cannot be "
                f"read in the same order: {problem}. Resume with the arguments and processes of "
                "the checkpoint, or set ignore_data_skip=True to begin the epoch again."
            )

    def _problem_with_order(
        self,
        dataloader: EpochLoader,
        state: dict[str, Any],
        layout_before: dict[str, int],
        layout_now: dict[str, int],
    ) -> str | None:
        """Return why the rest of a stream would come in another order; None if it would not."""
        args = self.trainer.args
        config: Any = args.accelerator_config
        workers_before = workers_in(state)
        workers_now = args.dataloader_num_workers

        # Other batches get the same samples in the same order if a single reader read them.
        if layout_before != layout_now:
            changes = _changes(layout_before, layout_now)
            if workers_before > 1:
                return (
                    f"{workers_before} workers read it, whose batches alternate, and now {changes}"
                )
            if dataloader.files > 1:
                return f"each process now reads its own files of it, with {changes}"
            return None

        workers_decide = data_ranks(args) > 1 and config.dispatch_batches is None
        if workers_decide and (workers_before > 1) != (workers_now > 1):
            return (
                f"dataloader_num_workers is {workers_now} instead of {workers_before}, which "
                "decides who reads it"
            )
        if state["files"] != dataloader.files:
            return (
                "accelerator_config.dispatch_batches, which decides who reads which files of it, "
                "is another one"
            )
        return None

    def _position_of_rank_0(self, stored: dict[str, Any], checkpoint: str) -> dict[str, Any]:
        """Return the position of rank 0, whose order all ranks follow.

        If its file is missing, the position of this rank is returned.
        """
        return self.stored(checkpoint, rank=0) or stored

    def position(
        self, length: TrainingLength, stored: dict[str, Any], checkpoint: str
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Convert a position in batches of another layout.

        Returns:
            Epoch, window and loader state after the samples seen so far.
        """
        before, now = self.layouts(stored)
        if before.get("tokens") != now.get("tokens"):
            raise ValueError(
                f"max_tokens_per_batch={now.get('tokens')}, but {before.get('tokens')} when "
                f"{checkpoint} was made: its place in an epoch of other batches is not known. "
                "Pass the same."
            )

        # The samples seen so far, in steps of the current layout.
        seen = stored["done"] * _samples(before)
        done, remainder = divmod(seen, _samples(now))
        self._warn_of_change(before, now, seen, remainder)
        if stored["done"] >= stored["windows"]:
            done = length.num_update_steps_per_epoch
        done = min(done, length.num_update_steps_per_epoch)

        state = self._position_of_rank_0(stored, checkpoint)["loader"]
        if _is_foreign(state):
            # Such a loader counts the batches of this process, so they have to be the same.
            in_other_windows = before | {"accumulation": now["accumulation"]}
            has_same_batches = in_other_windows == now
            if has_same_batches and remainder == 0:
                return stored["epoch"], done, stored["loader"]
            # Otherwise it reads an interrupted epoch again from its start.
            is_in_middle = 0 < done < length.num_update_steps_per_epoch
            if not is_in_middle:
                return stored["epoch"], done, None
            return stored["epoch"], done, of_other_batches(cast("dict[str, Any]", state))

        loader = self._same_order(state, done * now["accumulation"], checkpoint)
        if loader is not None and state.get("files", 1) > 1:
            loader["files_in_turn"] = [state["files"], before["batch_size"]]
        return stored["epoch"], done, loader

    def length_from(
        self,
        length: TrainingLength,
        sized: bool,
        epoch: int,
        done: int,
        stored: dict[str, Any] | None,
    ) -> TrainingLength:
        """Return the length of a training whose earlier steps took another number of samples.

        With `max_steps` the number of epochs is adjusted, with `num_train_epochs` the number of
        steps.

        Args:
            length: the length of the training without a checkpoint.
            sized: whether an epoch has a length.
            epoch: epoch to resume in.
            done: completed steps of that epoch in the current layout.
            stored: position in the checkpoint.
        """
        if stored is None:
            return length
        args = self.trainer.args
        steps_of_epoch = length.num_update_steps_per_epoch

        self.steps_ahead = stored["ahead"]
        before, now = self.layouts(stored)
        has_other_layout = before != now
        if has_other_layout and sized:
            steps_before = self.trainer.state.global_step + self._steps_left_out(stored)
            self.steps_ahead = epoch * steps_of_epoch + done - steps_before
        elif has_other_layout:
            # A stream has no steps per epoch: compare within the current pass, unless it has ended.
            self.steps_ahead = 0
            if stored["done"] < stored["windows"]:
                self.steps_ahead = stored["ahead"] + done - stored["done"]

        # A stream must not restart before the remaining steps are taken.
        if not sized:
            windows = length.max_steps + max(self.steps_ahead, 0)
            batches = windows * args.gradient_accumulation_steps
            return length._replace(num_update_steps_per_epoch=windows, steps_in_epoch=batches)

        if self.steps_ahead == 0:
            return length
        if args.max_steps > 0:
            epochs = math.ceil((length.max_steps + self.steps_ahead) / steps_of_epoch)
            return length._replace(num_train_epochs=epochs)

        max_steps = max(length.max_steps - self.steps_ahead, 0)
        if args.should_log:
            logger.warning(
                "num_train_epochs=%s takes %s steps, as those before the checkpoint took another "
                "number of samples.",
                args.num_train_epochs,
                max_steps,
            )
        return length._replace(max_steps=max_steps)

    def progress(self, stored: dict[str, Any], checkpoint: str) -> dict[str, Any] | None:
        """Return the meters for the next log, averaged over the processes of the checkpoint.

        None if files of some processes are missing, because each machine may hold only its own.
        """
        processes = stored["layout"]["world_size"]
        progress_of_ranks: list[dict[str, Any]] = []
        for rank in range(processes):
            state = self.stored(checkpoint, rank)
            if state is None or state["progress"] is None:
                return None
            progress_of_ranks.append(state["progress"])

        losses = LossMeter.joined([progress["losses"]["losses"] for progress in progress_of_ranks])
        sums = joined_sums(progress.get("recorded", {}) for progress in progress_of_ranks)
        recorded = {
            name: (total / processes, weights / processes)
            for name, (total, weights) in sums.items()
        }

        # Everything else is the same in all processes.
        joined = dict(progress_of_ranks[0])
        joined["losses"] = {**joined["losses"], "losses": losses}
        joined["recorded"] = recorded
        return joined

    def _asked_now(self) -> dict[str, int]:
        args = self.trainer.args
        return {
            "batch": args.per_device_train_batch_size,
            "accumulation": args.gradient_accumulation_steps,
        }

    def _adjusted(self, stored: dict[str, Any]) -> tuple[int, int] | None:
        """Return the batch size and accumulation that keep the samples per step.

        None if the arguments already do, or if the user has changed them.
        """
        # A position without a record of the arguments was made with those of its layout.
        before = stored["layout"]
        layout_asked = {"batch": self._batch_asked(before), "accumulation": before["accumulation"]}
        if (stored["asked"] or layout_asked) != self._asked:
            return None
        now = self.layout()
        samples_per_process, remainder = divmod(_samples(stored["layout"]), now["world_size"])
        if remainder or samples_per_process == _unit(now) * now["accumulation"]:
            return None

        # The largest batch that is not larger than the one asked for, and divides the samples of a
        # process.
        largest = min(_unit(now), samples_per_process)
        batch = next(size for size in range(largest, 0, -1) if samples_per_process % size == 0)
        accumulation = samples_per_process // batch
        if "tokens" in now:
            return now["batch_size"], accumulation
        return batch, accumulation

    def _batch_asked(self, layout: dict[str, int]) -> int:
        """Return the batch size in the arguments that led to a layout.

        With `split_batches` the argument counts the samples of all processes.
        """
        if self._splits_batches:
            return layout["batch_size"] * layout["world_size"]
        return layout["batch_size"]

    @property
    def _splits_batches(self) -> bool:
        config: Any = self.trainer.args.accelerator_config
        return bool(config.split_batches)

    def _adjusted_arguments(self, batch_size: int, accumulation: int) -> TrainingArguments:
        args = copy.copy(self.trainer.args)
        if self._splits_batches:
            batch_size *= data_ranks(args)
        args.per_device_train_batch_size = batch_size
        args.gradient_accumulation_steps = accumulation
        args.deepspeed = with_open_batches(args.deepspeed)
        return args

    def _steps_left_out(self, stored: dict[str, Any]) -> int:
        """Return the steps that were skipped because a callback ended epochs early.

        They are counted in steps of the current layout.
        """
        position = stored["epoch"] * stored["windows"] + stored["done"]
        left_out = max(position - self.trainer.state.global_step - stored["ahead"], 0)
        before, now = self.layouts(stored)
        return left_out * _samples(before) // _samples(now)

    def _same_order(
        self, loader: dict[str, Any] | None, handed_out: int, checkpoint: str
    ) -> dict[str, Any] | None:
        """Return a loader state that continues in the order drawn for the epoch."""
        # The state of other loaders is the generator at the start of the epoch, which suffices.
        if loader is None or "began" in loader:
            return loader
        if loader["start"] is None:
            return None

        rng = loader["start"]
        path = self.rng_path(checkpoint)
        if path is not None:
            rng = load_rng_file(path)
        return with_other_batches(loader, handed_out, rng)

    def _warn_of_change(
        self, before: dict[str, int], now: dict[str, int], seen: int, repeated_samples: int
    ) -> None:
        if not self.trainer.args.should_log:
            return
        samples_before = _samples(before)
        samples_now = _samples(now)
        unit = "batches" if "tokens" in now else "samples"

        effect = f"a step still takes {samples_now} {unit}, in the same order"
        if samples_before != samples_now:
            effect = (
                f"a step takes {samples_now} {unit} instead of {samples_before}, and {seen} of "
                "this epoch are seen"
            )
            if repeated_samples:
                effect += f", the last {repeated_samples} of which are seen again"
        logger.warning("Training continues with %s: %s.", _changes(before, now), effect)


def _changes(before: dict[str, int], now: dict[str, int]) -> str:
    """Return which arguments have changed from one layout to another, with both values."""
    changes: list[str] = []
    for entry, argument in _NAMES.items():
        if before[entry] != now[entry]:
            changes.append(f"{argument}={now[entry]} instead of {before[entry]}")
    return ", ".join(changes)


def _is_foreign(loader: dict[str, Any] | None) -> bool:
    """Return whether a state comes from a loader of another library, such as torchdata's."""
    return loader is not None and "handed_out" not in loader and "began" not in loader


def batch_size_of(dataloader: Any, readers: int) -> int | None:
    """Return the samples that a batch of a loader has in this process; None if it does not tell.

    Args:
        dataloader: any loader.
        readers: the processes that share the batches of an `EpochLoader`.
    """
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    if isinstance(dataloader, EpochLoader):
        # Its batch sampler does not tell, so `samples_per_round` counts batches instead.
        if getattr(batch_sampler, "samples_per_rank", readers) is None:
            return None
        return dataloader.samples_per_round // readers

    batch_size = getattr(dataloader, "batch_size", None)
    if batch_size is None:
        batch_size = getattr(batch_sampler, "batch_size", None)
    if isinstance(batch_size, int):
        return batch_size
    return None


def _unit(layout: dict[str, int]) -> int:
    """Return the samples of a batch.

    Batches of a token budget differ in their number of samples. They are counted instead: 1.
    """
    if "tokens" in layout:
        return 1
    return layout["batch_size"]


def _samples(layout: dict[str, int]) -> int:
    """Return the samples of a step over all processes; with a token budget, its batches."""
    return layout["world_size"] * _unit(layout) * layout["accumulation"]
