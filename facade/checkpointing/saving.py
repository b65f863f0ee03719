"""Saving of models and checkpoints: staging, writing, commit, rotation."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks import reads_checkpoints
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import BackgroundWriter, CheckpointFiles
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.file_names import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from ...lightning_modules.common.local_paths import address_of
from ...lightning_modules.common.torch_files import torch_bytes
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models import inspection
from ..distributed.collectives import from_first_process
from .signals import SignalListening
from .training_state import CallbackStates, LightningCallbackStates

if TYPE_CHECKING:
    from torch import nn

    from .. import Trainer, TrainerModule

logger = logging.getLogger(__name__)


class CheckpointSaver:
    """Write models and checkpoints; a checkpoint is renamed to its final name once it is complete.

    Args:
        host: the Trainer.
        callbacks: states of its callbacks.
        lightning: states of its Lightning callbacks.
        signals: may require a training state although `save_only_model` is set.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(
        self,
        host: Trainer,
        callbacks: CallbackStates,
        lightning: LightningCallbackStates,
        signals: SignalListening,
    ) -> None:
        self.host = host
        self.callbacks = callbacks
        self.lightning = lightning
        self.signals = signals
        self.background = BackgroundWriter(self._flush)
        self._files = CheckpointFiles()  # of the checkpoint being written
        self._deleting = threading.Lock()
        self._last: tuple[str, str | None, Path] = ("", None, Path())  # folder, best and newest of the last commit
        self._flushed: Path | str | None = None  # newest checkpoint that outlives a power failure
        self._has_spared = False  # whether that one is beyond `save_total_limit`, and goes when a newer one is flushed
        self._staging: str | None = None  # folder of the checkpoint being written
        self._begun: Path | None = None  # name of the newest checkpoint, which may still be written in the background
        self._to_push: str | None = None  # checkpoint to upload once it is written
        self._bests: list[str] = []  # best checkpoints of this run so far, oldest first
        self._origin = ""  # working folder at the beginning of the training
        self._compared: weakref.ref[nn.Module] | None = None  # the model whose first save was compared with it
        self._expected: checkpoints.ExpectedWeights | None = None  # until that save is written
        self._sizes: dict[int, int] = {}  # of a checkpoint of this run, by the number of states of the optimizer

    # --- a model

    def save_model(self, folder: str, *, internal: bool, run: TrainerModule | None) -> None:
        """Write a model by `Trainer._save`; collective over all processes.

        Args:
            folder: the target.
            internal: the call comes from this package, so that `folder` may be a checkpoint.
            run: the current training.
        """
        host, strategy, saves = self.host, self.host._strategy, self.host.args.should_save
        if strategy.saves_parts(checkpoint=internal and self.is_checkpoint(folder)):
            follow = internal and self.saves_training_state
            # The collective write first: a rank that failed on the other files would leave the others waiting.
            strategy.save_weights(
                folder, files=self.files_of(folder), step=host.state.global_step, states_follow=follow
            )
            if saves:
                host._save(folder, state_dict={})
            return
        weights = strategy.whole_weights(host.model, keep=saves)
        self._expect_weights(weights)
        if weights is None:
            weights = self.lightning.weights(run)
        if saves:
            host._save(folder) if weights is None else host._save(folder, state_dict=weights)
        if not (internal and self.is_checkpoint(folder)):
            self._compare_weights(folder)

    def _expect_weights(self, gathered: dict[str, Any] | None = None) -> None:
        """Note the weights that the first save of a model should hold.

        Args:
            gathered: the weights of a model that is spread over processes; without them there is nothing to note.
        """
        is_spread = self.host._strategy.spread is not None
        if not self.host.args.should_save or (is_spread and gathered is None):
            return
        model = inspection.unwrap_model(self.host.model)
        if self._compared is None or self._compared() is not model:
            self._compared = weakref.ref(model)
            self._expected = checkpoints.ExpectedWeights(model, gathered)

    def _compare_weights(self, folder: str | Path) -> None:
        """Warn of weights that the files of a first save lack."""
        expected, self._expected = self._expected, None
        if expected is not None:
            expected.report(folder)

    def write_model(self, folder: str, state_dict: dict[str, Any] | None) -> None:
        """Write weights, processing class and arguments, see `Trainer._save`.

        Args:
            folder: the target.
            state_dict: weights in place of those of the model; empty if they are written elsewhere.
        """
        os.makedirs(folder, exist_ok=True)
        logger.info("Saving the model to %s", checkpoints.final_path(folder))
        host, model = self.host, inspection.unwrap_model(self.host.model)
        files = self.files_of(folder)
        if state_dict is None or state_dict:
            files.weights(model, folder, state_dict=state_dict)
        elif checkpoints.saves_itself(model) and hasattr(getattr(model, "config", None), "save_pretrained"):
            model.config.save_pretrained(folder)
        processing = host.processing_class
        if processing is None:
            processing = getattr(host.data_collator, "tokenizer", None)
        if processing is not None and hasattr(processing, "save_pretrained"):
            processing.save_pretrained(folder)
        files.raw(torch_bytes(_without_tokens(host.args)), os.path.join(folder, TRAINING_ARGS_NAME))

    # --- a checkpoint

    @property
    def saves_training_state(self) -> bool:
        """Return whether checkpoints hold the training state; always for interrupted trainings."""
        return not self.host.args.save_only_model or self.signals.is_interrupted

    def is_checkpoint(self, folder: str) -> bool:
        """Return whether this is the folder of the checkpoint being written."""
        return folder == self._staging

    def files_of(self, folder: str) -> CheckpointFiles:
        """Return what writes the files of a folder: with the others of the checkpoint being written, or at once.

        A signal handler or a thread may save a model while a checkpoint is being written.
        """
        return self._files if self.is_checkpoint(folder) else CheckpointFiles()

    def save(
        self, run_dir: str, parts: Iterable[Callable[[str], None]], *, run: TrainerModule | None, at_once: bool
    ) -> None:
        """Write `checkpoint-{step}` to a staging folder and rename it, so that no partial checkpoint is visible.

        Args:
            run_dir: the folder of checkpoints.
            parts: functions that each write a part of the training state into a folder.
            run: the current training.
            at_once: write in the foreground, as the files are read right after.

        Raises:
            DiskFullError: not enough space; nothing was written.
        """
        host, saves = self.host, self.host.args.should_save
        place = os.path.join(self._origin, run_dir)  # a thread may write there after a change of the working folder
        final = Path(place) / f"{PREFIX_CHECKPOINT_DIR}-{host.state.global_step}"
        later = False
        if run is not None:
            # Only some processes may have a callback or an override that reads the files.
            may_write_later = not at_once and self._may_write_later()
            later = run.lightning_trainer.strategy.reduce_boolean_decision(may_write_later)

        with self.lightning.collected(run), self._staged(final, place, later) as (folder, together):
            with together.part():
                self._expect_weights()
                host.save_model(str(folder), _internal_call=True)
            self._note_best(run_dir, final)
            if self.saves_training_state:
                for save in parts:
                    with together.part():
                        save(str(folder))
                with together.part():
                    if saves:
                        self.lightning.save(str(folder), self._files)
            if saves:
                host.state.stateful_callbacks = self.callbacks.exported()
                with together.part():
                    self._files.raw(host.state.to_json(), folder / TRAINER_STATE_NAME)
                    self.callbacks.save(str(folder), self._files)
        if host.args.push_to_hub:
            self._to_push = os.path.join(run_dir, final.name)
            self.push_written()

    def newest(self) -> str | None:
        """Return the newest checkpoint of this training, on all processes, once it is written."""
        self.finish_writing()
        return from_first_process(str(self._last[2]) if self._last[0] else None, self.host.args.world_size)

    def accept_changes(self) -> None:
        """Take changes that overrides and callbacks have made to the newest checkpoint into its manifest.

        In `on_save` they are on purpose; later they could not be told from damage.
        """
        newest = self._begun
        if newest is None or not self.host.args.should_save or self.background.bytes_waiting:
            return
        if checkpoints.refresh_manifest(newest):
            self.host._object_store.submit()

    def push_written(self) -> None:
        """Start the upload of the newest checkpoint once it is written."""
        checkpoint = self._to_push
        if checkpoint is None or self.background.bytes_waiting:
            return
        self._to_push = None
        if os.path.isdir(checkpoint):
            self.host._push_from_checkpoint(checkpoint)

    def finish_writing(self, *, flushed: bool = False) -> None:
        """Wait on all processes until the checkpoints are written; a full disk only warns.

        Args:
            flushed: wait until they outlive a power failure, too.
        """
        state = self.host.state
        with self._full_disk_warns():
            self.background.wait()
        if flushed:
            self.background.wait_until_flushed()
        self.host.accelerator.wait_for_everyone()
        if state.best_model_checkpoint in self._bests:  # else it is of another run
            written = [best for best in self._bests if os.path.exists(os.path.join(self._origin, best))]
            state.best_model_checkpoint = written[-1] if written else state.best_model_checkpoint
        self.push_written()

    def finish_training(self) -> None:
        """As `finish_writing`; wait for the disk if a checkpoint is deleted or sent then, or this machine may stop."""
        self.finish_writing()
        folder = self._last[0]
        is_sent = bool(folder) and address_of(folder) is not None
        if self._has_spared or is_sent or self.signals.is_interrupted:
            self.background.wait_until_flushed()

    def _make_room(self, run_dir: str, size: int) -> bool:
        """Wait until there is room in memory for a checkpoint; for all earlier ones where the disk may become full.

        Returns:
            whether it may.
        """
        is_tight = checkpoints.free_space(run_dir) < 2 * (self.background.bytes_waiting + size + checkpoints.MARGIN)
        if is_tight:
            self.background.wait_until_flushed()
        with self._full_disk_warns():
            self.background.make_room(size, self.host.background_checkpoints or 0)
        return is_tight

    @contextlib.contextmanager
    def _full_disk_warns(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            checkpoints.warn_if_disk_full(error, str(self.host.args.output_dir))

    @contextlib.contextmanager
    def _staged(self, final: Path, run_dir: str, later: bool) -> Iterator[tuple[Path, checkpoints.DiskErrorConsensus]]:
        """Yield the staging folder, the same on all processes; the saving process begins and commits it."""
        args = self.host.args
        strategy = self.host._strategy
        owner = from_first_process(checkpoints.process_token(), args.world_size)
        folder = checkpoints.staging_path(final, owner)
        together = checkpoints.DiskErrorConsensus(final, args.world_size)
        undo = partial(checkpoints.abort, folder)
        size = self.bytes_to_save()
        has_parts = later and strategy.saves_parts(checkpoint=True)

        # Parts of two checkpoints share process groups, and two checkpoints of one step a folder.
        if has_parts or final == self._begun:
            with self._full_disk_warns():
                self.background.wait()
        if has_parts:
            self.background.parts.begin()
        self._begun = final

        # Memory for copies, or nothing left to write before the files are written at once.
        copies = None
        is_tight = args.should_save and self._make_room(run_dir, size)
        if not later:
            self.finish_writing()
        elif args.should_save:
            copies = self.background.copies()

        # Processes of other machines may not see the folder: the first process writes their states.
        has_other_machines = args.world_size > args.local_world_size
        sends_states = has_other_machines and not args.save_on_each_node

        try:
            with together.part():
                if is_tight:
                    self._make_space(run_dir, size)
                if args.should_save:
                    checkpoints.begin(final, owner)
            together.agree()
            if has_other_machines:
                self._require_one_disk(folder, final)

            parts = self.background.parts if has_parts else None
            files = CheckpointFiles(copies, parts, sends=sends_states and not args.should_save)
            self._files = files
            self._staging = str(folder)
            yield folder, together
            together.agree()

            sent = gather_objects(files.contents) if sends_states else []
            with together.part():
                if args.should_save:
                    for contents in sent:
                        for name, content in contents.items():
                            files.raw(content, folder / name)
                    best = self.host.state.best_model_checkpoint
                    commit = partial(self._commit, folder, final, run_dir, best)
                    if copies is None:
                        commit()
                        self.background.flush()
                    else:
                        self.background.start(files, size, commit=commit, undo=undo)
                elif has_parts:
                    self.background.start(files, size, commit=_nothing, undo=_nothing)
            together.agree()
        except BaseException:
            if args.should_save:
                undo()
            raise
        finally:
            self._files = CheckpointFiles()
            self._staging = None

    def _require_one_disk(self, folder: Path, final: Path) -> None:
        """Refuse parts of processes on several disks, which no process could read together."""
        args = self.host.args
        strategy = self.host._strategy
        has_parts = self.saves_training_state and (strategy.saves_parts(checkpoint=True) or strategy.writes_itself)
        if has_parts and args.local_process_index == 0 and not args.should_save:
            checkpoints.require_visible(folder, final)

    def _make_space(self, run_dir: str, size: int) -> None:
        """Remove older checkpoints if the space is needed."""
        best, limit = self.host.state.best_model_checkpoint, self.host.args.save_total_limit
        older = checkpoints.sort_checkpoints(run_dir, best_model_checkpoint=best)[:-1] if limit else []
        spare = [path for path in older if best is None or not os.path.exists(best) or not os.path.samefile(path, best)]
        with self._deleting:
            for path in checkpoints.require_space(run_dir, size, spare=spare):
                logger.info("Removing %s before the next checkpoint is written: the disk is nearly full", path)
                checkpoints.discard(path)

    def _commit(self, folder: Path, final: Path, run_dir: str, best: str | None) -> None:
        self._compare_weights(folder)
        checkpoints.write_manifest(folder)
        with self._deleting:  # a rotation now would take the new name for one of an earlier run
            checkpoints.commit(folder, final, flush=False)
            self._last = run_dir, best, final
        self._rotate()
        self.host._object_store.submit()

    def _flush(self) -> None:
        """Flush the newest checkpoint that has its name; then the one before may go."""
        newest = self._last[2]
        if self._last[0] and newest != self._flushed and checkpoints.try_to_flush(newest):
            self._flushed = newest
            self._rotate()

    def _rotate(self) -> None:
        if self._last[0] and address_of(self._last[0]) is None:  # else the thread of uploads does it
            self.rotate(self.host.args.save_total_limit, self._last[0])

    def rotate(self, limit: int | None, folder: str) -> None:
        """Remove checkpoints beyond a number of them, seen from the last one, if it got its name in this folder."""
        with self._deleting:
            run_dir, best, newest = self._last
            unwritten = best in self._bests and not os.path.exists(os.path.join(self._origin, str(best)))
            if run_dir != folder or unwritten:
                return  # it could not be written, and the one before is still needed
            self._has_spared = checkpoints.rotate_checkpoints(
                run_dir,
                limit,
                best_model_checkpoint=best and os.path.join(self._origin, best),
                newest=newest,
                spare=self._flushed,
            )

    def bytes_to_save(self) -> int:
        """Return the estimated size of a checkpoint in bytes; computed again if the optimizer has further states."""
        states = list(getattr(self.host.optimizer, "state", {}).values()) if self.saves_training_state else []
        if len(states) not in self._sizes:
            further = [self.callbacks.tensors(), self.lightning.checkpoint]
            processes = self.host.args.world_size
            self._sizes[len(states)] = self.host._strategy.bytes_to_save(states, further, processes=processes)
        return self._sizes[len(states)]

    def _may_write_later(self) -> bool:
        """Return whether to write copies in a thread: nothing reads the files, and training goes on meanwhile."""
        host = self.host
        if host.background_checkpoints is None or host.control.should_training_stop or host._strategy.writes_itself:
            return False
        if host.args.push_to_hub:  # each checkpoint is uploaded
            return False
        return not any(reads_checkpoints(callback) for callback in host.callback_handler.callbacks)

    def _note_best(self, run_dir: str, current: Path) -> None:
        state = self.host.state
        if state.best_global_step:
            best = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
            if best.name == current.name or best.exists():
                if state.best_model_checkpoint != str(best):
                    self._bests += [str(one) for one in (state.best_model_checkpoint, best) if one is not None]
                state.best_model_checkpoint = str(best)

    # --- a training

    def anchored(self, folder: str) -> str:
        """Return a folder where it was when the training began; unchanged while the working folder is the same."""
        state = self.host.state
        if os.path.isabs(folder) or not self._origin or os.getcwd() == self._origin or not self.host.is_in_train:
            return folder
        if state.best_model_checkpoint is not None:
            state.best_model_checkpoint = os.path.join(self._origin, state.best_model_checkpoint)
        return os.path.join(self._origin, folder)

    def begin_training(self) -> None:
        """Reset the pending upload, and raise if `output_dir` cannot hold checkpoints."""
        self._to_push, self._bests, self._has_spared, self._sizes = None, [], False, {}
        self._last = ("", None, Path())
        with contextlib.suppress(FileNotFoundError):  # it may have been deleted
            self._origin = os.getcwd()
        args = self.host.args
        if not args.should_save or args.save_strategy == "no":
            return
        place = Path(str(args.output_dir)).absolute()
        while not place.exists():
            place = place.parent
        what = f"output_dir={str(args.output_dir)!r} cannot hold checkpoints: {place}"
        if not place.is_dir():
            raise NotADirectoryError(f"{what} is a file. Pass another output_dir, or set save_strategy='no'.")
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(
                f"{what} is not writable for this process. Make it so, pass another output_dir, or set "
                "save_strategy='no'."
            )

    @contextlib.contextmanager
    def writing_to(self, run_dir: str) -> Iterator[None]:
        """Reserve the folder for this run and remove what a killed one left; wait for the background write at the end.

        An error of that write is logged, so that it does not replace an exception of the block.

        Raises:
            FolderInUseError: another process trains with the folder.
        """
        args = self.host.args
        saves = args.process_index == 0 and args.save_strategy != "no"
        with checkpoints.exclusive(run_dir) if saves else contextlib.nullcontext(False) as is_reserved:
            if args.should_save and os.path.isdir(run_dir):
                checkpoints.remove_leftovers(run_dir, is_reserved=is_reserved)
                self._flushed = checkpoints.get_last_checkpoint(run_dir)
            try:
                yield
            finally:
                try:
                    self.background.wait()
                except Exception as error:
                    logger.warning("The last checkpoint could not be written: %s", error)
                self.background.release()

    def keep_only_best(self, run_dir: str) -> None:
        """Remove all checkpoints but the best one at the end of a training if `save_total_limit` is 1."""
        best = self.host.state.best_model_checkpoint
        if not self.host.args.should_save or best is None or self.host.args.save_total_limit != 1:
            return
        if Path(os.path.realpath(best)).parent != Path(os.path.realpath(run_dir)):
            logger.info("All checkpoints stay, as the best one, %s, is of another run.", best)
            return
        checkpoints.sync_tree(Path(best))
        for folder in checkpoints.list_checkpoints(run_dir):
            if os.path.exists(best) and not os.path.samefile(folder, best):
                logger.info("Removing %s: save_total_limit is 1", folder)
                checkpoints.discard(folder)


def _nothing() -> None:
    """Have nothing to do, as another process commits a checkpoint."""


def _without_tokens(args: Any) -> Any:
    """Return a copy of the arguments without tokens, as saved files are shared."""
    copied = copy.copy(args)
    for name in vars(copied):
        if name.endswith("_token"):
            setattr(copied, name, None)
    return copied
