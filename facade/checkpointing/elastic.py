"""Elastic resumption: with another number of processes or another batch size than before."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset

from ...callbacks.recording import joined_sums
from ...lightning_modules.common.file_names import rng_state_name
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
from .stored_positions import (
    CheckpointPositions,
    Layout,
    PlainState,
    RequestedArguments,
    StoredPosition,
)

if TYPE_CHECKING:
    from .. import Trainer
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)


class ResumePoint(NamedTuple):
    """Where the training data resumes, in steps of the current layout."""

    epoch: int
    windows_done: int
    """Steps of that epoch that are done."""
    loader_state: PlainState | None = None
    """None if the loader skips the batches of these steps without a state."""


class ElasticResumption:
    """Resume with another layout of batches over processes.

    Each checkpoint stores two things: the layout that the run used, and the batch size and
    accumulation that the user had requested. If only the number of processes differs, batch size
    and accumulation are adapted, so that a step still takes the same samples in the same order. If
    the user requests other steps, the position is converted by counting samples, with a warning.

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
        self._requested: RequestedArguments | None = None
        """The user's arguments, while a training uses adapted ones."""

    def rng_path(self, checkpoint: str, stored: CheckpointPositions | None) -> str | None:
        """Return the file with the random generators of this rank; None if it is missing.

        Rank 0, and ranks that the run of the checkpoint did not have, accept the file of rank 0 of
        a run with any number of processes. So samplers draw the same order in all ranks.
        """
        args = self.trainer.args
        rank = data_rank(args)

        # The name of the file has a rank in it, except in runs of one process.
        ranks: list[int | None] = [None]
        if args.world_size > 1:
            copies = 1 if stored is None else stored.own.copies
            ranks = [rank * copies]

        # The file of the first rank may be that of a run of one process, or of several.
        is_new_rank = stored is not None and rank >= stored.own.layout.world_size
        if rank == 0 or is_new_rank:
            ranks += [0, None]

        for name in ranks:
            path = os.path.join(checkpoint, rng_state_name(name))
            if os.path.isfile(path):
                return path
        return None

    def current_layout(self) -> Layout:
        """Return the current layout of the batches of a step over processes."""
        args = self.trainer.args
        return Layout(
            world_size=data_ranks(args),
            batch_size=samples_of_rank(args, self.batch_size),
            accumulation=args.gradient_accumulation_steps,
            tokens=args.max_tokens_per_batch or None,
        )

    def loader_layouts(self, position: StoredPosition) -> tuple[Layout, Layout]:
        """Return the layout before and the current one, with the batch sizes of the loaders.

        These replace the batch sizes of the arguments if both loaders report theirs.

        Args:
            position: position in the checkpoint.
        """
        before = position.layout
        now = self.current_layout()
        if position.loader_batch is not None and self.loader_batch is not None:
            before = replace(before, batch_size=position.loader_batch)
            now = replace(now, batch_size=self.loader_batch)
        return before, now

    def to_plain(self) -> PlainState:
        """Return the entries of a stored position that a training keeps to its end."""
        return {
            "layout": self.current_layout().to_plain(),
            "copies": copies_of_batches(self.trainer.args),
            "asked": asdict(self._requested or self._requested_now()),
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
        stored = CheckpointPositions.find(checkpoint, self.trainer.args)

        # Checkpoints of this run get the user's arguments, not the adapted ones, so that the next
        # resumption compares with the former.
        self._requested = self._requested_now()
        adapted_args = None
        if stored is not None and stored.own.layout != self.current_layout():
            adapted_args = self._adapted_arguments(stored.own)
        try:
            yield adapted_args
        finally:
            self._requested = None

    def require_known_order(self, dataloader: Any, stored: CheckpointPositions) -> None:
        """Refuse to resume in the middle of a stream whose samples would come in another order.

        Args:
            dataloader: the training data.
            stored: positions in the checkpoint.

        Raises:
            ValueError: the stream was sharded in another way when the checkpoint was made.
        """
        # The order matters only in a stream, and only an EpochLoader resumes in the middle of one.
        if not isinstance(dataloader, EpochLoader):
            return
        if not isinstance(dataloader.dataset, IterableDataset):
            return
        is_in_middle = stored.own.windows_done > 0 and not stored.own.is_at_end
        loader_state = stored.of_rank_0.loader_state
        if not is_in_middle or loader_state is None or "handed_out" not in loader_state:
            return

        layouts = self.loader_layouts(stored.own)
        problem = self._problem_with_order(dataloader, loader_state, *layouts)
        if problem is not None:
            raise ValueError(
                f"{stored.checkpoint} was made in the middle of a stream, the rest of which cannot "
                f"be read in the same order: {problem}. Resume with the arguments and processes of "
                "the checkpoint, or set ignore_data_skip=True to begin the epoch again."
            )

    def _problem_with_order(
        self, dataloader: EpochLoader, loader_state: PlainState, before: Layout, now: Layout
    ) -> str | None:
        """Return why the rest of a stream would come in another order; None if it would not."""
        args = self.trainer.args
        config: Any = args.accelerator_config
        workers_before = workers_in(loader_state)
        workers_now = args.dataloader_num_workers

        # Other batches get the same samples in the same order if a single reader read them.
        if before != now:
            changes = now.changes_from(before)
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
        if loader_state["files"] != dataloader.files:
            return (
                "accelerator_config.dispatch_batches, which decides who reads which files of it, "
                "is another one"
            )
        return None

    def convert_position(self, windows_per_epoch: int, stored: CheckpointPositions) -> ResumePoint:
        """Convert a position of another layout to steps of the current one.

        The samples seen so far are counted. If they end within a step of the current layout, that
        step is taken whole: some samples are seen again, but none are left out.

        Args:
            windows_per_epoch: steps of an epoch in the current layout.
            stored: positions in the checkpoint.

        Raises:
            ValueError: the token budgets differ, so that the samples seen cannot be counted.
        """
        position = stored.own
        before, now = self.loader_layouts(position)
        if before.tokens != now.tokens:
            raise ValueError(
                f"max_tokens_per_batch={now.tokens}, but {before.tokens} when {stored.checkpoint} "
                "was made: its place in an epoch of other batches is not known. Pass the same."
            )

        samples_seen = position.windows_done * before.step_size
        windows_done, repeated_samples = divmod(samples_seen, now.step_size)
        self._warn_of_change(before, now, samples_seen, repeated_samples)

        # An epoch that was at its end is so in any layout, whatever its last step had.
        if position.is_at_end:
            windows_done = windows_per_epoch
        windows_done = min(windows_done, windows_per_epoch)
        resume_point = ResumePoint(position.epoch, windows_done)

        # All ranks follow the order of rank 0, so its state is taken.
        loader_state = stored.of_rank_0.loader_state
        if loader_state is None:
            return resume_point
        if not _is_foreign(loader_state):
            batches_done = windows_done * now.accumulation
            loader_state = self._with_same_order(loader_state, before, batches_done, stored)
            return resume_point._replace(loader_state=loader_state)

        # A state of another library counts batches of this rank. It can be kept only if these
        # batches are unchanged, whatever their grouping into steps.
        has_same_batches = replace(before, accumulation=now.accumulation) == now
        if has_same_batches and repeated_samples == 0:
            return resume_point._replace(loader_state=position.loader_state)

        # Otherwise the loader reads an interrupted epoch again from its start.
        if 0 < windows_done < windows_per_epoch:
            return resume_point._replace(loader_state=of_other_batches(loader_state))
        return resume_point

    def length_from(
        self,
        length: TrainingLength,
        sized: bool,
        resume_point: ResumePoint,
        position: StoredPosition,
    ) -> TrainingLength:
        """Return the length of a training whose earlier steps took another number of samples.

        With `max_steps` the number of epochs is adjusted, with `num_train_epochs` the number of
        steps.

        Args:
            length: the length of the training without a checkpoint.
            sized: whether an epoch has a length.
            resume_point: where the data resumes.
            position: position in the checkpoint.
        """
        args = self.trainer.args
        steps_of_epoch = length.num_update_steps_per_epoch

        self.steps_ahead = position.steps_ahead
        before, now = self.loader_layouts(position)
        if before != now and sized:
            steps_before = self.trainer.state.global_step + self._steps_left_out(position)
            steps_of_data = resume_point.epoch * steps_of_epoch + resume_point.windows_done
            self.steps_ahead = steps_of_data - steps_before
        elif before != now:
            # A stream has no steps per epoch: compare within the current pass, unless it has ended.
            if position.is_at_end:
                self.steps_ahead = 0
            else:
                self.steps_ahead += resume_point.windows_done - position.windows_done

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

    def mean_progress(self, stored: CheckpointPositions) -> PlainState | None:
        """Return the meters for the next log, averaged over the processes of the checkpoint.

        None if files of some processes are missing, because each machine may hold only its own.
        """
        processes = stored.own.layout.world_size
        progress_of_ranks: list[PlainState] = []
        for rank in range(processes):
            position = stored.of_rank(rank)
            if position is None or position.progress is None:
                return None
            progress_of_ranks.append(position.progress)

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

    def _requested_now(self) -> RequestedArguments:
        args = self.trainer.args
        return RequestedArguments(
            batch=args.per_device_train_batch_size,
            accumulation=args.gradient_accumulation_steps,
        )

    def _adapted_arguments(self, position: StoredPosition) -> TrainingArguments | None:
        """Return arguments that keep the samples per step; None to leave them unchanged."""
        before = position.layout
        now = self.current_layout()

        # The user has requested other steps. A position without a record of the request was made
        # with the arguments of its layout.
        requested_before = position.requested or RequestedArguments(
            batch=self._batch_argument(before), accumulation=before.accumulation
        )
        if requested_before != self._requested:
            return None

        # The samples of a step cannot be divided among the processes.
        step_of_process, remainder = divmod(before.step_size, now.world_size)
        if remainder:
            return None

        # The arguments keep the samples already.
        if before.step_size == now.step_size:
            return None

        # With a token budget, batches are counted, and stay as they are. Otherwise take the largest
        # batch that is not larger than the requested one, and divides the samples of a process.
        accumulation = step_of_process
        if now.tokens is None:
            batch_size = min(now.batch_size, step_of_process)
            while step_of_process % batch_size:
                batch_size -= 1
            accumulation = step_of_process // batch_size
            now = replace(now, batch_size=batch_size)

        args = copy.copy(self.trainer.args)
        args.per_device_train_batch_size = self._batch_argument(now)
        args.gradient_accumulation_steps = accumulation
        args.deepspeed = with_open_batches(args.deepspeed)
        return args

    def _batch_argument(self, layout: Layout) -> int:
        """Return the `per_device_train_batch_size` that leads to a layout.

        With `split_batches` the argument counts the samples of all processes.
        """
        config: Any = self.trainer.args.accelerator_config
        if config.split_batches:
            return layout.batch_size * layout.world_size
        return layout.batch_size

    def _steps_left_out(self, position: StoredPosition) -> int:
        """Return the steps that were skipped because a callback ended epochs early.

        They are counted in steps of the current layout.
        """
        steps_of_data = position.epoch * position.windows_per_epoch + position.windows_done
        steps_taken = self.trainer.state.global_step + position.steps_ahead
        left_out = max(steps_of_data - steps_taken, 0)
        before, now = self.loader_layouts(position)
        return left_out * before.step_size // now.step_size

    def _with_same_order(
        self,
        loader_state: PlainState,
        before: Layout,
        batches_done: int,
        stored: CheckpointPositions,
    ) -> PlainState | None:
        """Return a loader state that continues in the order drawn for the epoch.

        Args:
            loader_state: state of the loader of rank 0, from `EpochLoader` or `ReplayLoader`.
            before: the layout of that state.
            batches_done: the batches of the current layout to skip.
            stored: positions in the checkpoint.
        """
        # The state of a ReplayLoader is the generator at the start of the epoch, which suffices.
        if "began" in loader_state:
            return loader_state
        generators = loader_state["start"]
        if generators is None:
            return None

        path = self.rng_path(stored.checkpoint, stored)
        if path is not None:
            generators = load_rng_file(path)
        adapted = with_other_batches(loader_state, batches_done, generators)

        # Processes that read their own files took turns, a batch each.
        files = loader_state.get("files", 1)
        if files > 1:
            adapted["files_in_turn"] = [files, before.batch_size]
        return adapted

    def _warn_of_change(
        self, before: Layout, now: Layout, samples_seen: int, repeated_samples: int
    ) -> None:
        if not self.trainer.args.should_log:
            return
        unit = "samples" if now.tokens is None else "batches"
        effect = f"a step still takes {now.step_size} {unit}, in the same order"
        if before.step_size != now.step_size:
            effect = (
                f"a step takes {now.step_size} {unit} instead of {before.step_size}, and "
                f"{samples_seen} of this epoch are seen"
            )
            if repeated_samples:
                effect += f", the last {repeated_samples} of which are seen again"
        logger.warning("Training continues with %s: %s.", now.changes_from(before), effect)


def _is_foreign(loader_state: PlainState) -> bool:
    """Return whether a state comes from a loader of another library, such as torchdata's."""
    return "handed_out" not in loader_state and "began" not in loader_state


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
