"""Choose the checkpoint to resume from, and restore its state and the best model."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...callbacks import TrainerState
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import owners
from ...lightning_modules.checkpoints.adapters import is_peft_model
from ...lightning_modules.checkpoints.staging import restore_replaced
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.file_names import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME
from ...lightning_modules.common.version_behavior import version_behavior
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..distributed.collectives import broadcast_from_rank_zero
from ..hub.session import HubSession
from .object_store import ObjectStore
from .saving import CheckpointSaver

if TYPE_CHECKING:
    from .. import Trainer, TrainingRun
    from ..strategies.strategy import Strategy

logger = logging.getLogger(__name__)

ResumeFrom = str | bool | None
"""See `resume_from_checkpoint` of `Trainer.train`."""


class CheckpointRestorer:
    """Finds the checkpoint to resume from, and reads its state.

    Args:
        trainer: the Trainer.
        hub: finds checkpoints in the Hub repository.
        store: downloads checkpoints if `output_dir` is a URL.
        saver: knows the newest checkpoint of the training.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(
        self, trainer: Trainer, hub: HubSession, store: ObjectStore, saver: CheckpointSaver
    ) -> None:
        self.trainer = trainer
        self.hub = hub
        self.store = store
        self.saver = saver

    # --- choice of the checkpoint

    def find_checkpoint(
        self, resume_from: ResumeFrom, *, strategy: Strategy, is_trial: bool, own_weights: bool
    ) -> str | None:
        """Return the checkpoint to resume from, see `Trainer.train`; None to start from scratch.

        After a restart by `torchrun`, and in the retry of a sweep's trial, checkpoints of this job
        take precedence over the argument of the script, unless that is False. Checkpoints of other
        jobs in the same folder do not. The result is the same on all ranks.

        Args:
            resume_from: the script's `resume_from_checkpoint`.
            strategy: the strategy that will load the checkpoint.
            is_trial: whether the training is a trial of a search, which resumes separately.
            own_weights: whether `_load_from_checkpoint` is not overridden. An override may read
                weights in any format.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
            ValueError: the checkpoint is damaged, or belongs to an incompatible training.
        """
        launcher = owners.current_job()
        if launcher is None or is_trial:
            return self._find(resume_from, strategy, own_weights)

        # Find the newest checkpoint that this job wrote before the restart.
        launchers = [launcher]
        if self._on_multiple_nodes:
            launchers = gather_objects(launcher)
        owners.begin_training(launchers)
        if owners.restarts():
            self.store.fetch_newest()
        checkpoint = self._newest(choose=owners.is_of_this_training)
        if not self._on_multiple_nodes:
            checkpoint = broadcast_from_rank_zero(checkpoint, self.trainer.args.world_size)

        if resume_from is False:
            return None
        if checkpoint is not None:
            logger.warning("The job was restarted; resuming from %s.", checkpoint)
            return self._find(checkpoint, strategy, own_weights)
        if not owners.restarts():
            return self._find(resume_from, strategy, own_weights)

        # The script may request the newest checkpoint of a folder to which the killed job has not
        # written any.
        checkpoint = None
        begins = "from scratch"
        if resume_from is not True or self._newest() is not None:
            checkpoint = self._find(resume_from, strategy, own_weights)
        if checkpoint is not None:
            begins = f"from {checkpoint}, as before"
        logger.warning(
            "The job was restarted before it had written a checkpoint; the training begins %s.",
            begins,
        )
        return checkpoint

    def _find(self, resume_from: ResumeFrom, strategy: Strategy, own_weights: bool) -> str | None:
        """Return the checkpoint named by `resume_from`, after validating it."""
        if resume_from is None or resume_from is False:
            return None
        if resume_from is True:
            # Full weights are only required if this package loads them.
            weights = own_weights and strategy.gathers_on_save
            self.store.fetch_newest(weights=weights)
            checkpoint = self._newest(weights=weights)
            if checkpoint is None:
                raise checkpoints.CheckpointNotFoundError(self._without_valid(weights))
        else:
            if not isinstance(resume_from, (str, os.PathLike)):
                raise TypeError(
                    f"resume_from_checkpoint={resume_from!r} is neither a path nor a bool. Pass a "
                    "folder checkpoint-<step>, True for the newest one in output_dir, or None to "
                    "start from scratch."
                )
            # The checkpoint may be a local folder, a URL, or a folder in the Hub repository.
            checkpoint = self.store.fetch(resume_from)
            if not os.path.isdir(checkpoint):
                restore_replaced(Path(checkpoint).parent)
            if not os.path.isdir(checkpoint):
                checkpoint = self.hub.find_checkpoint(checkpoint) or checkpoint
            if not os.path.isdir(checkpoint):
                problem = "the folder does not exist"
                if os.path.isfile(checkpoint):
                    problem = "it is a file, not a folder"
                raise checkpoints.CheckpointNotFoundError(
                    f"Can't find a valid checkpoint at {checkpoint!r}: {problem}. "
                    "Set resume_from_checkpoint to another, or to True for the newest one in "
                    "output_dir."
                )
            weights = own_weights and not strategy.weights_are_in_parts(checkpoint)
            checkpoints.require_intact(checkpoint, weights=weights)
        strategy.require_fitting(checkpoint)
        return checkpoint

    def _without_valid(self, weights: bool) -> str:
        """Return the error message for no valid checkpoint, with the problems of each."""
        folder = str(self.trainer.args.output_dir)
        damaged: list[str] = []
        if os.path.isdir(folder):
            for checkpoint in checkpoints.list_checkpoints(folder):
                problems = checkpoints.problems(checkpoint, weights=weights)
                damaged.append(f"{checkpoint.name} ({'; '.join(problems)})")
        skipped = ""
        if damaged:
            skipped = f" Skipped damaged checkpoints: {', '.join(damaged)}."
        return (
            f"No valid checkpoint found in output directory {folder!r}.{skipped} Remove "
            "resume_from_checkpoint=True to start from scratch."
        )

    def _newest(
        self, *, choose: Callable[[Path], bool] = os.path.isdir, weights: bool = True
    ) -> str | None:
        """Return the newest intact checkpoint; with several machines, the newest that all have.

        Must be called on all ranks if there are several machines.

        Args:
            choose: returns whether to consider a checkpoint.
            weights: as for `problems`.

        Raises:
            CheckpointNotFoundError: only some machines have checkpoints.
        """
        folder = str(self.trainer.args.output_dir)
        newest_step = math.inf

        def may_be_taken(path: Path) -> bool:
            return _step_of(path) <= newest_step and choose(path)

        while True:
            checkpoint = None
            if os.path.isdir(folder):
                checkpoint = checkpoints.last_intact_checkpoint(
                    folder, is_candidate=may_be_taken, weights=weights
                )
            if not self._on_multiple_nodes:
                return checkpoint

            # The newest checkpoint of one machine may be missing or damaged on another. In that
            # case, all search again up to the lowest of their steps. -1 means no checkpoint.
            step = -1
            if checkpoint is not None:
                step = _step_of(checkpoint)
            steps = gather_objects((socket.gethostname(), step))
            oldest = min(step for _, step in steps)
            if all(step == oldest for _, step in steps):
                return checkpoint
            if oldest < 0:
                raise checkpoints.CheckpointNotFoundError(self._differing_nodes(steps))
            newest_step = oldest

    def _differing_nodes(self, steps: list[tuple[str, int]]) -> str:
        has = sorted({f"checkpoint-{step} on {host}" for host, step in steps if step >= 0})
        lacks = sorted({host for host, step in steps if step < 0})
        return (
            f"output_dir {str(self.trainer.args.output_dir)!r} differs between the machines: the "
            f"newest checkpoint is {', '.join(has)}, and {', '.join(lacks)} has no checkpoint. "
            "Copy the folder there and set save_on_each_node=True, or use a shared disk."
        )

    def go_back(
        self,
        run: TrainingRun,
        strategy: Strategy,
        *,
        replaces_weights: bool,
        load_scaler: Callable[[str], None],
        load_external_parameters: Callable[[str], None],
    ) -> None:
        """Load weights and optimizer of the newest checkpoint of this training.

        All processes must call this.

        Schedule, data position and step count do not change.

        Args:
            run: the current training.
            strategy: loads weights and optimizer.
            replaces_weights: whether a Lightning callback replaces the weights in checkpoints.
            load_scaler: `Trainer._load_scaler`.
            load_external_parameters: loads trained parameters that are not part of the model.

        Raises:
            CheckpointNotFoundError: the checkpoint is missing on a machine.
        """
        trainer = self.trainer
        step = trainer.state.global_step
        trainer.control.should_go_back = False
        checkpoint = self.saver.newest() or run.checkpoint

        # Continue with a warning if there are no weights to roll back to.
        if replaces_weights:
            logger.warning(
                "Cannot roll back at step %s (a Lightning callback averages the weights); "
                "continuing.",
                step,
            )
            return
        if checkpoint is None:
            logger.warning("Cannot roll back at step %s (no checkpoint yet); continuing.", step)
            return
        if not all(gather_objects(os.path.isdir(checkpoint))):
            raise checkpoints.CheckpointNotFoundError(
                f"{checkpoint} is not on all machines, so the training cannot roll back to it. Use "
                "a shared disk."
            )
        if trainer.state.is_world_process_zero:
            logger.warning(
                "Step %s rolls back to the weights and the optimizer of %s.", step, checkpoint
            )

        # Keep the learning rates, because the schedule is not rolled back either.
        rates = [group["lr"] for group in trainer.optimizer.param_groups]
        strategy.load_weights(trainer.model, checkpoint)
        strategy.load_optimizer(checkpoint)
        for group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        load_scaler(checkpoint)
        load_external_parameters(checkpoint)

    @property
    def _on_multiple_nodes(self) -> bool:
        return self.trainer.args.world_size > self.trainer.args.distributed_state.local_world_size

    # --- its state

    def read_state(self, checkpoint: str) -> TrainerState:
        """Return the state of a checkpoint."""
        path = os.path.join(checkpoint, TRAINER_STATE_NAME)
        state = TrainerState.load_from_json(path)

        # Checkpoints of plain Lightning lack the intervals, so use those of the arguments.
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
        for name in ("logging_steps", "eval_steps", "save_steps", "train_batch_size"):
            if name not in entries:
                setattr(state, name, getattr(self.trainer.state, name))

        # The current search sets these.
        state.trial_name = None
        state.trial_params = None

        # Find the best checkpoint, which may have been moved.
        best = state.best_model_checkpoint
        if isinstance(best, str):
            self.store.fetch(os.path.join(os.path.dirname(checkpoint), os.path.basename(best)))
        state.best_model_checkpoint = self._best_of_this_run(best, checkpoint)
        return state

    def _best_of_this_run(self, best: object, checkpoint: str) -> str | None:
        """Return the best checkpoint if it belongs to this run or the resumed one, otherwise None.

        A state file may name any folder, because the run was moved, or because the file was
        tampered with to make the Trainer load a foreign folder or delete checkpoints next to it.
        """
        if best is None:
            return None
        runs = [
            os.path.realpath(self.trainer.args.output_dir or "."),
            os.path.dirname(os.path.realpath(checkpoint)),
        ]

        # Usually it is in one of the two folders.
        name = ""
        if isinstance(best, str):
            parents = Path(os.path.realpath(best)).parents
            if any(Path(run) in parents for run in runs):
                if os.path.isdir(best) or not version_behavior().forgets_missing_best:
                    return best
                logger.warning(
                    "The best checkpoint, %s, does not exist anymore; ignoring it.", best
                )
                return None
            name = os.path.basename(os.path.normpath(best))

        # If the run was moved, its new folder contains a checkpoint of that name.
        if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+", name):
            for run in runs:
                moved = os.path.join(run, name)
                if os.path.isdir(moved):
                    logger.warning(
                        "The best checkpoint was %s; the run has been moved, and it is %s now.",
                        best,
                        moved,
                    )
                    return moved
        logger.warning("The best checkpoint, %r, is outside %s and %s; ignoring it.", best, *runs)
        return None

    # --- the best one

    def has_best(self) -> bool:
        """Return whether a best checkpoint exists; warn if it is not from the best evaluation."""
        state = self.trainer.state
        best = state.best_model_checkpoint
        step = state.best_global_step

        # No evaluation improved the metric, or none was run.
        if best is None and not step:
            why = (
                f"{self.trainer.args.metric_for_best_model} was nan, or infinitely bad, in every "
                "evaluation"
            )
            if state.best_metric is None:
                why = f"there was no evaluation in {state.global_step} steps"
            logger.warning("load_best_model_at_end=True, but %s: the last model is kept.", why)
            return False

        # No checkpoint was written at the best evaluation.
        if step and Path(best or "").name != f"{PREFIX_CHECKPOINT_DIR}-{step}":
            consequence = "the last model is kept"
            if best is not None:
                consequence = f"{best}, the best of those before it, is loaded"
            logger.warning(
                "The best evaluation was at step %s, which has no checkpoint: %s. Set "
                "save_strategy='best'.",
                step,
                consequence,
            )
        return best is not None

    def load_best(
        self, strategy: Strategy, load_external_parameters: Callable[[str], None]
    ) -> None:
        """Load the weights of the best checkpoint, or warn if it is missing or damaged.

        Args:
            strategy: loads the weights of the model.
            load_external_parameters: loads trained parameters that are not part of the model.
        """
        state = self.trainer.state
        best = str(state.best_model_checkpoint)
        logger.info("Loading the best model from %s (%s)", best, state.best_metric)

        # It may only be on the disk of the machine that saved it.
        if self._on_multiple_nodes:
            self.store.finish_uploads()
            self.store.fetch(best)
        parts = strategy.weights_are_in_parts(best)
        if not checkpoints.problems(best, training_state=parts, weights=not parts):
            strategy.load_weights(self.trainer.model, best)
            load_external_parameters(best)
            # As after PEFT's `load_adapter`, set evaluation mode, because scripts use the model
            # right after training and expect no dropout.
            if is_peft_model(self.trainer.model):
                self.trainer.model.eval()
            return
        logger.warning(
            "The best checkpoint %s is missing or damaged, so the last model is kept. With several "
            "machines set save_on_each_node=True, or use a shared disk.",
            best,
        )


def _step_of(checkpoint: str | Path) -> int:
    return int(str(checkpoint).rpartition("-")[2])
