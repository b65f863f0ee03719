"""Checkpoints that are there: which one to go on from, and what is read from it."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from torch import nn

from ...callbacks import TrainerState
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME
from ...lightning_modules.common.local_paths import require_local
from .reporting import TrainerLogging

logger = logging.getLogger(__name__)


class Restoring(TrainerLogging):
    """From folders to memory."""

    _best_before: str | None = None  # the best checkpoint before the last one was begun

    def _find_checkpoint(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """The checkpoint to go on from, checked before anything is touched; True means the newest intact one."""
        found = self._checkpoint_of(self._search.resume_from(resume_from_checkpoint))
        if found is not None:
            self._strategy.require_fitting(found)
        return found

    def _checkpoint_of(self, resume_from_checkpoint: str | bool | None) -> str | None:
        if resume_from_checkpoint is None or resume_from_checkpoint is False:
            return None
        if resume_from_checkpoint is True:
            return self._newest_checkpoint()
        require_local(resume_from_checkpoint, "resume_from_checkpoint")
        folder = os.fspath(resume_from_checkpoint)
        if not os.path.isdir(folder):
            folder = self._hub.find_checkpoint(folder) or folder
        if not os.path.isdir(folder):
            raise checkpoints.CheckpointNotFoundError(
                f"Can't find a valid checkpoint at {folder!r}: there is no such folder. Pass a folder checkpoint-N, or "
                "resume_from_checkpoint=True for the newest one in output_dir."
            )
        own = is_own(self, "_load_from_checkpoint") and not self._strategy.weights_are_in_parts(folder)
        checkpoints.require_intact(folder, weights=own)
        return folder

    def _newest_checkpoint(self) -> str:
        folder = str(self.args.output_dir)
        own = is_own(self, "_load_from_checkpoint")  # an override may read weights of any form
        own = own and self._strategy.gathers_on_save
        newest = checkpoints.last_intact_checkpoint(folder, weights=own) if os.path.isdir(folder) else None
        if newest is None:
            raise checkpoints.CheckpointNotFoundError(
                f"No valid checkpoint found in output_dir {folder!r}, so resume_from_checkpoint=True has nothing to go "
                f"on from. {_damaged_in(folder, own)}Leave it out to start anew."
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
        stored.trial_name = stored.trial_params = None  # whether this is a trial, and of which name, is known here
        stored.best_model_checkpoint = self._best_of_this_run(stored.best_model_checkpoint, checkpoint)
        return stored

    def _best_of_this_run(self, best: Any, checkpoint: str) -> str | None:
        """The best checkpoint, if it is one of this run, or of the one before that is gone on with.

        A state may name any folder, be it that the run was moved, or that somebody wants it read or the others
        deleted.
        """
        if best is None:
            return None
        runs = [os.path.realpath(self.args.output_dir or "."), os.path.dirname(os.path.realpath(checkpoint))]
        if isinstance(best, str) and any(Path(run) in Path(os.path.realpath(best)).parents for run in runs):
            return best
        name = os.path.basename(os.path.normpath(best)) if isinstance(best, str) else ""
        if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+", name):
            found = next((path for run in runs if os.path.isdir(path := os.path.join(run, name))), None)
            if found is not None:
                logger.warning("The best checkpoint was %s, and the run has been moved: it is %s now.", best, found)
                return found
        logger.warning(
            "The best checkpoint, %r, is in neither %s nor %s, and is forgotten: the best of the evaluations to come "
            "is kept if it is better.",
            best,
            *runs,
        )
        return None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self._strategy.load_weights(self.model if model is None else model, resume_from_checkpoint)

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

    def _best_was_saved(self) -> bool:
        """Whether there is a best checkpoint; it is said if it is not that of the best evaluation."""
        best, step = self.state.best_model_checkpoint, self.state.best_global_step
        if best is None and not step:
            why = f"{self.args.metric_for_best_model} was nan, or infinitely bad, in every evaluation"
            if self.state.best_metric is None:
                why = f"there was no evaluation in {self.state.global_step} steps"
            logger.warning("load_best_model_at_end=True, but %s: the last model is kept.", why)
        elif step and Path(best or "").name != f"{PREFIX_CHECKPOINT_DIR}-{step}":
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
        parts = self._strategy.weights_are_in_parts(best)
        if not checkpoints.problems(best, training_state=parts, weights=not parts):
            self._strategy.load_weights(self.model, best)
            return
        logger.warning(
            "The best checkpoint %s is not there, or damaged, so the last model is kept. With several machines, set "
            "save_on_each_node=True, or write to a disk that all of them see.",
            best,
        )

    def _load_callback_state(self) -> None:
        if self.args.restore_callback_states_from_checkpoint:
            self._callback_states.restore_exported()

    def _get_output_dir(self, trial: Any) -> str:
        """As the method of that name in the reference: a trial has a folder of its own."""
        return self._search.output_dir(str(self.args.output_dir), trial)


def is_own(trainer: Restoring, name: str, by: type[Restoring] = Restoring) -> bool:
    """Whether a method is the one of the class `by`, not an override."""
    return getattr(getattr(trainer, name), "__func__", None) is getattr(by, name)


def _damaged_in(folder: str, weights: bool) -> str:
    """Say what is wrong with each checkpoint that was passed over; nothing where there is none."""
    found = checkpoints.list_checkpoints(folder) if os.path.isdir(folder) else []
    said = [f"{one.name} ({'; '.join(checkpoints.problems(one, weights=weights))})" for one in found]
    return f"Damaged, and so passed over: {', '.join(said)}. " if said else ""
