"""One search: its options, its trials, and their models and folders."""

from __future__ import annotations

import copy
import gc
import logging
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from torch import nn

from ...callbacks import TrainerState
from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.common.claimed_folder import claim_folder
from ...lightning_modules.common.local_paths import is_address
from ..arguments.enums import HPSearchBackend
from .hyperparameters import BestRun, default_compute_objective
from .metric_objective import objective_value
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
    """Options of `hyperparameter_search`; those of the backend are in one dictionary."""

    n_trials: int | None
    """Number of trials to start; None for as many as `timeout` allows."""
    directions: list[str]
    """`minimize` or `maximize`, one for each objective."""
    is_direction_implied: bool = False
    """True if the user passed no direction."""
    final_model: Literal["best", "last"] = "best"
    """Which trial's model the Trainer has after the search."""
    backend: dict[str, Any] = field(default_factory=dict)
    """Options of the backend, by name."""

    @property
    def has_several_objectives(self) -> bool:
        """Return whether there are several objectives."""
        return len(self.directions) > 1


class SearchOwner(Protocol):
    """The object that holds the current search of a Trainer, a `HyperparameterSearch`."""

    current: SearchRun | None


class Transport(NamedTuple):
    """Functions that move a Trainer to another process."""

    portable: Callable[[Trainer], Any]
    """Returns a copy of a Trainer that can be pickled."""
    revive: Callable[[Any], tuple[Trainer, SearchOwner]]
    """Returns, in the other process, the Trainer of such a copy and the owner of its search."""


class SearchRun:
    """State of a search, from its first trial to its result.

    Args:
        trainer: the Trainer.
        options: the options of the search.
        transport: moves the Trainer to the processes of Ray.
    """

    def __init__(
        self, trainer: Trainer, options: SearchOptions, transport: Transport | None = None
    ) -> None:
        self.trainer = trainer
        self.options = options
        self.transport = transport
        self.original_arguments = OriginalArguments(trainer)

        # With several objectives there may be several best models.
        keeps_best = options.final_model == "best" and not options.has_several_objectives
        self.best_model = BestModel(options.directions[0], enabled=keeps_best)
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
            start: what it starts with.

        Returns:
            The objective of the last evaluation. If there was none during the training, one after
            it.

        Raises:
            optuna.TrialPruned: the pruner ended it.
        """
        trainer = self.trainer
        self._begin(trial, start)
        try:
            trainer.train(resume_from_checkpoint=start.checkpoint, trial=trial)
            if trainer.objective is None:
                self.judge(trainer.evaluate())
            value: Any = trainer.objective
        finally:
            free_optimizer(trainer)
        self._last_trial = trial.number
        self._last_value = value
        return value

    def completed(self) -> None:
        """Keep the model of the last trial if it is the best so far; called in every process."""
        self.best_model.keep_if_best(self.trainer, self._last_trial, self._last_value)

    def judge(self, metrics: dict[str, float]) -> float | list[float]:
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

        A trial of optuna claims its folder, so that folders of other searches are left alone.
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
        if not is_address(output_dir):
            folder = claim_folder(output_dir, name, start.owner)
        elif folder in self.folders.values():
            # `hp_name` returned the same name for two trials.
            folder = folder.with_name(f"{name}-{number}")
        self.folders[number] = folder
        return folder

    def free_model(self) -> None:
        """Free the model before the next one is made, so that two are never in memory."""
        trainer = self.trainer
        model_reference = None if trainer.model is None else weakref.ref(trainer.model)
        no_model = cast(nn.Module, None)  # until the next trial makes one
        trainer.model = no_model
        trainer.model_wrapped = no_model
        trainer.callback_handler.model = None

        # Python frees a model that is part of a reference cycle only in a garbage collection.
        model = None if model_reference is None else model_reference()
        if model is not None and model is not self.best_model.model:
            del model
            gc.collect()

    def end(self) -> None:
        """Restore the Trainer's arguments, and give it a model if an error left it without one."""
        trainer = self.trainer
        self.original_arguments.restore()
        if trainer.model is not None:
            return
        if self.best_model.give_to(trainer, str(self.best_model.number)):
            return
        # A failure here must not hide the error that ended the search.
        try:
            set_model(trainer, trainer.call_model_init())
        except Exception as error:
            logger.warning(
                "The Trainer has no model now: model_init cannot make one without a trial (%s).",
                error,
            )

    def install_final_model(self, best: BestRun | list[BestRun]) -> None:
        """Give the Trainer the model that `final_model` asks for.

        The Trainer's arguments have been restored before.

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

        # The best trial may be of another process, or of an earlier search on the same study.
        if self.best_model.give_to(self.trainer, best.run_id) or self._load(best):
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

        # Find the metrics that the default objective adds up: the objective of such a metric alone
        # is not None.
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
            False if the trial has no checkpoint here, or only one of an older search.
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

        # A checkpoint with other values is of an older search that used the same folder.
        state = TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")
        if state.trial_params is None:
            return False
        for name, value in state.trial_params.items():
            if best.hyperparameters.get(name) != value:
                return False

        # The model may have been best before the last checkpoint.
        if trainer.args.load_best_model_at_end:
            best_checkpoint = state.best_model_checkpoint
            if best_checkpoint is not None and Path(best_checkpoint).is_dir():
                checkpoint = best_checkpoint
        set_model(trainer, trainer.call_model_init(trial))
        trainer._load_from_checkpoint(checkpoint)
        trainer.state = state
        logger.info("The Trainer holds the model of %s.", checkpoint)
        return True

    def _begin(self, trial: OptunaTrial, start: Start) -> None:
        """Restore the state of the Trainer in which every trial starts."""
        self.trainer.objective = None
        self.metrics = {}
        self.original_arguments.restore()
        self.best_model.move_to_cpu()
        # `model_init` may have failed in the previous trial; `train` inspects the model before it
        # makes its own.
        if self.trainer.model is None:
            set_model(self.trainer, self.trainer.call_model_init(trial))
        self.starts[trial.number] = start


class OriginalArguments:
    """The training arguments before a search.

    Each trial starts with them, and they are restored after the last one.

    Args:
        trainer: the Trainer, before the search.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._args = trainer.args
        self._values = _copy_containers(vars(trainer.args))

    def restore(self) -> None:
        """Restore all values, in the same object."""
        current_values = vars(self._args)
        current_values.clear()
        current_values.update(_copy_containers(self._values))
        self._trainer.args = self._args
        self._trainer._train_batch_size = self._args.train_batch_size
        recreate_accelerator(self._trainer)


def _copy_containers(values: dict[str, Any]) -> dict[str, object]:
    """Return a copy of values, with copies of the containers that a trial could change in place."""
    copied = dict(values)
    for name, value in values.items():
        if isinstance(value, (dict, list)):
            copied[name] = copy.deepcopy(value)
    return copied


def recreate_accelerator(trainer: Trainer) -> None:
    """Make an accelerator for the current arguments, and keep the user's `gather_function`."""
    gather_function = trainer.gather_function
    is_default = gather_function == trainer.accelerator.gather_for_metrics
    trainer.create_accelerator_and_postprocess()
    if not is_default:
        trainer.gather_function = gather_function


class BestModel:
    """Holds the model of the best trial so far, and no other one.

    Args:
        direction: `minimize` or `maximize`.
        enabled: False to keep no model.
    """

    def __init__(self, direction: str, *, enabled: bool) -> None:
        self._direction = direction
        self._enabled = enabled
        self._loss = math.inf
        self._state: TrainerState | None = None
        self.number: int | None = None
        """The number of the best trial so far."""
        self.model: nn.Module | None = None

    def keep_if_best(self, trainer: Trainer, number: int, value: Any) -> None:
        """Keep the Trainer's model if it is better than that of the trials before.

        Args:
            trainer: the Trainer, after a trial.
            number: the number of the trial.
            value: the objective of the trial.
        """
        # A sharded model is not kept: the best one is loaded from its checkpoint at the end.
        if not self._enabled or trainer.accelerator.strategy.configures_model:
            return
        loss = -value if self._direction == "maximize" else value
        # A trial with such an objective counts as failed, see `why_unusable`.
        is_unusable = math.isnan(loss) or loss == -math.inf
        if not is_unusable and (self.number is None or loss < self._loss):
            self.number = number
            self._loss = loss
            self.model = trainer.model
            self._state = trainer.state

    def move_to_cpu(self) -> None:
        """Move the model to the CPU, to free the memory of the device for the next trial."""
        if self.model is None or getattr(self.model, "hf_device_map", None) is not None:
            return
        try:
            self.model.to("cpu")
        except (ValueError, RuntimeError) as error:  # quantized models cannot be moved
            logger.debug("The best model stays on its device: %s", error)

    def give_to(self, trainer: Trainer, run_id: str) -> bool:
        """Give the model and its state to the Trainer; this object does not hold it any more.

        Args:
            trainer: the Trainer.
            run_id: the number of a trial.

        Returns:
            False if the model is not that of this trial.
        """
        if self.model is None or self._state is None or str(self.number) != run_id:
            return False
        set_model(trainer, self.model)
        trainer.state = self._state
        self.model = None
        return True


def set_model(trainer: Trainer, model: nn.Module) -> None:
    """Set the Trainer's model, move it to the device, and free the optimizer of the old one."""
    if trainer.place_model_on_device:
        trainer._move_model_to_device(model, trainer.args.device)
    trainer.model = model
    trainer.model_wrapped = model
    trainer.callback_handler.model = model
    free_optimizer(trainer)


def free_optimizer(trainer: Trainer) -> None:
    """Remove the references to the optimizer and the data of a finished trial.

    The state of an optimizer may be twice as large as the model.
    """
    trainer.optimizer = None
    trainer.lr_scheduler = None
    handler = trainer.callback_handler
    handler.optimizer = None
    handler.lr_scheduler = None
    handler.train_dataloader = None
    handler.eval_dataloader = None
