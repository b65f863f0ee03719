"""Choice of the checkpoint to resume from, and restoration of its state and of the best model."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks import TrainerState
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import owners
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.file_names import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME
from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..distributed.collectives import from_first_process
from ..hub.session import HubSession

if TYPE_CHECKING:
    from .. import Trainer, TrainerModule

logger = logging.getLogger(__name__)

Wanted = str | bool | None
"""See `resume_from_checkpoint` of `Trainer.train`."""


class CheckpointRestorer:
    """Find the checkpoint that a training resumes from, and read its state.

    Args:
        host: the Trainer.
        hub: finds checkpoints in the repository.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer, hub: HubSession) -> None:
        self.host = host
        self.hub = hub

    # --- choice of the checkpoint

    def find_checkpoint(self, wanted: Wanted, *, is_trial: bool, own_weights: bool) -> str | None:
        """Return the checkpoint to resume from, see `Trainer.train`; None to start from scratch.

        After a restart by `torchrun`, and in the retry of a trial of a sweep, checkpoints of this job take precedence
        over the choice of the script, unless that is False; those of other jobs in the same folder do not. All
        processes get the same answer.

        Args:
            wanted: the choice of the script.
            is_trial: the training is a trial of a search, which has its own resumption.
            own_weights: `_load_from_checkpoint` is not overridden; an override may read weights in any form.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint.
            ValueError: it is damaged, or belongs to an incompatible training.
        """
        launcher = owners.own_launcher()
        if launcher is None or is_trial:
            return self._find(wanted, own_weights)
        owners.begin_training(gather_objects(launcher) if self._on_several_machines else [launcher])
        own = self._newest(wanted=owners.is_of_this_training)
        if not self._on_several_machines:
            own = from_first_process(own, self.host.args.world_size)
        if wanted is False:
            return None
        if own:
            logger.warning("The job was started again, and goes on from %s.", own)
            return self._find(own, own_weights)
        if not owners.restarts():
            return self._find(wanted, own_weights)
        found = None if wanted is True and self._newest() is None else self._find(wanted, own_weights)
        logger.warning(
            "The job was started again before it had written a checkpoint, so the training begins %s.",
            "anew" if found is None else f"with {found}, as it did before",
        )
        return found

    def _find(self, wanted: Wanted, own_weights: bool) -> str | None:
        """Return the checkpoint to resume from, after validation."""
        found = self._resolve(wanted, own_weights)
        if found is not None:
            self.host._strategy.require_fitting(found)
        return found

    def _resolve(self, wanted: Wanted, own_weights: bool) -> str | None:
        strategy = self.host._strategy
        if wanted is None or wanted is False:
            return None
        if wanted is True:
            return self._require_newest(weights=own_weights and strategy.gathers_on_save)
        folder = os.fspath(self.host._object_store.localized(wanted))
        if not os.path.isdir(folder):
            folder = self.hub.find_checkpoint(folder) or folder
        if not os.path.isdir(folder):
            said = f"Can't find a valid checkpoint at {folder!r}: there is no such folder"
            instead = "Set resume_from_checkpoint to another, or to True for the newest one in output_dir"
            raise checkpoints.CheckpointNotFoundError(f"{said}. {instead}.")
        checkpoints.require_intact(folder, weights=own_weights and not strategy.weights_are_in_parts(folder))
        return folder

    def _newest(self, **choice: Any) -> str | None:
        """Return the newest intact checkpoint; of several machines (collective) the newest that all have.

        Raises:
            CheckpointNotFoundError: some machines have checkpoints and others have none.
        """
        if owners.restarts() or "wanted" not in choice:
            self.host._object_store.localized(True, weights=choice.get("weights", True))
        found = self._newest_here(**choice)
        while self._on_several_machines:
            steps = gather_objects((socket.gethostname(), -1 if found is None else _step_of(found)))
            oldest, newest = min(step for _, step in steps), max(step for _, step in steps)
            if oldest == newest:
                break
            if oldest < 0:
                raise checkpoints.CheckpointNotFoundError(self._differing_machines(steps))
            found = self._newest_here(**choice, up_to=oldest)
        return found

    def _newest_here(
        self, *, wanted: Callable[[Path], bool] = os.path.isdir, up_to: float = math.inf, weights: bool = True
    ) -> str | None:
        folder = str(self.host.args.output_dir)
        if not os.path.isdir(folder):
            return None
        return checkpoints.last_intact_checkpoint(
            folder, wanted=lambda path: _step_of(path) <= up_to and wanted(path), weights=weights
        )

    def _differing_machines(self, steps: list[tuple[str, int]]) -> str:
        has = sorted({f"checkpoint-{step} on {host}" for host, step in steps if step >= 0})
        lacks = sorted({host for host, step in steps if step < 0})
        where = f"output_dir {str(self.host.args.output_dir)!r} differs between the machines"
        found = f"the newest checkpoint is {', '.join(has)}, and there is none on {', '.join(lacks)}"
        return f"{where}: {found}. Copy the folder there and set save_on_each_node=True, or use a disk that all see."

    def _require_newest(self, weights: bool) -> str:
        newest = self._newest(weights=weights)
        if newest is None:
            folder = str(self.host.args.output_dir)
            said = f"No valid checkpoint found in output_dir {folder!r}. {_damaged_in(folder, weights)}"
            raise checkpoints.CheckpointNotFoundError(f"{said}Leave out resume_from_checkpoint=True to start anew.")
        return newest

    def go_back(self, run: TrainerModule) -> None:
        """Load weights and optimizer of the newest checkpoint of this training; collective.

        Schedule, position and step count stay, as if the steps since then had been left out.

        Raises:
            CheckpointNotFoundError: a machine does not see the checkpoint.
        """
        host, step = self.host, self.host.state.global_step
        host.control.should_go_back = False
        checkpoint = host._checkpoints.newest() or run.checkpoint
        replaced = host._lightning_callback_states.weights(run) is not None
        if checkpoint is None or replaced:
            reason = "a Lightning callback replaces the weights in checkpoints" if replaced else "there is none yet"
            logger.warning("Step %s goes back to no checkpoint, as %s: training goes on without it.", step, reason)
            return
        if not all(gather_objects(os.path.isdir(checkpoint))):
            said = "is not on all machines, so that training cannot go back to it. Use a disk that all of them see."
            raise checkpoints.CheckpointNotFoundError(f"{checkpoint} {said}")
        if host.state.is_world_process_zero:
            logger.warning("Step %s goes back to the weights and the optimizer of %s.", step, checkpoint)
        rates = [group["lr"] for group in host.optimizer.param_groups]
        host._strategy.load_weights(host.model, checkpoint)
        host._strategy.load_optimizer(checkpoint)
        for group, rate in zip(host.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        host._load_scaler(checkpoint)

    @property
    def _on_several_machines(self) -> bool:
        return self.host.args.world_size > self.host.args.local_world_size

    # --- its state

    def read_state(self, checkpoint: str) -> TrainerState:
        """Return the state of a checkpoint; intervals missing in one of Lightning are those of the arguments."""
        path = os.path.join(checkpoint, TRAINER_STATE_NAME)
        stored = TrainerState.load_from_json(path)
        named = json.loads(Path(path).read_text(encoding="utf-8"))
        for name in ("logging_steps", "eval_steps", "save_steps", "train_batch_size"):
            if name not in named:
                setattr(stored, name, getattr(self.host.state, name))
        stored.trial_name = stored.trial_params = None  # set by the current search, if any
        if isinstance(best := stored.best_model_checkpoint, str):
            self.host._object_store.localized(os.path.join(os.path.dirname(checkpoint), os.path.basename(best)))
        stored.best_model_checkpoint = self._best_of_this_run(stored.best_model_checkpoint, checkpoint)
        return stored

    def _best_of_this_run(self, best: Any, checkpoint: str) -> str | None:
        """Return the best checkpoint if it belongs to this run or the resumed one, else None.

        A state file may name any folder: the run was moved, or the file was tampered with to have a foreign folder
        read, or the checkpoints beside it deleted.
        """
        if best is None:
            return None
        runs = [os.path.realpath(self.host.args.output_dir or "."), os.path.dirname(os.path.realpath(checkpoint))]
        if isinstance(best, str) and any(Path(run) in Path(os.path.realpath(best)).parents for run in runs):
            if os.path.isdir(best) or not followed().forgets_missing_best:
                return best
            logger.warning("The best checkpoint, %s, does not exist any more, and is forgotten.", best)
            return None
        name = os.path.basename(os.path.normpath(best)) if isinstance(best, str) else ""
        if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+", name):
            found = next((path for run in runs if os.path.isdir(path := os.path.join(run, name))), None)
            if found is not None:
                logger.warning("The best checkpoint was %s, and the run has been moved: it is %s now.", best, found)
                return found
        logger.warning("The best checkpoint, %r, is in neither %s nor %s, and is forgotten.", best, *runs)
        return None

    # --- the best one

    def has_best(self) -> bool:
        """Return whether there is a best checkpoint; warn if it is not that of the best evaluation."""
        state = self.host.state
        best, step = state.best_model_checkpoint, state.best_global_step
        if best is None and not step:
            why = f"{self.host.args.metric_for_best_model} was nan, or infinitely bad, in every evaluation"
            if state.best_metric is None:
                why = f"there was no evaluation in {state.global_step} steps"
            logger.warning("load_best_model_at_end=True, but %s: the last model is kept.", why)
        elif step and Path(best or "").name != f"{PREFIX_CHECKPOINT_DIR}-{step}":
            instead = "the last model is kept" if best is None else f"{best}, the best of those before it, is loaded"
            said = "The best evaluation was at step %s, of which there is no checkpoint: %s. Set save_strategy='best'."
            logger.warning(said, step, instead)
        return best is not None

    def load_best(self) -> None:
        """Load the weights of the best checkpoint; warn if it is missing or damaged."""
        state, strategy = self.host.state, self.host._strategy
        best = str(state.best_model_checkpoint)
        logger.info("Loading the best model from %s (%s)", best, state.best_metric)
        if self._on_several_machines:
            self.host._object_store.finish()
            self.host._object_store.localized(best)
        parts = strategy.weights_are_in_parts(best)
        if not checkpoints.problems(best, training_state=parts, weights=not parts):
            strategy.load_weights(self.host.model, best)
            return
        said = "The best checkpoint %s is not there, or damaged, so the last model is kept. %s"
        logger.warning(said, best, "With several machines set save_on_each_node=True, or use a disk that all see.")


def _step_of(checkpoint: str | Path) -> int:
    return int(str(checkpoint).rpartition("-")[2])


def _damaged_in(folder: str, weights: bool) -> str:
    """Describe the problems of the damaged checkpoints; empty if there are none."""
    found = checkpoints.list_checkpoints(folder) if os.path.isdir(folder) else []
    said = [f"{one.name} ({'; '.join(checkpoints.problems(one, weights=weights))})" for one in found]
    return f"Damaged, and so passed over: {', '.join(said)}. " if said else ""
