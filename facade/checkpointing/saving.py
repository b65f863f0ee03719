"""Save models and checkpoints. The main function is `CheckpointSaver.save`."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks import reads_checkpoints
from ...callbacks.tensor_states import CALLBACK_STATES_NAME
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import BackgroundWriter, CheckpointFiles
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.file_names import (
    PREFIX_CHECKPOINT_DIR,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from ...lightning_modules.common.torch_files import torch_bytes, writing_to
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.wrappers import unwrap_model
from ..distributed.collectives import broadcast_from_rank_zero
from .complete_checkpoints import CompleteCheckpoints
from .first_save import FirstSave
from .object_store import ObjectStore
from .signals import SignalListening
from .training_state import CallbackStates, LightningCallbackStates

if TYPE_CHECKING:
    from .. import Trainer, TrainingRun
    from ..strategies.strategy import Strategy

logger = logging.getLogger(__name__)

_BETWEEN_FLUSHES = 1.0
"""Minimum seconds between two flushes to the disk during training."""


class CheckpointSaver:
    """Writes models and checkpoints. A checkpoint gets its final name when it is complete.

    Args:
        trainer: the Trainer.
        callbacks: states of its callbacks.
        lightning: states of its Lightning callbacks.
        signals: after a signal, the training state is saved despite `save_only_model`.
        store: uploads files, if `output_dir` is a URL.
        complete: the checkpoints that have their final names.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(
        self,
        trainer: Trainer,
        callbacks: CallbackStates,
        lightning: LightningCallbackStates,
        signals: SignalListening,
        store: ObjectStore,
        complete: CompleteCheckpoints,
    ) -> None:
        self.trainer = trainer
        self.callbacks = callbacks
        self.lightning = lightning
        self.signals = signals
        self.store = store
        self.complete = complete
        self.background = BackgroundWriter()

        # The checkpoint being written.
        self._files = CheckpointFiles()
        self.staging: str | None = None
        """The staging folder of the checkpoint being written; None between checkpoints."""
        self._newest: Path | None = None
        """The final folder of the last checkpoint, which a thread may still be writing."""

        # The training.
        self._owner: str | None = None
        """Token of the saving process, part of the names of staging folders."""
        self._flushed_at = 0.0
        self._first_save = FirstSave()

    # --- a checkpoint

    def save(
        self,
        run_dir: str,
        parts: Iterable[Callable[[str], None]],
        *,
        strategy: Strategy,
        run: TrainingRun | None,
        is_overridden: bool,
    ) -> None:
        """Write `checkpoint-{step}` to a staging folder, and rename it when it is complete.

        Must be called on all ranks, because each exchanges or writes parts of the training state.

        Args:
            run_dir: the checkpoint folder.
            parts: functions that each write a part of the training state to a folder.
            strategy: writes the shards of each rank.
            run: the current training.
            is_overridden: whether `_save_checkpoint` is overridden. Then write in the foreground,
                because the override may read the files right after, and keep files that it wrote to
                `checkpoint-{step}` before.

        Raises:
            DiskFullError: there is not enough space. Nothing was written.
        """
        trainer = self.trainer
        args = trainer.args
        saves = args.should_save

        # Use an absolute path, because a thread may write after the working directory has changed.
        parent = os.path.join(self.complete.origin, run_dir)
        final = Path(parent) / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        owner = self._owner or broadcast_from_rank_zero(
            checkpoints.process_token(), args.world_size
        )
        folder = checkpoints.staging_path(final, owner)

        # A thread writes copies while training continues, unless the script, a callback or an
        # override reads the files right after. Only some ranks may have one, so all ranks decide
        # together.
        later = False
        if run is not None:
            is_read = is_overridden or not run.checkpoint_is_due
            may_write_later = not is_read and self._may_write_later(strategy)
            later = run.lightning_trainer.strategy.reduce_boolean_decision(may_write_later)
        has_parts = later and strategy.saves_parts(checkpoint=True)

        # Wait for earlier writes if this checkpoint is not copied, if it has shards, because the
        # shards of two checkpoints would share process groups, or if it replaces the last one,
        # because they would share a folder.
        if not later or has_parts or final == self._newest:
            self._wait_for_writes()
        self._newest = final

        try:
            # Wait until there is memory for the copies.
            if self.lightning.callbacks:
                self.lightning.checkpoint = self.lightning.collected(run)
            size = self.bytes_to_save(strategy)
            if saves:
                self._wait_for_writes(size, trainer.background_checkpoints or 0)
            copies = None
            if later and saves:
                copies = self.background.copies()

            # A process on another machine may not see the folder, so with one folder for all, each
            # process sends its states to the saving process.
            sends_states = not saves and not args.save_on_each_node
            self._files = CheckpointFiles(
                copies, parts_later=has_parts, sends_contents=sends_states
            )

            # If a disk is full, raise on all ranks after each part, because the next part may be a
            # collective in which the others would hang.
            one_step = partial(checkpoints.full_disk_on_all_ranks, final, args.world_size)

            # Create the empty folder, after making space on the disk.
            with one_step():
                if saves:
                    self._make_space(parent, size)
                    checkpoints.begin(final, owner)
            if args.local_process_index == 0 and not saves:
                self._require_one_disk(strategy, folder, final)

            # Write the files by methods of the Trainer, so that overrides are called.
            self.staging = str(folder)
            self._expect_weights(is_sharded=strategy.sharded_model is not None)
            with one_step():
                trainer.save_model(str(folder), _internal_call=True)
            if self.saves_training_state:
                for write_part in parts:
                    with one_step():
                        write_part(str(folder))
            with one_step():
                self._write_states(str(folder), Path(run_dir, final.name))

            # Write the manifest and rename the folder, now or in the thread. Only the saving
            # process does this. Threads of other processes write their shards.
            sent_contents: list[dict[str, bytes]] = []
            if args.world_size > 1:
                sent_contents = gather_objects(self._files.contents_to_send)
            with one_step():
                commit: Callable[[], None] = _do_nothing
                undo: Callable[[], None] = _do_nothing
                if saves:
                    for contents in sent_contents:
                        for name, content in contents.items():
                            self._files.write_bytes(content, folder / name)
                    best = trainer.state.best_model_checkpoint
                    commit = partial(self._commit, folder, final, best, is_overridden)
                    undo = partial(checkpoints.abort, folder)
                if later and (saves or has_parts):
                    self.background.start(self._files, size, commit=commit, undo=undo)
                else:
                    commit()
        except BaseException:
            if saves:
                checkpoints.abort(folder)
            raise
        finally:
            self._files = CheckpointFiles()
            self.staging = None
            self.lightning.checkpoint = None

        # Flush to the disk in the thread, and delete older checkpoints after that. A save outside
        # of training waits for it.
        if saves and not trainer.is_in_train:
            self.wait_until_flushed()
        elif saves and time.monotonic() - self._flushed_at > _BETWEEN_FLUSHES:
            self._begin_to_flush()

    def _write_states(self, folder: str, name: Path) -> None:
        """Write the states of callbacks and of the Trainer, which names the best checkpoint.

        Args:
            folder: the staging folder.
            name: the path of the checkpoint in the Trainer's state.
        """
        # The best checkpoint may be the one being written.
        state = self.trainer.state
        if state.best_global_step:
            best = name.with_name(f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
            if (best == name or best.exists()) and state.best_model_checkpoint != str(best):
                # Remember the former one in case this one cannot be written.
                self.complete.note_best(state.best_model_checkpoint)
                state.best_model_checkpoint = str(best)

        if not self.trainer.args.should_save:
            return
        if self.saves_training_state and self.lightning.checkpoint is not None:
            self.lightning.save(folder, self._files)
        state.stateful_callbacks = self.callbacks.exported()
        self._files.write_bytes(state.to_json(), os.path.join(folder, TRAINER_STATE_NAME))
        tensors = self.callbacks.tensors()
        if tensors:
            self._files.write_tensors(tensors, os.path.join(folder, CALLBACK_STATES_NAME))

    def _commit(self, folder: Path, final: Path, best: str | None, is_overridden: bool) -> None:
        """Write the manifest, and rename the checkpoint to its final name."""
        self._first_save.compare(folder)
        checkpoints.write_manifest(folder)

        # Overrides and callbacks may have written files for this checkpoint before. A checkpoint
        # of an earlier run is replaced as a whole.
        if is_overridden or not (final / TRAINER_STATE_NAME).exists():
            checkpoints.copy_unlisted_files(final, folder)

        self.complete.commit(folder, final, best)
        if self.store.is_open:
            self.store.upload_in_background()

    def accept_changes(self) -> None:
        """Update the manifest of the newest checkpoint after overrides and callbacks have changed
        files.

        Changes during `on_save` are intended. Later ones cannot be distinguished from damage.
        """
        if not self.trainer.args.should_save:
            return
        # A checkpoint that is still being written has no manifest yet.
        if self._newest is None or self.background.bytes_waiting:
            return
        if checkpoints.refresh_manifest(self._newest) and self.store.is_open:
            self.store.upload_in_background()

    # --- before a checkpoint

    @property
    def saves_training_state(self) -> bool:
        """Return whether checkpoints contain the training state, as those of interrupted trainings
        always do.
        """
        return not self.trainer.args.save_only_model or self.signals.is_interrupted

    def files_of(self, folder: str) -> CheckpointFiles:
        """Return the writer of the files of a folder.

        Files of the current checkpoint may be written in the thread. Others are written
        immediately, because a signal handler or a thread may save a model in the meantime.
        """
        if folder == self.staging:
            return self._files
        return CheckpointFiles()

    def bytes_to_save(self, strategy: Strategy) -> int:
        """Return the estimated size of a checkpoint in bytes."""
        optimizer_states: list[object] = []
        if self.saves_training_state:
            optimizer_states = list(getattr(self.trainer.optimizer, "state", {}).values())
        callback_states = [self.callbacks.tensors(), self.lightning.checkpoint]
        return strategy.bytes_to_save(
            optimizer_states, callback_states, processes=self.trainer.args.world_size
        )

    def _may_write_later(self, strategy: Strategy) -> bool:
        """Return whether a thread may write copies of the files while training continues."""
        trainer = self.trainer
        if trainer.background_checkpoints is None or trainer.control.should_training_stop:
            return False
        if strategy.engine_writes:
            return False

        # An upload or a callback reads the files right after.
        if trainer.args.push_to_hub:
            return False
        callbacks = trainer.callback_handler.callbacks
        return not any(reads_checkpoints(callback) for callback in callbacks)

    def _wait_for_writes(self, size: int = 0, limit: int = -1) -> None:
        """Wait until the thread has written checkpoints. A full disk only causes a warning.

        Args:
            size: the size of the next checkpoint, in bytes.
            limit: maximum bytes of copies in memory, including the next checkpoint. The default
                waits until all are written.
        """
        try:
            self.background.make_room(size, limit)
        except Exception as error:
            checkpoints.warn_if_disk_full(error, str(self.trainer.args.output_dir))

    def _make_space(self, run_dir: str, size: int) -> None:
        """Remove older checkpoints if the disk is nearly full.

        Raises:
            DiskFullError: there is not enough space even without them.
        """
        needed = self.background.bytes_waiting + size + checkpoints.MARGIN
        if checkpoints.free_space(run_dir) >= 2 * needed:
            return

        # Keep older checkpoints until a newer one is flushed.
        self._wait_for_writes()
        self.wait_until_flushed()
        best = self.trainer.state.best_model_checkpoint
        # Without a limit, every checkpoint must be kept; with a limit, the newest and the best.
        older: list[str] = []
        if self.trainer.args.save_total_limit:
            older = checkpoints.sort_checkpoints(run_dir, best_model_checkpoint=best)[:-1]
        if best is not None and os.path.exists(best):
            older = [path for path in older if not os.path.samefile(path, best)]
        self.complete.make_space(run_dir, size, spare=older)

    def _require_one_disk(self, strategy: Strategy, folder: Path, final: Path) -> None:
        """Raise if the shards of a checkpoint would be on several disks.

        Called by the first process of each other machine.
        """
        saves_parts = strategy.saves_parts(checkpoint=True) or strategy.engine_writes
        if self.saves_training_state and saves_parts:
            checkpoints.require_visible(folder, final)

    # --- a model

    def save_model(
        self,
        folder: str,
        write: Callable[..., None],
        *,
        internal: bool,
        strategy: Strategy,
        run: TrainingRun | None,
    ) -> None:
        """Write a model. All processes must call this.

        Args:
            folder: the folder to write to.
            write: `Trainer._save`, called in the process that saves.
            internal: whether this package makes the call, so that `folder` may be a checkpoint.
            strategy: gathers the weights of a sharded model, or writes the shards.
            run: the current training.
        """
        trainer = self.trainer
        saves = trainer.args.should_save
        in_checkpoint = internal and folder == self.staging

        # Write shards. This collective comes first, because a rank that fails to write the other
        # files would leave the others waiting.
        if strategy.saves_parts(checkpoint=in_checkpoint):
            follow = internal and self.saves_training_state
            strategy.save_weights(
                folder,
                files=self.files_of(folder),
                step=trainer.state.global_step,
                states_follow=follow,
            )
            if saves:
                write(folder, state_dict={})
            return

        # Write full weights: gathered ones, those of a callback, or those of the model.
        is_sharded = strategy.sharded_model is not None
        weights = None
        if is_sharded:
            weights = strategy.full_weights(trainer.model, keep=saves)
        self._expect_weights(weights, is_sharded=is_sharded)
        if weights is None and self.lightning.callbacks:
            weights = self.lightning.weights(run)
        if saves and weights is None:
            write(folder)
        elif saves:
            write(folder, state_dict=weights)
        if not in_checkpoint:
            self._first_save.compare(folder)

    def write_model(self, folder: str, state_dict: dict[str, Any] | None) -> None:
        """Write weights, processing class and arguments, see `Trainer._save`.

        Args:
            folder: the folder to write to.
            state_dict: weights to write instead of the model's. Empty if they are written
                separately.
        """
        os.makedirs(folder, exist_ok=True)
        final_folder: str | Path | None = folder
        if folder == self.staging:
            final_folder = self._newest
        logger.info("Saving the model to %s", final_folder)

        # Weights and configuration.
        trainer = self.trainer
        model = unwrap_model(trainer.model)
        files = self.files_of(folder)
        if state_dict is None or state_dict:
            files.write_weights(model, folder, state_dict=state_dict)
        elif checkpoints.saves_itself(model):
            config: Any = getattr(model, "config", None)
            if hasattr(config, "save_pretrained"):
                config.save_pretrained(folder)

        # Processing class.
        processing_class = trainer.processing_class
        if processing_class is None:
            processing_class = getattr(trainer.data_collator, "tokenizer", None)
        if processing_class is not None and hasattr(processing_class, "save_pretrained"):
            with writing_to(folder):
                processing_class.save_pretrained(folder)

        # Arguments without access tokens, because saved models are shared.
        args = object.__new__(type(trainer.args))
        for name, value in vars(trainer.args).items():
            if name.endswith("_token"):
                value = None
            vars(args)[name] = value
        content = torch_bytes(args)
        files.write_bytes(content, os.path.join(folder, TRAINING_ARGS_NAME))

    def _expect_weights(self, gathered: dict[str, Any] | None = None, *, is_sharded: bool) -> None:
        """Record which weights the first save of a model should contain, if this process saves.

        Args:
            gathered: the full weights of a sharded model. If they are missing, nothing is recorded.
            is_sharded: whether the model is sharded.
        """
        has_all_names = gathered is not None or not is_sharded
        if self.trainer.args.should_save and has_all_names:
            self._first_save.expect(unwrap_model(self.trainer.model), gathered)

    # --- the end of writing

    def newest(self) -> str | None:
        """Wait until all checkpoints are written, and return the newest of this training on all
        ranks.
        """
        self.finish_writing()
        newest = None
        if self.complete.newest is not None:
            newest = str(self.complete.newest)
        return broadcast_from_rank_zero(newest, self.trainer.args.world_size)

    def finish_writing(self, *, flushed: bool = False) -> None:
        """Wait on all ranks until the checkpoints are written. A full disk only causes a warning.

        Args:
            flushed: also wait until they are flushed and survive a power failure.
        """
        self._wait_for_writes()
        if flushed:
            self.wait_until_flushed()
        self.trainer.accelerator.wait_for_everyone()

        # Writing the best checkpoint may have failed.
        state = self.trainer.state
        best = os.path.join(self.complete.origin, state.best_model_checkpoint or "")
        if self.complete.best is not None and not os.path.exists(best):
            state.best_model_checkpoint = self.complete.best

        # Only the saving process knows.
        state.best_model_checkpoint = broadcast_from_rank_zero(
            state.best_model_checkpoint, self.trainer.args.world_size
        )

    def finish_training(self, run_dir: str, resumed_from: str | None) -> None:
        """Wait until the checkpoints are written, and flushed if that matters.

        That is the case if older checkpoints are deleted after the flush, if the last one is
        uploaded to a store, or if the machine may stop.

        Args:
            run_dir: the checkpoint folder.
            resumed_from: the checkpoint from which this training was resumed.
        """
        self.finish_writing()

        # A training that was killed before its rotation may have resumed from its last checkpoint
        # without writing another. If that one is not the newest, leave all alone.
        args = self.trainer.args
        saves = args.should_save and args.save_strategy != "no"
        has_written = self.complete.newest is not None
        if saves and not has_written and resumed_from is not None and os.path.isdir(run_dir):
            newest = checkpoints.get_last_checkpoint(run_dir)
            if newest is not None and os.path.realpath(newest) == os.path.realpath(resumed_from):
                self.complete.newest = Path(newest).absolute()
                self.complete.note_best(self.trainer.state.best_model_checkpoint)
        has_limit = bool(args.save_total_limit)
        if has_limit or self.store.is_open or self.signals.is_interrupted:
            self.wait_until_flushed()

    def wait_until_flushed(self) -> None:
        """Wait until the newest written checkpoint is on the disk."""
        if self.complete.newest is not None:
            self._begin_to_flush().result()

    def _begin_to_flush(self) -> Future[None]:
        self._flushed_at = time.monotonic()
        limit = self.trainer.args.save_total_limit
        # A store deletes older checkpoints when it has uploaded the newest.
        if self.store.is_open:
            limit = None
        return self.background.submit(partial(self.complete.flush, limit))

    # --- a training

    def anchored(self, folder: str) -> str:
        """Return a folder relative to the working directory in which the training began.

        The result is absolute if the script has changed its working directory since.
        """
        if os.path.isabs(folder) or not self.trainer.is_in_train:
            return folder
        origin = self.complete.origin
        if not origin or os.getcwd() == origin:
            return folder

        state = self.trainer.state
        if state.best_model_checkpoint is not None:
            state.best_model_checkpoint = os.path.join(origin, state.best_model_checkpoint)
        return os.path.join(origin, folder)

    def begin_training(self) -> None:
        """Reset the state of earlier trainings, and check `output_dir`.

        All processes must call this.

        Raises:
            NotADirectoryError, PermissionError: checkpoints cannot be written to `output_dir`.
        """
        args = self.trainer.args
        self.complete.begin_training()
        self._flushed_at = time.monotonic()
        self._owner = broadcast_from_rank_zero(checkpoints.process_token(), args.world_size)

        # Check the folder, or the closest existing parent, in which it will be created.
        if not args.should_save or args.save_strategy == "no":
            return
        folder = Path(str(args.output_dir)).absolute()
        while not folder.exists():
            folder = folder.parent
        problem = f"output_dir={str(args.output_dir)!r} cannot hold checkpoints: {folder}"
        if not folder.is_dir():
            raise NotADirectoryError(
                f"{problem} is a file. Pass another output_dir, or set save_strategy='no'."
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(
                f"{problem} is not writable for this process. Change its permissions, pass another "
                "output_dir, or set save_strategy='no'."
            )

    @contextlib.contextmanager
    def writing_to(self, run_dir: str) -> Iterator[None]:
        """Reserve the folder for this run within the `with` block, and wait for the last write at
        its end.

        Leftovers of a killed run are removed. An error of the last write is logged, so that it does
        not replace an exception of the block.

        Raises:
            FolderInUseError: another process writes to the folder.
        """
        args = self.trainer.args
        reservation: contextlib.AbstractContextManager[bool] = contextlib.nullcontext(False)
        if args.process_index == 0 and args.save_strategy != "no":
            reservation = checkpoints.reserve_folder(run_dir)

        with reservation as is_reserved:
            if args.should_save and os.path.isdir(run_dir):
                checkpoints.remove_leftovers(run_dir, is_reserved=is_reserved)
            try:
                yield
            finally:
                # Wait for all checkpoints. A failure must not hide an error of the training.
                try:
                    self.background.make_room(0, -1)
                except Exception as error:
                    logger.warning("The last checkpoint could not be written: %s", error)
                if self.complete.newest is not None:
                    self._begin_to_flush()
                self.background.release()

    def keep_only_best(self, run_dir: str) -> None:
        """Remove all checkpoints except the best one, if `save_total_limit` is 1."""
        args = self.trainer.args
        best = self.trainer.state.best_model_checkpoint
        if not args.should_save or args.save_total_limit != 1 or best is None:
            return
        if Path(os.path.realpath(best)).parent != Path(os.path.realpath(run_dir)):
            logger.info("Keeping all checkpoints: the best one (%s) belongs to another run.", best)
            return
        # Flush first, so that a power failure leaves at least one checkpoint.
        checkpoints.sync_tree(Path(best))
        for folder in checkpoints.list_checkpoints(run_dir):
            if os.path.exists(best) and not os.path.samefile(folder, best):
                logger.info("Removing %s: save_total_limit is 1", folder)
                checkpoints.discard(folder)


def _do_nothing() -> None:
    """Replacement of the commit on ranks that do not save."""
