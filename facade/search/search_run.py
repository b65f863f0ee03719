"""The state of a search: its options, its trials and their folders."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from torch import nn

from ...callbacks import TrainerState
from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.common.claimed_folder import claim_folder
from ...lightning_modules.common.local_paths import is_url
from ..arguments.enums import HPSearchBackend
from .best_model import BestModel
from .hyperparameters import BestRun, default_compute_objective
from .metric_objective import objective_value
from .original_arguments import OriginalArguments
from .retries import FOLDER, Start
from .trial_folders import folder_name

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.trial import FixedTrial

    from ...lightning_modules.search.shared_study import SharedTrial
    from .. import Trainer

    OptunaTrial = Trial | SharedTrial | FixedTrial

logger = logging.getLogger(__name__)

OPTIONS = ("final_model",)
"""Keywords of `hyperparameter_search` that do not belong to the backend."""


@dataclass(kw_only=True)
class SearchOptions:
    """Options of `hyperparameter_search`, with those of the backend in one dictionary."""

    n_trials: int | None
    """Number of trials to run; None for as many as `timeout` allows."""
    directions: list[str]
    """`minimize` or `maximize`, one for each objective."""
    is_direction_implied: bool = False
    """True if the user passed no direction."""
    final_model: Literal["best", "last"] = "best"
    """The trial whose model the Trainer has after the search."""
    backend: dict[str, Any] = field(default_factory=dict)
    """Options of the backend, by name."""

    @property
    def has_several_objectives(self) -> bool:
        """Return whether there are several objectives."""
        return len(self.directions) > 1


class SearchOwner(Protocol):
    """The object that holds the current search of a Trainer, a `HyperparameterSearch`."""

    current: SearchRun | None
    access: TrainerAccess


class TrainerAccess(NamedTuple):
    """What a search does to a Trainer beyond its documented methods."""

    install_model: Callable[[Trainer, nn.Module], None]
    """Gives it a new model, and frees the optimizer of the old one."""
    free_optimizer: Callable[[Trainer], None]
    """Frees the optimizer and the data of a finished trial."""
    load_model: Callable[[Trainer, str], None]
    """Loads the weights of a checkpoint."""
    save_checkpoint: Callable[[Trainer], None]
    """Writes a checkpoint, which is complete afterwards."""
    portable: Callable[[Trainer], Any]
    """Returns a copy of it that can be pickled."""
    revive: Callable[[Any], tuple[Trainer, SearchOwner]]
    """Returns the Trainer of such a copy, and the owner of its search, in another process."""


class SearchRun:
    """State of a search, from its first trial to its result.

    Args:
        trainer: the Trainer.
        options: the options of the search.
        access: the functions that change the Trainer.
    """

    def __init__(self, trainer: Trainer, options: SearchOptions, access: TrainerAccess) -> None:
        self.trainer = trainer
        self.options = options
        self.access = access
        self.original_arguments = OriginalArguments(trainer)

        # With several objectives there may be several best models.
        keeps_best = options.final_model == "best" and not options.has_several_objectives
        self.best_model = BestModel(options.directions[0], access.install_model, enabled=keeps_best)
        self.starts: dict[int, Start] = {}
        """The `Start` of each trial of this process, by number."""
        self.folders: dict[int, Path] = {}
        """The folders of trials, by number."""
        self.metrics: dict[str, float] = {}
        """The metrics of the last evaluation."""
        self.ray_folder: str | None = None
        """The name of the current trial's folder with Ray, whose trials have no numbers."""
        self._last_trial = -1
        self._last_value: Any = None
        self._has_warned_of_direction = False

    def run(self, trial: OptunaTrial, start: Start) -> float | list[float]:
        """Train once with the values of a trial.

        Args:
            trial: the trial.
            start: the initial data of the trial.

        Returns:
            The objective of the last evaluation. If there was none during the training, evaluate
            after it.

        Raises:
            optuna.TrialPruned: the pruner ended the trial.
        """
        trainer = self.trainer
        self._begin(trial, start)
        try:
            trainer.train(resume_from_checkpoint=start.checkpoint, trial=trial)
            if trainer.objective is None:
                self.set_objective(trainer.evaluate())
            value: Any = trainer.objective
        finally:
            self.access.free_optimizer(trainer)
        self._last_trial = trial.number
        self._last_value = value
        return value

    def completed(self) -> None:
        """Keep the model of the last trial if it is the best so far; called in every process."""
        self.best_model.keep_if_best(self.trainer, self._last_trial, self._last_value)

    def set_objective(self, metrics: dict[str, float]) -> float | list[float]:
        """Compute the objective of an evaluation, and set it as `trainer.objective`."""
        self.metrics = dict(metrics)
        self._warn_of_minimized_metrics()
        compute_objective = self.trainer.compute_objective
        assert compute_objective is not None
        objective = objective_value(compute_objective, metrics, len(self.options.directions))
        self.trainer.objective = objective
        return objective

    def record_folder(self, trial: OptunaTrial | dict[str, Any]) -> None:
        """Record the folder of a trial in the study, for the report."""
        if not isinstance(trial, dict):
            trial.set_user_attr(FOLDER, str(self.run_dir(trial)))

    def run_dir(self, trial: OptunaTrial | dict[str, Any]) -> Path:
        """Return the folder of a trial.

        An Optuna trial claims its folder, so that folders of other searches are not changed.
        """
        output_dir = str(self.trainer.args.output_dir)
        if self.ray_folder is not None:
            return Path(output_dir) / self.ray_folder
        assert not isinstance(trial, dict)  # with Ray the folder has a name
        number = trial.number
        if number in self.folders:
            return self.folders[number]

        start = self.starts[number]
        name = folder_name(self.trainer.hp_name, trial, start.origin)
        folder = Path(output_dir) / name
        if not is_url(output_dir):
            folder = claim_folder(output_dir, name, start.owner)
        elif folder in self.folders.values():
            # `hp_name` returned the same name for two trials.
            folder = folder.with_name(f"{name}-{number}")
        self.folders[number] = folder
        return folder

    def free_model(self) -> None:
        """Free the model before the next one is created, so that there are never two in memory."""
        trainer = self.trainer
        model_reference = None if trainer.model is None else weakref.ref(trainer.model)
        no_model = cast(nn.Module, None)  # until the next trial makes one
        trainer.model = no_model
        trainer.model_wrapped = no_model
        trainer.callback_handler.model = None

        # A model that is part of a reference cycle is freed only by a garbage collection.
        model = None if model_reference is None else model_reference()
        if model is not None and model is not self.best_model.model:
            del model
            gc.collect()

    def end(self) -> None:
        """Restore the Trainer's arguments, and its model if an error left it without one."""
        trainer = self.trainer
        self.original_arguments.restore()
        if trainer.model is not None:
            return
        if self.best_model.move_to_trainer(trainer, str(self.best_model.number)):
            return
        # A failure here must not hide the error that ended the search.
        try:
            self.access.install_model(trainer, trainer.call_model_init())
        except Exception as error:
            logger.warning(
                "The Trainer has no model now: model_init cannot make one without a trial (%s).",
                error,
            )

    def install_final_model(self, best: BestRun | list[BestRun]) -> None:
        """Set the Trainer's model to the one that `final_model` requests.

        The Trainer's arguments have already been restored.

        Args:
            best: the result of the search.
        """
        if self.options.final_model == "last":
            return
        if isinstance(best, list):
            logger.warning(
                "The search has %s best runs, so the Trainer holds the model of the last trial. To "
                "get the model of a run, set its values on trainer.args and call train().",
                len(best),
            )
            return

        # The best trial may be from another process, or from an earlier search on the same study.
        if self.best_model.move_to_trainer(self.trainer, best.run_id) or self._load(best):
            return
        logger.warning(
            "The best run, trial %s, was not trained by this process and has no checkpoint here, "
            "so the Trainer holds another model. Set these values on trainer.args and call "
            "train(): %s",
            best.run_id,
            best.hyperparameters,
        )

    def _warn_of_minimized_metrics(self) -> None:
        """Warn, once, if the sum of metrics is minimized by default, as in the reference."""
        is_default_objective = self.trainer.compute_objective is default_compute_objective
        if not is_default_objective or not self.options.is_direction_implied:
            return
        if self._has_warned_of_direction:
            return
        self._has_warned_of_direction = True

        # Find the metrics that the default objective adds up, by computing it for each metric
        # alone.
        names = []
        for name in self.metrics:
            if name != "eval_loss" and default_compute_objective({name: 1.0}):
                names.append(name)
        if names:
            logger.warning(
                "The search MINIMIZES %s. Pass direction='maximize' if more is better, or a "
                "compute_objective.",
                " + ".join(names),
            )

    def _load(self, best: BestRun) -> bool:
        """Load the best model from the checkpoint of its trial.

        Args:
            best: the best trial.

        Returns:
            False if the trial has no checkpoint here, or only one from an older search.
        """
        trainer = self.trainer
        trial: FixedTrial | dict[str, object]
        if trainer.hp_search_backend == HPSearchBackend.RAY:
            trial = dict(best.hyperparameters)
            self.ray_folder = folder_name(trainer.hp_name, trial, best.run_id)
        else:
            from optuna.trial import FixedTrial

            trial = FixedTrial(best.hyperparameters, number=int(best.run_id))
            if trial.number not in self.folders:
                return False

        folder = self.run_dir(trial)
        checkpoint = last_intact_checkpoint(folder) if folder.is_dir() else None
        if checkpoint is None:
            return False

        # A checkpoint with other values is from an older search that used the same folder.
        state = TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")
        if state.trial_params is None:
            return False
        for name, value in state.trial_params.items():
            if best.hyperparameters.get(name) != value:
                return False

        # Load the best checkpoint instead of the last one if the arguments ask for it.
        if trainer.args.load_best_model_at_end:
            best_checkpoint = state.best_model_checkpoint
            if best_checkpoint is not None and Path(best_checkpoint).is_dir():
                checkpoint = best_checkpoint
        self.access.install_model(trainer, trainer.call_model_init(trial))
        self.access.load_model(trainer, checkpoint)
        trainer.state = state
        logger.info("The Trainer holds the model of %s.", checkpoint)
        return True

    def _begin(self, trial: OptunaTrial, start: Start) -> None:
        """Reset the Trainer to the state in which every trial starts."""
        self.trainer.objective = None
        self.metrics = {}
        self.original_arguments.restore()
        self.best_model.move_to_cpu()
        # If `model_init` failed in the previous trial, there is no model, but `train` inspects one
        # before it creates its own.
        if self.trainer.model is None:
            self.access.install_model(self.trainer, self.trainer.call_model_init(trial))
        self.starts[trial.number] = start
