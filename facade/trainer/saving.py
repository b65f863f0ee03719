"""Models and checkpoints, to the disk and back."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from ...callbacks import TrainerControl, TrainerState, collect_states
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import (
    OPTIMIZER_NAME,
    PREFIX_CHECKPOINT_DIR,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from ...lightning_modules.seeding import load_rng_file, restore_rng_state, save_rng_file
from .. import models
from .checks import CheckpointNotFoundError
from .reporting import Reporting

logger = logging.getLogger(__name__)


class Saving(Reporting):
    """From memory to folders, and back."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `transformers.Trainer.save_model`: the model, what processes its data, and the arguments.

        Args:
            output_dir: the folder, by default that of the arguments. Written by the main process only.
        """
        if self.args.should_save:
            self._save(str(self.args.output_dir) if output_dir is None else output_dir)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = str(self.args.output_dir) if output_dir is None else output_dir
        os.makedirs(folder, exist_ok=True)
        logger.info("Saving the model to %s", folder)
        checkpoints.save_weights(models.unwrap_model(self.model), folder, state_dict=state_dict)
        processing = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if processing is not None and hasattr(processing, "save_pretrained"):
            processing.save_pretrained(folder)
        checkpoints.save_torch(_without_tokens(self.args), os.path.join(folder, TRAINING_ARGS_NAME))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write `checkpoint-{step}`: beside its name, so that nobody ever sees half of one, then rename it."""
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        run_dir = self._get_output_dir(trial)
        final = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with self._staged(final) as folder:
            self.save_model(str(folder), _internal_call=True)
            self._note_best_checkpoint(run_dir, final)
            if not self.args.save_only_model:
                self._save_optimizer_and_scheduler(str(folder))
                self._save_rng_state(str(folder))
            if self.args.should_save:
                self.state.stateful_callbacks = collect_states(self._stateful_callbacks())
                self.state.save_to_json(folder / TRAINER_STATE_NAME)
        if self.args.should_save:
            checkpoints.rotate_checkpoints(
                run_dir,
                self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                newest=final,
            )

    @contextlib.contextmanager
    def _staged(self, final: Path) -> Iterator[Path]:
        """The folder in the making, shared by all processes; the one that saves begins and commits it."""
        owner = self._from_main_process(checkpoints.owner_token())
        folder = checkpoints.staging_path(final, owner)
        if self.args.should_save:
            checkpoints.begin(final, owner)
        self.accelerator.wait_for_everyone()
        try:
            yield folder
        except BaseException:
            if self.args.should_save:
                checkpoints.abort(folder)
            raise
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            checkpoints.commit(folder, final)
        self.accelerator.wait_for_everyone()

    def _from_main_process(self, value: str) -> str:
        if self.args.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def _note_best_checkpoint(self, run_dir: str, current: Path) -> None:
        if not self.state.best_global_step:
            return
        best = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if best == current or best.exists():
            self.state.best_model_checkpoint = str(best)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.args.should_save:
            return
        checkpoints.save_torch(self.optimizer.state_dict(), os.path.join(output_dir, OPTIMIZER_NAME))
        if self.lr_scheduler is not None:
            checkpoints.save_torch(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        optimizer, scheduler = (os.path.join(checkpoint, name) for name in (OPTIMIZER_NAME, SCHEDULER_NAME))
        if not os.path.isfile(optimizer) or not os.path.isfile(scheduler):
            logger.warning("%s has no optimizer or schedule: training goes on with new ones.", checkpoint)
            return
        self.optimizer.load_state_dict(checkpoints.load_torch(optimizer))
        self.lr_scheduler.load_state_dict(checkpoints.load_torch(scheduler))

    def _save_rng_state(self, output_dir: str) -> None:
        distributed = self.args.world_size > 1
        name = checkpoints.rng_state_name(self.args.process_index if distributed else None)
        save_rng_file(os.path.join(output_dir, name), distributed)

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
        checkpoints.load_weights(models.unwrap_model(self.model if model is None else model), resume_from_checkpoint)

    def _load_best_model(self) -> None:
        best = str(self.state.best_model_checkpoint)
        logger.info("Loading the best model from %s (%s)", best, self.state.best_metric)
        if not checkpoints.problems(best, training_state=False):
            checkpoints.load_weights(models.unwrap_model(self.model), best)
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
            raise CheckpointNotFoundError(
                f"Can't find a valid checkpoint at {folder!r}: there is no such folder. Pass a folder checkpoint-N, or "
                "resume_from_checkpoint=True for the newest one in output_dir."
            )
        checkpoints.require_intact(folder)
        return folder

    def _newest_checkpoint(self) -> str:
        folder = str(self.args.output_dir)
        newest = checkpoints.last_intact_checkpoint(folder) if os.path.isdir(folder) else None
        if newest is None:
            raise CheckpointNotFoundError(
                f"No valid checkpoint found in output_dir {folder!r}, so resume_from_checkpoint=True has nothing to go "
                "on from. Leave it out to start anew."
            )
        return newest

    def _state_of(self, checkpoint: str) -> TrainerState:
        return TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.args.output_dir)


def _without_tokens(args: Any) -> Any:
    """A copy of the arguments that holds no token: what is saved is passed on."""
    copied = copy.copy(args)
    for name in vars(copied):
        if name.endswith("_token"):
            setattr(copied, name, None)
    return copied
