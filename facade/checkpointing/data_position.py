"""Save the position of a training in its data in checkpoints, and restore it when resuming."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ...lightning_modules.checkpoints import CheckpointFiles
from ...lightning_modules.common.file_names import data_state_name, rng_state_name
from ...lightning_modules.common.safe_serialization import UnsafeValueError, to_plain
from ...lightning_modules.common.seeding import load_rng_file
from ...lightning_modules.common.torch_files import torch_bytes
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.data.loader_state import from_epoch_start
from ...lightning_modules.data.stateful_parts import part_states, restore_parts
from ...lightning_modules.data.uneven_inputs import UnevenInputs, may_be_uneven
from ...lightning_modules.training.accumulation import WindowLoader, WindowReader
from ..arguments.rank_groups import data_parallel_size, order_seed
from ..evaluation.results import TrainingLength
from ..evaluation.sets import evaluation_parts
from .elastic import ElasticResumption, ResumePoint, batch_size_of
from .generators import capture_generators, restore_generators
from .stored_positions import CheckpointPositions, PlainState, StoredPosition

if TYPE_CHECKING:
    from .. import Trainer, TrainingRun

logger = logging.getLogger(__name__)


class DataPosition:
    """Save and restore epoch, window, loader state and random generators.

    Args:
        trainer: the Trainer.
        elastic: maps the position to another layout of batches.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer, elastic: ElasticResumption) -> None:
        self.trainer = trainer
        self.elastic = elastic
        self._plain_layout: PlainState = {}
        """`ElasticResumption.to_plain` when the training began."""
        self._stored: CheckpointPositions | None = None
        """The positions to resume from, between `windows` and `apply_progress`."""
        self.evaluated_before: PlainState = {}
        """Worker states of evaluation loaders, by name of the loader."""

    def save(
        self,
        folder: str,
        *,
        files_of: Callable[[str], CheckpointFiles],
        run: TrainingRun,
        loaders: Mapping[str, object],
    ) -> None:
        """Write the position of this process. Must be called on all ranks.

        Args:
            folder: the folder of the checkpoint.
            files_of: returns the object that writes the files of a folder.
            run: the current training.
            loaders: evaluation loaders with persistent workers, by name.
        """
        # A checkpoint written during an evaluation gets the RNG states from before it, because the
        # resumed training repeats the evaluation.
        epoch, done = run.next_position
        with run.interrupted_evaluation.generators_before():
            position = run.windows.state_dict(is_last_done=run.is_last_done)
            state = {**position, "epoch": epoch, "done": done}
            state["evaluation"] = part_states(*evaluation_parts(self.trainer))

        accumulation = self.trainer.args.gradient_accumulation_steps
        state |= {
            **self._plain_layout,
            "layout": {**self._plain_layout["layout"], "accumulation": accumulation},
            "data_seed": order_seed(self.trainer.args),
            "windows": run.windows.windows_per_epoch,
            "evaluated": run.interrupted_evaluation.worker_states(loaders),
            "ended": run.epoch_is_over,
            "left": self.trainer.control.should_epoch_stop,
            "progress": run.progress(),
            "before_epoch": run.generators_before_epoch,
            "in_evaluation": run.interrupted_evaluation.state(),
        }
        try:
            plain = to_plain(state)
        except UnsafeValueError as error:
            # Without a state, the loader reads the batches that it skips.
            logger.warning(
                "The state of the data loader is not saved, because a checkpoint cannot store it: "
                "%s.",
                error,
            )
            plain = to_plain({**state, "loader": None})
        path = os.path.join(folder, data_state_name(self.trainer.args.process_index))
        files_of(folder).write_bytes(torch_bytes(plain), path)

    def windows(
        self,
        dataloader: DataLoader,
        length: TrainingLength,
        checkpoint: str | None,
        read: WindowReader,
        on_positioned: Any,
    ) -> tuple[WindowLoader, TrainingLength]:
        """Return the window loader, positioned where training resumes, and the adjusted length.

        Args:
            dataloader: the loader of the training data.
            length: the length of the training without a checkpoint.
            checkpoint: the folder to resume from.
            read: reads the micro-batches of a window.
            on_positioned: called when the loader has reached the position.
        """
        trainer = self.trainer
        elastic = self.elastic
        elastic.steps_ahead = 0
        sized = has_length(dataloader)

        # Find the position, and adjust the length to it.
        stored = CheckpointPositions.find(checkpoint, trainer.args)
        self._stored = stored
        elastic.loader_batch = batch_size_of(dataloader, data_parallel_size(trainer.args))
        resume_point = ResumePoint(0, 0)
        if stored is not None:
            if not trainer.args.ignore_data_skip:
                elastic.require_known_order(dataloader, stored)
            resume_point = self._resume_point(length, sized, stored)
            length = elastic.length_from(length, sized, resume_point, stored.own)
        elif checkpoint is not None:
            resume_point = self._counted(length, sized)

        self._plain_layout = elastic.to_plain()
        windows = WindowLoader(
            dataloader,
            accumulation=trainer.args.gradient_accumulation_steps,
            batches_per_epoch=length.steps_in_epoch if sized else None,
            windows_per_epoch=length.num_update_steps_per_epoch,
            read_window=read,
        )
        if may_be_uneven(dataloader):
            windows.align_ranks = UnevenInputs("Training data")
        if checkpoint is None:
            return windows, length

        epoch, windows_done, loader_state = resume_point
        self.evaluated_before = {}
        is_end_missing = False
        was_left = False
        has_new_seed = False
        if stored is not None:
            has_new_seed = self._has_new_seed(stored.own, sized)
            self.evaluated_before = stored.own.evaluation_workers
            is_end_missing = not stored.own.is_epoch_ended
            was_left = stored.own.was_epoch_left

        # With `ignore_data_skip`, restart the epoch, unless only its end is missing. Its order is
        # the same unless the seed has changed.
        if trainer.args.ignore_data_skip and windows_done < windows.windows_per_epoch:
            windows_done = 0
            if has_new_seed or loader_state is None or "handed_out" not in loader_state:
                loader_state = None
            else:
                loader_state = from_epoch_start(loader_state)

        # All steps were taken when this was saved, so only the end of the epoch is missing.
        if is_end_missing and trainer.state.global_step >= length.max_steps:
            windows_done = windows.windows_per_epoch
        windows.start_at(
            epoch,
            windows_done,
            on_positioned=on_positioned,
            loader_state=loader_state,
            was_left=was_left,
        )
        return windows, length

    def apply_progress(self, run: TrainingRun) -> None:
        """Restore the meters for the next log, and schedule an interrupted evaluation for
        repetition.
        """
        stored = self._stored
        self._stored = None
        if stored is None:
            return
        position = stored.own
        run.interrupted_evaluation.owed = position.interrupted_evaluation
        restore_parts(position.evaluation_parts, *evaluation_parts(self.trainer))
        run.generators_before_epoch = position.generators_before_epoch

        # Each rank has saved its own losses. With another world size, each rank uses their mean.
        progress = position.progress
        has_same_processes = position.layout.world_size == data_parallel_size(self.trainer.args)
        if progress is not None and not has_same_processes:
            progress = self.elastic.mean_progress(stored)
        if progress is not None:
            run.apply_progress(progress)

    def save_rng(self, folder: str, files: CheckpointFiles, run: TrainingRun | None) -> None:
        """Write the RNG states; during an evaluation, those from before it."""
        # The resumed training repeats an evaluation during which this is saved.
        generators: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if run is not None:
            generators = run.interrupted_evaluation.generators_before()
        with generators:
            state = capture_generators(self.trainer)

        # As in transformers, the name only contains a rank if there are several processes.
        rank = None
        if self.trainer.args.world_size > 1:
            rank = self.trainer.args.process_index
        files.write_bytes(torch_bytes(state), os.path.join(folder, rng_state_name(rank)))

    def load_rng(self, checkpoint: str) -> None:
        """Restore the RNG states of this process, and warn if their file is missing."""
        stored = CheckpointPositions.find(checkpoint, self.trainer.args)
        path = self.elastic.rng_path(checkpoint, stored)
        if path is None:
            logger.warning(
                "%s has no RNG states of this process; results will differ from an uninterrupted "
                "run.",
                checkpoint,
            )
        else:
            restore_generators(self.trainer, load_rng_file(path))

    def _has_new_seed(self, position: StoredPosition, sized: bool) -> bool:
        """Return whether the seed of the order has changed. Warn if that has no effect.

        Args:
            position: the position of this process in the checkpoint.
            sized: whether the training data has a length. A stream has its own order.
        """
        args = self.trainer.args
        seed = order_seed(args)
        has_seeded_order = sized and args.train_sampling_strategy in ("random", "token_budget")
        if not has_seeded_order or position.data_seed in (None, seed):
            return False
        if not args.ignore_data_skip:
            name = "seed" if args.data_seed is None else "data_seed"
            logger.warning(
                "%s=%s has no effect on the order of the samples: it stays that of the checkpoint "
                "(%s), so that no sample is left out. Set ignore_data_skip=True to begin the epoch "
                "again in the new order.",
                name,
                seed,
                position.data_seed,
            )
        return True

    def _resume_point(
        self, length: TrainingLength, sized: bool, stored: CheckpointPositions
    ) -> ResumePoint:
        """Return the stored position in steps of this training."""
        position = stored.own
        windows_per_epoch = length.num_update_steps_per_epoch
        layout_before, layout_now = self.elastic.loader_layouts(position)
        if layout_before != layout_now:
            return self.elastic.convert_position(windows_per_epoch, stored)
        if not sized or position.windows_per_epoch == windows_per_epoch:
            return ResumePoint(position.epoch, position.windows_done, position.loader_state)
        logger.warning(
            "An epoch had %s steps when the checkpoint was written and has %s now: the data has "
            "changed.",
            position.windows_per_epoch,
            windows_per_epoch,
        )
        return self._counted(length, sized)

    def _counted(self, length: TrainingLength, sized: bool) -> ResumePoint:
        """Compute the position from the global step alone, as in the reference."""
        state = self.trainer.state
        if sized:
            return ResumePoint(*divmod(state.global_step, length.num_update_steps_per_epoch))
        # The number of steps in an epoch of a stream is unknown, but the state has the fraction.
        epoch, part = divmod(state.epoch, 1)
        return ResumePoint(int(epoch), round(part * length.num_update_steps_per_epoch))
