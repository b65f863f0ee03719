"""Saving of models and checkpoints; the main function is `CheckpointSaver.save`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
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
from ...lightning_modules.common.torch_files import torch_bytes
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.wrappers import unwrap_model
from ..distributed.collectives import broadcast_from_rank_zero
from .first_save import FirstSave
from .object_store import ObjectStore
from .signals import SignalListening
from .training_state import CallbackStates, LightningCallbackStates

if TYPE_CHECKING:
    from .. import Trainer, TrainingRun
    from ..strategies.strategy import Strategy

logger = logging.getLogger(__name__)

_BETWEEN_FLUSHES = 1.0
"""Minimum of seconds between two flushes to the disk while the training continues."""


class CheckpointSaver:
    """Write models and checkpoints; a checkpoint is renamed to its final name once it is complete.

    Args:
        trainer: the Trainer.
        callbacks: states of its callbacks.
        lightning: states of its Lightning callbacks.
        signals: require the training state in spite of `save_only_model`, after a signal.
        store: uploads files if `output_dir` is an address; then it also calls `rotate`.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(
        self,
        trainer: Trainer,
        callbacks: CallbackStates,
        lightning: LightningCallbackStates,
        signals: SignalListening,
        store: ObjectStore,
    ) -> None:
        self.trainer = trainer
        self.callbacks = callbacks
        self.lightning = lightning
        self.signals = signals
        self.store = store
        self.background = BackgroundWriter()

        # The checkpoint being written.
        self._files = CheckpointFiles()
        self.staging: str | None = None
        """The staging folder of the checkpoint being written; None between checkpoints."""
        self._newest: Path | None = None
        """The final folder of the last checkpoint, which a thread may still be writing."""

        # Complete checkpoints.
        self._written: Path | None = None
        """The newest one that has its final name."""
        self._best: str | None = None
        """The best one that exists."""
        self._deleting = threading.Lock()
        self._flushed: Path | None = None
        """The newest checkpoint that was flushed to the disk, so that it survives a power failure.
        """
        self._flushed_at = 0.0

        # The training.
        self._owner: str | None = None
        """Token of the process that saves, part of the names of staging folders."""
        self._origin = ""
        """The working directory when the training began."""

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
        """Write `checkpoint-{step}` to a staging folder, and rename it once it is complete.

        Collective: all processes go through the same steps, because each exchanges or writes parts
        of the training state.

        Args:
            run_dir: the folder of checkpoints.
            parts: functions that each write a part of the training state into a folder.
            strategy: writes the parts of each process.
            run: the current training.
            is_overridden: write in the foreground, because the override reads the files right
                after, and keep what it wrote into `checkpoint-{step}` before.

        Raises:
            DiskFullError: not enough space; nothing was written.
        """
        trainer = self.trainer
        args = trainer.args
        saves = args.should_save

        # Absolute, because a thread may write there after the working directory has changed.
        parent = os.path.join(self._origin, run_dir)
        final = Path(parent) / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        owner = self._owner or broadcast_from_rank_zero(
            checkpoints.process_token(), args.world_size
        )
        folder = checkpoints.staging_path(final, owner)

        # A thread writes copies while the training continues, unless the files are read right
        # after. Only some processes may have a callback or an override that reads them, so all
        # decide together.
        later = False
        if run is not None:
            may_write_later = not is_overridden and self._may_write_later(strategy)
            later = run.lightning_trainer.strategy.reduce_boolean_decision(may_write_later)
        has_parts = later and strategy.saves_parts(checkpoint=True)

        # Wait for earlier writes unless this checkpoint is copied: parts of two checkpoints would
        # share process groups, and two checkpoints of one step would share a folder.
        if not later or has_parts or final == self._newest:
            self._wait_for_writes()
        self._newest = final

        try:
            # Room for copies of the files in memory.
            if self.lightning.callbacks:
                self.lightning.checkpoint = self.lightning.collected(run)
            size = self.bytes_to_save(strategy)
            if saves:
                self._wait_for_writes(size, trainer.background_checkpoints or 0)
            copies = None
            if later and saves:
                copies = self.background.copies()

            # A process on another machine may not see the folder: with one folder for all, each
            # sends its states to the process that saves.
            sends_states = not saves and not args.save_on_each_node
            self._files = CheckpointFiles(
                copies, parts_later=has_parts, sends_contents=sends_states
            )

            # After each part, a full disk of one process is raised in all of them: the next part
            # may be collective, and would wait for the failed process.
            one_step = partial(checkpoints.full_disk_on_all_ranks, final, args.world_size)

            # Create the empty folder, on a disk with room for the files.
            with one_step():
                if saves:
                    self._make_space(parent, size)
                    checkpoints.begin(final, owner)
            if args.local_process_index == 0 and not saves:
                self._require_one_disk(strategy, folder, final)

            # The files, written by methods of the Trainer, so that overrides are called.
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

            # List all files in the manifest and rename the folder: now, or in the thread. Only the
            # saving process does so; the thread of another one writes its parts.
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

        # Flush to the disk, in the thread. Older checkpoints are deleted after that, so a save
        # outside of a training waits for it.
        if saves and not trainer.is_in_train:
            self.wait_until_flushed()
        elif saves and time.monotonic() - self._flushed_at > _BETWEEN_FLUSHES:
            self._begin_to_flush()

    def _write_states(self, folder: str, name: Path) -> None:
        """Write the states of callbacks and of the Trainer, which names the best checkpoint.

        Args:
            folder: the staging folder.
            name: the path of the checkpoint, as the Trainer's state names it.
        """
        # The best checkpoint may be the one being written.
        state = self.trainer.state
        if state.best_global_step:
            best = name.with_name(f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
            if (best == name or best.exists()) and state.best_model_checkpoint != str(best):
                # The former one stays if this one cannot be written.
                self._note_best(state.best_model_checkpoint)
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

        # A rotation between the two would take the new folder for one of an earlier run.
        with self._deleting:
            checkpoints.commit(folder, final, flush=False)
            self._written = final
            self._note_best(best)
        if self.store.is_open:
            self.store.upload_in_background()

    def _note_best(self, best: str | None) -> None:
        """Remember the best checkpoint, unless it could not be written."""
        if best is not None and os.path.exists(os.path.join(self._origin, best)):
            self._best = best

    def rotate(self, limit: int | None) -> None:
        """Remove the oldest checkpoints beyond a number of them.

        Nothing is removed while the newest one of this training could be damaged by a power
        failure.
        """
        with self._deleting:
            if self._written is None or self._written != self._flushed:
                return
            best = None
            if self._best is not None:
                best = os.path.join(self._origin, self._best)
            checkpoints.rotate_checkpoints(
                self._written.parent,
                limit,
                best_model_checkpoint=best,
                newest=self._written,
                state_name=TRAINER_STATE_NAME,
            )

    def accept_changes(self) -> None:
        """Update the manifest of the newest checkpoint after overrides and callbacks changed files.

        Changes during `on_save` are intended. Later ones cannot be told from damage.
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
        """Whether checkpoints hold the training state; always those of interrupted trainings."""
        return not self.trainer.args.save_only_model or self.signals.is_interrupted

    def files_of(self, folder: str) -> CheckpointFiles:
        """Return the writer of the files of a folder.

        Files of the current checkpoint are written with it, perhaps in the thread; others are
        written at once: a signal handler or a thread may save a model in the meantime.
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

        # An upload, or a callback, reads the files at once.
        if trainer.args.push_to_hub:
            return False
        callbacks = trainer.callback_handler.callbacks
        return not any(reads_checkpoints(callback) for callback in callbacks)

    def _wait_for_writes(self, size: int = 0, limit: int = -1) -> None:
        """Wait until the thread has written checkpoints; a full disk only warns.

        Args:
            size: the size of the next checkpoint, in bytes.
            limit: bytes of copies that may wait in memory, including the next checkpoint; by
                default wait until all are written.
        """
        try:
            self.background.make_room(size, limit)
        except Exception as error:
            checkpoints.warn_if_disk_full(error, str(self.trainer.args.output_dir))

    def _make_space(self, run_dir: str, size: int) -> None:
        """Remove older checkpoints if the disk is nearly full.

        Raises:
            DiskFullError: there is too little space even without them.
        """
        needed = self.background.bytes_waiting + size + checkpoints.MARGIN
        if checkpoints.free_space(run_dir) >= 2 * needed:
            return

        # An older checkpoint stays until a newer one is flushed.
        self._wait_for_writes()
        self.wait_until_flushed()
        best = self.trainer.state.best_model_checkpoint
        # Without a limit, every checkpoint has to stay; with one, the newest and the best.
        older: list[str] = []
        if self.trainer.args.save_total_limit:
            older = checkpoints.sort_checkpoints(run_dir, best_model_checkpoint=best)[:-1]
        if best is not None and os.path.exists(best):
            older = [path for path in older if not os.path.samefile(path, best)]
        with self._deleting:
            for path in checkpoints.require_space(run_dir, size, spare=older):
                logger.info(
                    "Removing %s before the next checkpoint is written: the disk is nearly full",
                    path,
                )
                checkpoints.discard(path)

    def _require_one_disk(self, strategy: Strategy, folder: Path, final: Path) -> None:
        """Refuse parts of processes on several disks, which no process could read together.

        Called in the first process of each other machine.
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
            internal: the call comes from this package, so that `folder` may be a checkpoint.
            strategy: gathers the weights of a model that is spread over processes, or writes their
                parts.
            run: the current training.
        """
        trainer = self.trainer
        saves = trainer.args.should_save
        in_checkpoint = internal and folder == self.staging

        # Parts. The collective write comes first: a rank that failed on the other files would
        # leave the others waiting.
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

        # Whole weights: gathered, replaced by a callback, or those of the model.
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
            state_dict: weights to write instead of the model's; empty if they are written
                elsewhere.
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
        """Record which weights the first save of a model should hold, where this process saves.

        Args:
            gathered: the whole weights of a sharded model; without them nothing is recorded.
            is_sharded: the model is sharded.
        """
        has_all_names = gathered is not None or not is_sharded
        if self.trainer.args.should_save and has_all_names:
            self._first_save.expect(unwrap_model(self.trainer.model), gathered)

    # --- the end of writing

    def newest(self) -> str | None:
        """Return the newest checkpoint of this training, on all processes, once it is written."""
        self.finish_writing()
        newest = None
        if self._written is not None:
            newest = str(self._written)
        return broadcast_from_rank_zero(newest, self.trainer.args.world_size)

    def finish_writing(self, *, flushed: bool = False) -> None:
        """Wait on all processes until the checkpoints are written; a full disk only warns.

        Args:
            flushed: also wait until they are flushed, so that they survive a power failure.
        """
        self._wait_for_writes()
        if flushed:
            self.wait_until_flushed()
        self.trainer.accelerator.wait_for_everyone()

        # The best checkpoint may have failed to be written.
        state = self.trainer.state
        best = os.path.join(self._origin, state.best_model_checkpoint or "")
        if self._best is not None and not os.path.exists(best):
            state.best_model_checkpoint = self._best

        # Only the process that saves knows.
        state.best_model_checkpoint = broadcast_from_rank_zero(
            state.best_model_checkpoint, self.trainer.args.world_size
        )

    def finish_training(self) -> None:
        """Wait until the checkpoints are written, and flushed if that matters.

        It does if older checkpoints are deleted after the flush, if the last one is uploaded to a
        store, or if the machine may stop.
        """
        self.finish_writing()
        has_limit = bool(self.trainer.args.save_total_limit)
        if has_limit or self.store.is_open or self.signals.is_interrupted:
            self.wait_until_flushed()

    def wait_until_flushed(self) -> None:
        """Wait until the newest written checkpoint is on the disk."""
        if self._written is not None:
            self._begin_to_flush().result()

    def _begin_to_flush(self) -> Future[None]:
        self._flushed_at = time.monotonic()
        return self.background.submit(self._flush)

    def _flush(self) -> None:
        """Flush the newest complete checkpoint to the disk, then rotate the ones before it."""
        written = self._written
        if written is None or written == self._flushed:
            return
        if checkpoints.try_to_flush(written):
            self._flushed = written
            if not self.store.is_open:
                self.rotate(self.trainer.args.save_total_limit)

    # --- a training

    def anchored(self, folder: str) -> str:
        """Return a folder relative to the working directory in which the training began.

        The result is absolute if the script has changed its working directory since.
        """
        if os.path.isabs(folder) or not self.trainer.is_in_train:
            return folder
        if not self._origin or os.getcwd() == self._origin:
            return folder

        state = self.trainer.state
        if state.best_model_checkpoint is not None:
            state.best_model_checkpoint = os.path.join(self._origin, state.best_model_checkpoint)
        return os.path.join(self._origin, folder)

    def begin_training(self) -> None:
        """Forget the checkpoints of earlier trainings, and check `output_dir`.

        All processes must call this.

        Raises:
            NotADirectoryError, PermissionError: it cannot hold checkpoints.
        """
        args = self.trainer.args
        self._written = None
        self._best = None
        self._flushed = None
        self._flushed_at = time.monotonic()
        self._owner = broadcast_from_rank_zero(checkpoints.process_token(), args.world_size)

        # The working directory may have been deleted.
        with contextlib.suppress(FileNotFoundError):
            self._origin = os.getcwd()

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
        """Reserve the folder for this run in the block, and wait for the last write at its end.

        Leftovers of a killed run are removed. An error of the last write is logged, so that it does
        not replace an exception of the block.

        Raises:
            FolderInUseError: another process trains with the folder.
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
                if self._written is not None:
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
        # Flushed first, so that a power failure cannot leave no checkpoint at all.
        checkpoints.sync_tree(Path(best))
        for folder in checkpoints.list_checkpoints(run_dir):
            if os.path.exists(best) and not os.path.samefile(folder, best):
                logger.info("Removing %s: save_total_limit is 1", folder)
                checkpoints.discard(folder)


def _do_nothing() -> None:
    """Stand in for the commit, which another process does."""
