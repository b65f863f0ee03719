"""Models and checkpoints, to the disk and back."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from ...callbacks import TrainerControl, TrainerState, collect_states, reads_checkpoints
from ...lightning_modules import checkpoints, models, sharding
from ...lightning_modules.checkpoints import (
    OPTIMIZER_NAME,
    PREFIX_CHECKPOINT_DIR,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
    WriteLater,
    WriteNow,
)
from ...lightning_modules.collect import map_nested
from ...lightning_modules.seeding import load_rng_file, restore_rng_state, save_rng_file
from .callback_states import CallbackStates
from .checks import CheckpointNotFoundError
from .lightning_side import LightningSide

logger = logging.getLogger(__name__)

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Saving(CallbackStates, LightningSide):
    """From memory to folders, and back."""

    background_checkpoints: int | None = 16 * 2**20
    """From this many bytes on, periodic checkpoints are copied in memory and written while the training goes on.

    Smaller ones are written at once, as that takes no time to speak of; all are with None. An override of
    `save_model`, or a callback that looks at the files, always finds them written.
    """

    _best_before: str | None = None  # the best checkpoint before the last one was begun

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `transformers.Trainer.save_model`: the model, what processes its data, and the arguments.

        Args:
            output_dir: the folder, by default that of the arguments. Written by the main process only.
        """
        folder = str(self.args.output_dir) if output_dir is None else output_dir
        sharded = self._sharded
        if sharded is not None:
            weights = sharding.whole_state_dict(sharded, keep=self.args.should_save)
            if self.args.should_save:
                self._save(folder, state_dict=weights)
        else:
            wanted = self._weights_of_lightning()
            if self.args.should_save:
                self._save(folder) if wanted is None else self._save(folder, state_dict=wanted)
        if not _internal_call:
            self._model_saved()

    def _model_saved(self) -> None:
        """What follows when a script has saved the model; nothing where nobody uploads."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = str(self.args.output_dir) if output_dir is None else output_dir
        os.makedirs(folder, exist_ok=True)
        logger.info("Saving the model to %s", folder)
        self._writer.weights(models.unwrap_model(self.model), folder, state_dict=state_dict)
        processing = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if processing is not None and hasattr(processing, "save_pretrained"):
            processing.save_pretrained(folder)
        checkpoints.save_torch(_without_tokens(self.args), os.path.join(folder, TRAINING_ARGS_NAME))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write `checkpoint-{step}`: beside its name, so that nobody ever sees half of one, then rename it.

        Raises:
            DiskFullError: there is not enough space for it; nothing has been written.
        """
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        self._finish_writing()
        run_dir = self._get_output_dir(trial)
        final = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with self._telling_lightning(), self._staged(final, run_dir) as (folder, together):
            with together.part():
                self.save_model(str(folder), _internal_call=True)
            self._note_best_checkpoint(run_dir, final)
            if self._saves_training_state():
                for save in self._parts_of_training_state():
                    with together.part():
                        save(str(folder))
            if self.args.should_save:
                self.state.stateful_callbacks = collect_states(self._stateful_callbacks())
                with together.part():
                    self.state.save_to_json(folder / TRAINER_STATE_NAME)
                    self._save_callback_states(str(folder))
        self._checkpoint_saved(final)

    def _checkpoint_saved(self, checkpoint: Path) -> None:
        """What follows when a checkpoint is written, or on its way; nothing where nobody uploads."""

    def _parts_of_training_state(self) -> list[Callable[[str], None]]:
        return [
            self._save_optimizer_and_scheduler,
            self._save_scaler,
            self._save_rng_state,
            self._save_data_state,
            self._save_lightning_callbacks,
        ]

    @contextlib.contextmanager
    def _staged(self, final: Path, run_dir: str) -> Iterator[tuple[Path, checkpoints.Together]]:
        """The folder in the making, shared by all processes; the one that saves begins and commits it."""
        owner = self._from_main_process(checkpoints.owner_token())
        folder, together = checkpoints.staging_path(final, owner), checkpoints.Together(final, self.args.world_size)
        undo = partial(checkpoints.abort, folder)
        try:
            with together.part():
                self._begin(final, run_dir, owner)
            together.agree()
            self._writer = WriteLater(self._background) if self._may_write_later() else WriteNow()
            yield folder, together
            together.agree()
            with together.part():
                if self.args.should_save:
                    best = self.state.best_model_checkpoint
                    self._writer.finish(partial(self._commit, folder, final, run_dir, best), undo)
            together.agree()
        except BaseException:
            if self.args.should_save:
                undo()
            raise
        finally:
            self._writer = WriteNow()

    def _begin(self, final: Path, run_dir: str, owner: str) -> None:
        """Make the folder, where there is room for it, if need be in the place of an older checkpoint."""
        if not self.args.should_save:
            return
        best = self.state.best_model_checkpoint
        limit = self.args.save_total_limit
        older = checkpoints.sort_checkpoints(run_dir, best_model_checkpoint=best)[:-1] if limit else []
        spare = [path for path in older if best is None or not os.path.exists(best) or not os.path.samefile(path, best)]
        for path in checkpoints.require_space(run_dir, self._bytes_to_save(), spare=spare):
            logger.info("Removing %s before the next checkpoint is written: the disk is nearly full", path)
            checkpoints.discard(path)
        try:
            checkpoints.begin(final, owner)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            raise type(error)(
                error.errno,
                f"{final.name} cannot be written ({error.strerror}); the older checkpoints are untouched. Make the "
                "folder writable, and go on with resume_from_checkpoint=True",
                run_dir,
            ) from error

    def _require_place(self) -> None:
        """Say at once that checkpoints could not be written, and not when the first one is due."""
        if not self.args.should_save or self.args.save_strategy == "no":
            return
        place = Path(str(self.args.output_dir)).absolute()
        while not place.exists():
            place = place.parent
        what = f"output_dir={str(self.args.output_dir)!r} cannot hold checkpoints: {place}"
        if not place.is_dir():
            raise NotADirectoryError(f"{what} is a file. Pass another output_dir, or set save_strategy='no'.")
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(
                f"{what} is not writable for this process. Make it so, pass another output_dir, or set "
                "save_strategy='no'."
            )

    def _saves_training_state(self) -> bool:
        """Whether a checkpoint is to hold more than the model."""
        return not self.args.save_only_model or self._time_is_up

    def _bytes_to_save(self) -> int:
        optimizer = [] if not self._saves_training_state() else list(getattr(self.optimizer, "state", {}).values())
        if self._sharded is not None:  # parts of about the same size; only all processes together could say it exactly
            parts = map_nested(sharding.own_part, [*self.model.parameters(), *self.model.buffers(), *optimizer])
            return checkpoints.bytes_of(parts) * self.args.world_size
        return checkpoints.bytes_of([self.model.state_dict(), optimizer, self._tensor_states(), self._told_lightning])

    def _commit(self, folder: Path, final: Path, run_dir: str, best: str | None) -> None:
        checkpoints.write_manifest(folder)
        checkpoints.commit(folder, final)
        limit = self.args.save_total_limit
        checkpoints.rotate_checkpoints(run_dir, limit, best_model_checkpoint=best, newest=final)

    def _may_write_later(self) -> bool:
        """Whether nobody can tell that the files come a little later: no override, and no callback that reads them."""
        least = self.background_checkpoints
        if least is None or self._run is None or self._sharded is not None or self._bytes_to_save() < least:
            return False
        own = all(_is_own(self, name) for name in ("save_model", "_save", "_save_checkpoint"))
        return own and not any(reads_checkpoints(callback) for callback in self.callback_handler.callbacks)

    def _save_or_warn(self, model: nn.Module, trial: Any) -> None:
        """Write a periodic checkpoint; a full disk ends in a warning, and the training goes on."""
        try:
            self._save_checkpoint(model, trial)
        except OSError as error:
            checkpoints.warn_if_disk_full(error, self._get_output_dir(trial))
            self.control.should_save = False
        else:
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _end_writing(self) -> None:
        """Let nothing be on its way when `train` is left, be it by an exception, which goes first."""
        try:
            self._background.wait()
        except Exception as error:
            logger.warning("The last checkpoint could not be written: %s", error)
        self._background.snapshot.release()

    def _finish_writing(self) -> None:
        """Wait for the checkpoint that is on its way, on all processes; only a full disk is forgiven."""
        try:
            self._background.wait()
        except Exception as error:
            checkpoints.warn_if_disk_full(error, str(self.args.output_dir))
        self.accelerator.wait_for_everyone()
        self._keep_the_best_there_is()
        self._writing_finished()

    def _writing_finished(self) -> None:
        """What follows when no checkpoint is on its way any more; nothing where nobody uploads."""

    def _from_main_process(self, value: str) -> str:
        if self.args.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def _note_best_checkpoint(self, run_dir: str, current: Path) -> None:
        self._best_before = self.state.best_model_checkpoint
        if not self.state.best_global_step:
            return
        best = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if best == current or best.exists():
            self.state.best_model_checkpoint = str(best)

    def _keep_the_best_there_is(self) -> None:
        """Go back to the best checkpoint before, if the last one was to be the best and could not be written."""
        best, before = self.state.best_model_checkpoint, self._best_before
        if best is not None and before is not None and not os.path.exists(best) and os.path.exists(before):
            self.state.best_model_checkpoint = before

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        sharded, keep = self._sharded, self.args.should_save
        if sharded is not None:
            state = sharding.whole_optimizer_state(sharded, self.optimizer, keep=keep)
        else:
            state = self.optimizer.state_dict() if keep else {}
        if not keep:
            return
        self._writer.tensors(state, os.path.join(output_dir, OPTIMIZER_NAME))
        if self.lr_scheduler is not None:
            checkpoints.save_torch(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        optimizer, scheduler = (os.path.join(checkpoint, name) for name in (OPTIMIZER_NAME, SCHEDULER_NAME))
        if not os.path.isfile(optimizer) or not os.path.isfile(scheduler):
            logger.warning("%s has no optimizer or schedule: training goes on with new ones.", checkpoint)
            return
        state = checkpoints.load_torch(optimizer)
        sharded = self._sharded
        if sharded is not None:
            sharding.load_whole_optimizer_state(sharded, self.optimizer, state)
        else:
            self.optimizer.load_state_dict(state)
        self.lr_scheduler.load_state_dict(checkpoints.load_torch(scheduler))

    def _save_scaler(self, output_dir: str) -> None:
        scaler = self.accelerator.scaler
        if scaler is not None and self.args.should_save:
            checkpoints.save_torch(scaler.state_dict(), os.path.join(output_dir, SCALER_NAME))

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = self.accelerator.scaler
        if checkpoint is None or scaler is None:
            return
        path = os.path.join(checkpoint, SCALER_NAME)
        if os.path.isfile(path):
            scaler.load_state_dict(checkpoints.load_torch(path))
        else:
            logger.warning("%s has no %s: fp16 goes on with a new loss scale.", checkpoint, SCALER_NAME)

    def _save_rng_state(self, output_dir: str) -> None:
        distributed = self.args.world_size > 1
        name = checkpoints.rng_state_name(self.args.process_index if distributed else None)
        save_rng_file(os.path.join(output_dir, name), distributed)

    def _save_data_state(self, output_dir: str) -> None:
        """Where the training stands in its data; nothing where there is no training."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        distributed = self.args.world_size > 1
        path = os.path.join(checkpoint, checkpoints.rng_state_name(self.args.process_index if distributed else None))
        if not os.path.isfile(path):
            logger.warning("There is no %s: the numbers will not be those of an uninterrupted run.", path)
            return
        restore_rng_state(load_rng_file(path), distributed)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        checkpoints.load_weights(self._whole(self.model if model is None else model), resume_from_checkpoint)

    def _whole(self, model: nn.Module) -> Any:
        """The user's model, which if it is spread over processes appears as if it were not."""
        called = models.to_call(model, self.model_wrapped)
        return sharding.WholeModel(called) if sharding.is_sharded(called) else models.unwrap_model(model)

    @property
    def _sharded(self) -> nn.Module | None:
        """What to call in the place of the model, if that is spread over processes."""
        called = models.to_call(self.model, self.model_wrapped)
        return called if sharding.is_sharded(called) else None

    def _best_was_saved(self) -> bool:
        """Whether there is a best checkpoint; it is said if it is not that of the best evaluation."""
        best, step = self.state.best_model_checkpoint, self.state.best_global_step
        if step and Path(best or "").name != f"{PREFIX_CHECKPOINT_DIR}-{step}":
            logger.warning(
                "The best evaluation was at step %s, of which there is no checkpoint: %s. To have the best one, "
                "evaluate and save at the same steps, or set save_strategy='best'.",
                step,
                "the last model is kept" if best is None else f"{best}, the best of those before it, is loaded",
            )
        return best is not None

    def _load_best_model(self) -> None:
        best = str(self.state.best_model_checkpoint)
        logger.info("Loading the best model from %s (%s)", best, self.state.best_metric)
        if not checkpoints.problems(best, training_state=False):
            checkpoints.load_weights(self._whole(self.model), best)
            return
        logger.warning(
            "The best checkpoint %s is not there, or damaged, so the last model is kept. With several machines, set "
            "save_on_each_node=True, or write to a disk that all of them see.",
            best,
        )

    def _load_callback_state(self) -> None:
        if not self.args.restore_callback_states_from_checkpoint:
            return
        missing = []
        for name, stored in self.state.stateful_callbacks.items():
            states = stored if isinstance(stored, list) else [stored]
            present = [callback for callback in self._stateful_callbacks() if type(callback).__name__ == name]
            if not present:
                missing.append(name)
            for callback, state in zip(present, states, strict=False):
                self._restore(callback, state)
        if missing:
            logger.warning("The checkpoint holds the state of callbacks that are not there: %s", ", ".join(missing))

    def _restore(self, callback: Any, state: dict[str, Any]) -> None:
        restored = type(callback).from_state(state)
        if isinstance(callback, TrainerControl):
            self.control = restored
        else:
            present = self.callback_handler.callbacks
            present[present.index(callback)] = restored

    def _find_checkpoint(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """The checkpoint to go on from, checked before anything is touched; True means the newest intact one."""
        if resume_from_checkpoint is None or resume_from_checkpoint is False:
            return None
        if resume_from_checkpoint is True:
            return self._newest_checkpoint()
        folder = os.fspath(resume_from_checkpoint)
        if not os.path.isdir(folder):
            folder = self._checkpoint_elsewhere(folder) or folder
        if not os.path.isdir(folder):
            raise CheckpointNotFoundError(
                f"Can't find a valid checkpoint at {folder!r}: there is no such folder. Pass a folder checkpoint-N, or "
                "resume_from_checkpoint=True for the newest one in output_dir."
            )
        checkpoints.require_intact(folder, weights=_is_own(self, "_load_from_checkpoint"))
        return folder

    def _checkpoint_elsewhere(self, name: str) -> str | None:
        """The folder of a checkpoint that is not here by that name; None where there is no other place to look."""

    def _newest_checkpoint(self) -> str:
        folder = str(self.args.output_dir)
        own = _is_own(self, "_load_from_checkpoint")  # an override may read weights of any form
        newest = checkpoints.last_intact_checkpoint(folder, weights=own) if os.path.isdir(folder) else None
        if newest is None:
            raise CheckpointNotFoundError(
                f"No valid checkpoint found in output_dir {folder!r}, so resume_from_checkpoint=True has nothing to go "
                "on from. Leave it out to start anew."
            )
        return newest

    def _state_of(self, checkpoint: str) -> TrainerState:
        """The state in a checkpoint; intervals that it does not name, as Lightning has others, are the present ones."""
        path = os.path.join(checkpoint, TRAINER_STATE_NAME)
        stored = TrainerState.load_from_json(path)
        named = json.loads(Path(path).read_text(encoding="utf-8"))
        for name in ("logging_steps", "eval_steps", "save_steps", "train_batch_size"):
            if name not in named:
                setattr(stored, name, getattr(self.state, name))
        return stored

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.args.output_dir)


def _without_tokens(args: Any) -> Any:
    """A copy of the arguments that holds no token: what is saved is passed on."""
    copied = copy.copy(args)
    for name in vars(copied):
        if name.endswith("_token"):
            setattr(copied, name, None)
    return copied


def _is_own(trainer: Saving, name: str) -> bool:
    """Whether a method is the one of this module, not an override."""
    return getattr(getattr(trainer, name), "__func__", None) is getattr(Saving, name)
