"""Checkpoints that are there: which one to go on from, and what is read from it."""

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

import torch.distributed as dist

from ...callbacks import TrainerState
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME, owners
from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.local_paths import require_local
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..distributed.collectives import from_first_process
from ..hub.session import HubSession

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)

Wanted = str | bool | None
"""See `resume_from_checkpoint` of `Trainer.train`."""


class CheckpointRestorer:
    """Finds the checkpoint that a training begins with, and reads its state.

    Args:
        host: the Trainer.
        hub: where checkpoints may be, too.
        resume_from: a trial may have a checkpoint where none was asked for.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer, hub: HubSession, resume_from: Callable[[Wanted], Wanted]) -> None:
        self.host = host
        self.hub = hub
        self.resume_from = resume_from

    # --- which one

    def where_to_begin(self, wanted: Wanted, *, is_trial: bool, own_weights: bool) -> str | None:
        """Return the checkpoint to begin with, see `Trainer.train`; None for a training that begins anew.

        Under `torchrun`, checkpoints that this training wrote before it was started again go before what the script
        asks for, unless that is False. Those of other jobs in the same folder are no matter. Every process is told the
        same by the first one.

        Args:
            wanted: what the script asks for.
            is_trial: of a hyperparameter search, which goes on by itself.
            own_weights: whether `_load_from_checkpoint` is not overridden: an override may read weights of any form.

        Raises:
            CheckpointNotFoundError: there is none.
            ValueError: it is damaged, or was made by a training that cannot be gone on with.
        """
        launcher = owners.own_launcher()
        if launcher is None or is_trial:
            return self._find(wanted, own_weights)
        owners.begin_training(self._launchers(launcher))
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
        """The checkpoint to go on from, checked before anything is touched; True means the newest intact one."""
        found = self._found(self.resume_from(wanted), own_weights)
        if found is not None:
            self.host._strategy.require_fitting(found)
        return found

    def _found(self, wanted: Wanted, own_weights: bool) -> str | None:
        strategy = self.host._strategy
        if wanted is None or wanted is False:
            return None
        if wanted is True:
            return self._require_newest(weights=own_weights and strategy.gathers_on_save)
        require_local(wanted, "resume_from_checkpoint")
        folder = os.fspath(wanted)
        if not os.path.isdir(folder):
            folder = self.hub.find_checkpoint(folder) or folder
        if not os.path.isdir(folder):
            raise checkpoints.CheckpointNotFoundError(
                f"Can't find a valid checkpoint at {folder!r}: there is no such folder. Pass a folder checkpoint-N, or "
                "resume_from_checkpoint=True for the newest one in output_dir."
            )
        checkpoints.require_intact(folder, weights=own_weights and not strategy.weights_are_in_parts(folder))
        return folder

    def _newest(self, **choice: Any) -> str | None:
        """The newest intact one; of several machines, all of which have to call this, the newest that is on each.

        Raises:
            CheckpointNotFoundError: some of the machines have checkpoints, and others have none of these.
        """
        found = self._newest_here(**choice)
        while self._on_several_machines:
            steps = self._of_everybody((socket.gethostname(), -1 if found is None else _step_of(found)))
            oldest, newest = min(step for _, step in steps), max(step for _, step in steps)
            if oldest == newest:
                break
            if oldest < 0:
                raise checkpoints.CheckpointNotFoundError(self._said_of_machines(steps))
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

    def _said_of_machines(self, steps: list[tuple[str, int]]) -> str:
        has = sorted({f"checkpoint-{step} on {host}" for host, step in steps if step >= 0})
        lacks = sorted({host for host, step in steps if step < 0})
        return (
            f"The machines do not have the same checkpoints in output_dir {str(self.host.args.output_dir)!r}: the "
            f"newest is {', '.join(has)}, and there is none on {', '.join(lacks)}. Write to a disk that all of them "
            "see, or set save_on_each_node=True; to go on now, copy the folder there. With "
            "resume_from_checkpoint=False the training begins anew."
        )

    def _require_newest(self, weights: bool) -> str:
        newest = self._newest(weights=weights)
        if newest is None:
            folder = str(self.host.args.output_dir)
            raise checkpoints.CheckpointNotFoundError(
                f"No valid checkpoint found in output_dir {folder!r}, so resume_from_checkpoint=True has nothing to go "
                f"on from. {_damaged_in(folder, weights)}Leave it out to start anew."
            )
        return newest

    def _launchers(self, own: str) -> list[str]:
        """Those of all machines."""
        return self._of_everybody(own) if self._on_several_machines else [own]

    @property
    def _on_several_machines(self) -> bool:
        return self.host.args.world_size > self.host.args.local_world_size

    def _of_everybody(self, own: Any) -> list[Any]:
        everybody: list[Any] = [None] * self.host.args.world_size
        dist.all_gather_object(everybody, own)
        return everybody

    # --- what is in it

    def read_state(self, checkpoint: str) -> TrainerState:
        """Return the state in a checkpoint; intervals that it lacks, as Lightning has others, are the present ones."""
        path = os.path.join(checkpoint, TRAINER_STATE_NAME)
        stored = TrainerState.load_from_json(path)
        named = json.loads(Path(path).read_text(encoding="utf-8"))
        for name in ("logging_steps", "eval_steps", "save_steps", "train_batch_size"):
            if name not in named:
                setattr(stored, name, getattr(self.host.state, name))
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
        logger.warning(
            "The best checkpoint, %r, is in neither %s nor %s, and is forgotten: the best of the evaluations to come "
            "is kept if it is better.",
            best,
            *runs,
        )
        return None

    # --- the best one

    def has_best(self) -> bool:
        """Return whether there is a best checkpoint; say so if it is not that of the best evaluation."""
        state = self.host.state
        best, step = state.best_model_checkpoint, state.best_global_step
        if best is None and not step:
            why = f"{self.host.args.metric_for_best_model} was nan, or infinitely bad, in every evaluation"
            if state.best_metric is None:
                why = f"there was no evaluation in {state.global_step} steps"
            logger.warning("load_best_model_at_end=True, but %s: the last model is kept.", why)
        elif step and Path(best or "").name != f"{PREFIX_CHECKPOINT_DIR}-{step}":
            logger.warning(
                "The best evaluation was at step %s, of which there is no checkpoint: %s. To have the best one, "
                "evaluate and save at the same steps, or set save_strategy='best'.",
                step,
                "the last model is kept" if best is None else f"{best}, the best of those before it, is loaded",
            )
        return best is not None

    def load_best(self) -> None:
        """Fill the model with the weights of the best checkpoint; warn if that is not there any more."""
        state, strategy = self.host.state, self.host._strategy
        best = str(state.best_model_checkpoint)
        logger.info("Loading the best model from %s (%s)", best, state.best_metric)
        parts = strategy.weights_are_in_parts(best)
        if not checkpoints.problems(best, training_state=parts, weights=not parts):
            strategy.load_weights(self.host.model, best)
            return
        logger.warning(
            "The best checkpoint %s is not there, or damaged, so the last model is kept. With several machines, set "
            "save_on_each_node=True, or write to a disk that all of them see.",
            best,
        )


def _step_of(checkpoint: str | Path) -> int:
    return int(str(checkpoint).rpartition("-")[2])


def _damaged_in(folder: str, weights: bool) -> str:
    """Say what is wrong with each checkpoint that was passed over; nothing where there is none."""
    found = checkpoints.list_checkpoints(folder) if os.path.isdir(folder) else []
    said = [f"{one.name} ({'; '.join(checkpoints.problems(one, weights=weights))})" for one in found]
    return f"Damaged, and so passed over: {', '.join(said)}. " if said else ""
