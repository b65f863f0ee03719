"""Elastic resumption, with another number of processes or another batch size."""

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
from ..arguments.rank_groups import (
    copies_of_batches,
    data_parallel_rank,
    data_parallel_size,
    samples_of_rank,
)
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
    """Position where the training data resumes, in steps of the current layout."""

    epoch: int
    windows_done: int
    """Number of completed steps of that epoch."""
    loader_state: PlainState | None = None
    """None if the loader skips the batches of these steps itself."""


class ElasticResumption:
    """Resume with another layout of batches over processes.

    Each checkpoint stores the layout that the run used, and the batch size and gradient
    accumulation that the user had requested. If only the number of processes differs, batch size
    and accumulation are adapted, so that each step takes the same samples in the same order. If the
    user requests another global batch, the position is converted by counting samples, with a
    warning.

    For example, a run of 4 processes with batches of 2 is interrupted after 3 steps of an epoch,
    that is after 24 samples. One process resumes with batches of 2 and 4 of them in each step, and
    also after 3 steps. If the user requests batches of 5 for it, the epoch resumes after 4 steps of
    5 samples, and the last 4 of the 24 samples are seen again.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.steps_ahead = 0
        """Number of steps by which the data position is ahead of the global step, because earlier
        steps took more samples.
        """
        self.batch_size = 0
        """Samples per batch of the loader, set before each attempt to train."""
        self.loader_batch: int | None = None
        """Samples per batch in this process as reported by the loader, or None. Loaders of scripts
        may not use the batch size of the arguments.
        """
        self._requested: RequestedArguments | None = None
        """The user's arguments, while a training uses adapted ones."""

    def rng_path(self, checkpoint: str, stored: CheckpointPositions | None) -> str | None:
        """Return the file with the RNG states of this rank; None if it is missing.

        Rank 0, and ranks that the earlier run did not have, use the file of rank 0 of a run with
        any world size, so that samplers draw the same order on all ranks.
        """
        args = self.trainer.args
        rank = data_parallel_rank(args)

        # The file name contains a rank, except in runs with a single process.
        ranks: list[int | None] = [None]
        if args.world_size > 1:
            copies = 1 if stored is None else stored.own.copies
            ranks = [rank * copies]

        # The file of rank 0 may be from a run with one process or several.
        is_new_rank = stored is not None and rank >= stored.own.layout.world_size
        if rank == 0 or is_new_rank:
            ranks += [0, None]

        for name in ranks:
            path = os.path.join(checkpoint, rng_state_name(name))
            if os.path.isfile(path):
                return path
        return None

    def current_layout(self) -> Layout:
        """Return the current layout of a step's batches over processes."""
        args = self.trainer.args
        return Layout(
            world_size=data_parallel_size(args),
            batch_size=samples_of_rank(args, self.batch_size),
            accumulation=args.gradient_accumulation_steps,
            tokens=args.max_tokens_per_batch or None,
        )

    def loader_layouts(self, position: StoredPosition) -> tuple[Layout, Layout]:
        """Return the previous and the current layout, with the batch sizes of the loaders.

        They replace those of the arguments if both loaders report their batch sizes.

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
        """Return the entries of a stored position that do not change during a training."""
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
        """Keep the global batch size if only the number of processes changed.

        Yields a copy of the arguments with adapted batch size and accumulation, or None if the
        arguments need not be adapted.

        Args:
            checkpoint: the folder to resume from.
            batch_size: samples per batch of the loader.
        """
        self.batch_size = batch_size
        stored = CheckpointPositions.find(checkpoint, self.trainer.args)

        # Checkpoints of this run store the user's arguments instead of the adapted ones, so that
        # the next resumption compares with them.
        self._requested = self._requested_now()
        adapted_args = None
        if stored is not None and stored.own.layout != self.current_layout():
            adapted_args = self._adapted_arguments(stored.own)
        try:
            yield adapted_args
        finally:
            self._requested = None

    def require_known_order(self, dataloader: Any, stored: CheckpointPositions) -> None:
        """Raise if training would resume within a stream whose samples would have another order.

        Args:
            dataloader: the training data.
            stored: positions in the checkpoint.

        Raises:
            ValueError: the stream was sharded differently when the checkpoint was written.
        """
        # The order only matters for streams, and only an EpochLoader can resume within one.
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
                f"{stored.checkpoint} was written in the middle of a stream, whose rest cannot be "
                f"read in the same order: {problem}. Resume with the arguments and processes of "
                "the checkpoint, or set ignore_data_skip=True to restart the epoch."
            )

    def _problem_with_order(
        self, dataloader: EpochLoader, loader_state: PlainState, before: Layout, now: Layout
    ) -> str | None:
        """Return why the rest of a stream would have another order, or None."""
        args = self.trainer.args
        config: Any = args.accelerator_config
        workers_before = workers_in(loader_state)
        workers_now = args.dataloader_num_workers

        # With another layout, the order is the same if there was a single reader.
        if before != now:
            changes = now.changes_from(before)
            if workers_before > 1:
                return (
                    f"{workers_before} workers read it, whose batches alternate, and now {changes}"
                )
            if dataloader.files > 1:
                return f"each process now reads its own files of it, with {changes}"
            return None

        workers_decide = data_parallel_size(args) > 1 and config.dispatch_batches is None
        if workers_decide and (workers_before > 1) != (workers_now > 1):
            return (
                f"dataloader_num_workers is {workers_now} instead of {workers_before}, which "
                "decides which process reads it"
            )
        if loader_state["files"] != dataloader.files:
            return (
                "accelerator_config.dispatch_batches, which decides which process reads which "
                "files, has changed"
            )
        return None

    def convert_position(self, windows_per_epoch: int, stored: CheckpointPositions) -> ResumePoint:
        """Convert a position of another layout to steps of the current one.

        Counts the samples seen so far. If they end within a step of the current layout, the whole
        step is repeated, so that some samples are seen twice but none is skipped.

        Args:
            windows_per_epoch: steps of an epoch in the current layout.
            stored: positions in the checkpoint.

        Raises:
            ValueError: the token budgets differ, so that samples cannot be counted.
        """
        position = stored.own
        before, now = self.loader_layouts(position)
        if before.tokens != now.tokens:
            raise ValueError(
                f"max_tokens_per_batch={now.tokens}, but {before.tokens} when {stored.checkpoint} "
                "was written: its position in an epoch of other batches is unknown. Pass the same."
            )

        samples_seen = position.windows_done * before.step_size
        windows_done, repeated_samples = divmod(samples_seen, now.step_size)
        self._warn_of_change(before, now, samples_seen, repeated_samples)

        # An epoch at its end stays at its end in any layout.
        if position.is_at_end:
            windows_done = windows_per_epoch
        windows_done = min(windows_done, windows_per_epoch)
        resume_point = ResumePoint(position.epoch, windows_done)

        # All ranks follow the order of rank 0, so use its state.
        loader_state = stored.of_rank_0.loader_state
        if loader_state is None:
            return resume_point
        if not _is_foreign(loader_state):
            batches_done = windows_done * now.accumulation
            loader_state = self._with_same_order(loader_state, before, batches_done, stored)
            return resume_point._replace(loader_state=loader_state)

        # A state of another library counts batches of this rank. It is only valid if these batches
        # are unchanged, even if they are grouped into other steps.
        has_same_batches = replace(before, accumulation=now.accumulation) == now
        if has_same_batches and repeated_samples == 0:
            return resume_point._replace(loader_state=position.loader_state)

        # Otherwise the loader reads an interrupted epoch from its start.
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
        """Adjust the length of a training whose earlier steps took another number of samples.

        With `max_steps`, adjusts the number of epochs; with `num_train_epochs`, the number of
        steps.

        Args:
            length: the length of the training without a checkpoint.
            sized: whether the length of an epoch is known.
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
            # The steps per epoch of a stream are unknown. Compare within the current pass, unless
            # it has ended.
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
                "num_train_epochs=%s takes %s steps, because the steps before the checkpoint took "
                "another number of samples.",
                args.num_train_epochs,
                max_steps,
            )
        return length._replace(max_steps=max_steps)

    def mean_progress(self, stored: CheckpointPositions) -> PlainState | None:
        """Return the meters for the next log, averaged over the ranks of the checkpoint.

        Returns None if files of some ranks are missing, because each machine may only have its own.
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

        # Everything else is equal on all ranks.
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
        """Return arguments that keep the global batch size; None to leave them unchanged."""
        before = position.layout
        now = self.current_layout()

        # The user has requested another global batch. A position without the requested arguments
        # was written with the arguments of its layout.
        requested_before = position.requested or RequestedArguments(
            batch=self._batch_argument(before), accumulation=before.accumulation
        )
        if requested_before != self._requested:
            return None

        # The global batch cannot be divided evenly among the processes.
        step_of_process, remainder = divmod(before.step_size, now.world_size)
        if remainder:
            return None

        # The global batch is the same already.
        if before.step_size == now.step_size:
            return None

        # With a token budget, batches are counted and do not change. Otherwise use the largest
        # batch size up to the requested one that divides the samples per process.
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
        """Return the number of steps that were skipped because a callback ended epochs early.

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
            batches_done: number of batches of the current layout to skip.
            stored: positions in the checkpoint.
        """
        # The state of a ReplayLoader is the RNG state at the start of the epoch, which suffices.
        if "began" in loader_state:
            return loader_state
        generators = loader_state["start"]
        if generators is None:
            return None

        path = self.rng_path(stored.checkpoint, stored)
        if path is not None:
            generators = load_rng_file(path)
        adapted = with_other_batches(loader_state, batches_done, generators)

        # Processes that read separate files took turns, one batch each.
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
    """Return the samples per batch of a loader in this process; None if it is unknown.

    Args:
        dataloader: any loader.
        readers: the processes that share the batches of an `EpochLoader`.
    """
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    if isinstance(dataloader, EpochLoader):
        # The number is unknown, and `samples_per_round` counts batches instead.
        if getattr(batch_sampler, "samples_per_rank", readers) is None:
            return None
        return dataloader.samples_per_round // readers

    batch_size = getattr(dataloader, "batch_size", None)
    if batch_size is None:
        batch_size = getattr(batch_sampler, "batch_size", None)
    if isinstance(batch_size, int):
        return batch_size
    return None
