"""One search: its options, and its trials, one after the other, each from the same arguments."""

from __future__ import annotations

import copy
import gc
import logging
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...callbacks import TrainerState
from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.common.claimed_folder import claim_folder, is_claimed
from ...lightning_modules.common.local_paths import is_address
from ..arguments.enums import HPSearchBackend
from .hyperparameters import BestRun, default_compute_objective
from .metric_objective import objective_value, why_unusable
from .retries import FOLDER, Start
from .trial_folders import folder_name

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)

OPTIONS = (
    "final_model",
    "remove_pruned",
    "resume_trials",
    "report",
    "pruning_unit",
    "enqueue",
    "begin_with",
)
"""Keywords of `hyperparameter_search` that are not the backend's."""
BATCH_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Arguments that determine the amount of data in an optimizer step."""


@dataclass(kw_only=True)
class SearchOptions:
    """Options of `hyperparameter_search` that do not depend on the backend, and the others in
    `backend`.
    """

    n_trials: int | None
    """Trials to begin; None for as many as `timeout` allows."""
    directions: list[str]
    """`minimize` or `maximize`, one for each objective."""
    metrics: list[str] = field(default_factory=list)
    """The metric of each objective, where they have names."""
    implied: bool = False
    """True if the user gave no direction."""
    final_model: Literal["best", "retrain", "last"] = "best"
    """The Trainer's model after the search: of the best trial, of one more training with its
    values, or of the last trial.
    """
    remove_pruned: bool = False
    """Remove the folders of pruned trials."""
    resume_trials: bool = True
    """Let the retry of an interrupted trial resume from its newest checkpoint."""
    pruning_unit: Literal["steps", "epochs"] = "steps"
    """Unit in which evaluations are reported to the pruner: optimizer steps, or completed
    epochs.
    """
    report: bool | str = False
    """Write a report to `output_dir/search`, or to the given folder."""
    enqueue: list[dict[str, Any]] = field(default_factory=list)
    """Values of the trials that come first; what a trial leaves out is sampled."""
    begin_with: Any = None
    """A study of optuna whose trials are taken into the new one."""
    backend: dict[str, Any] = field(default_factory=dict)
    """Options of the backend."""

    @property
    def several(self) -> bool:
        """Return whether there are several objectives."""
        return len(self.directions) > 1

    @property
    def goal(self) -> str:
        """Describe the objectives, such as `maximize accuracy`."""
        names = self.metrics or ["the objective"] * len(self.directions)
        return ", ".join(
            f"{word} {name}" for word, name in zip(self.directions, names, strict=True)
        )


class Transport(NamedTuple):
    """Functions that move a Trainer to another process."""

    portable: Callable[[Any], Any]
    """A Trainer -> a copy of it that can be pickled."""
    revive: Callable[[Any], tuple[Any, Any]]
    """That copy, in the other process -> a Trainer that trains, and its `HyperparameterSearch`."""


def enqueue(study: Any, points: list[dict[str, Any]]) -> None:
    """Queue trials with these values, unless an earlier search on this study did."""
    for point in points:
        study.enqueue_trial(point, skip_if_exists=True)


class SearchRun:
    """State of a search, from its first trial to its result.

    Args:
        trainer: the Trainer.
        options: of the search.
        transport: moves the Trainer to the processes of Ray.
    """

    def __init__(
        self, trainer: Trainer, options: SearchOptions, transport: Transport | None = None
    ) -> None:
        self.trainer = trainer
        self.options = options
        self.transport = transport
        self.given = GivenArguments(trainer)
        self.best = BestModel(
            options.directions[0], options.final_model == "best" and not options.several
        )
        self.starts: dict[int, Start] = {}
        """What trials of this process began with, by number."""
        self.places: dict[int, Path] = {}
        """The folders of trials by number."""
        self.reported: set[int] = set()
        self.metrics: dict[str, float] = {}
        self._warned: set[str] = set()
        self._ended: tuple[int, Any] = (-1, None)
        self.folder: str | None = None
        """The folder of the current trial, if not by its number."""
        self.pruner: Any = None
        """The pruner of the study, in the first process; None if it prunes nothing."""
        self.is_over = False
        """True while the best run is trained again: nothing is reported then."""

    def run(self, trial: Any, start: Start) -> float | list[float]:
        """Train once with the values of a trial.

        Args:
            trial: the trial.
            start: what it begins with.

        Returns:
            The objective of the last evaluation, which is made at the end where there was none.

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
        except Exception as error:
            if type(error).__name__ == "TrialPruned":
                self._remove_pruned(trial)
            raise
        finally:
            forget_optimizer(trainer)
        self._ended = trial.number, value
        return value

    def completed(self) -> None:
        """Keep the model of the trial that has just ended, in every process, if it is the best
        so far.
        """
        self.best.offer(self.trainer, *self._ended)

    def judge(self, metrics: dict[str, float]) -> float | list[float]:
        """Compute the value of an evaluation, and keep it as the Trainer's `objective`."""
        self.metrics = dict(metrics)
        self._warn_of_minimized_metrics()
        assert self.trainer.compute_objective is not None
        self.trainer.objective = objective_value(
            self.trainer.compute_objective, metrics, len(self.options.directions)
        )
        return self.trainer.objective

    def note_folder(self, trial: Any) -> None:
        """Record the folder of a trial in the study, for the report."""
        if not self.is_over and hasattr(trial, "set_user_attr"):
            trial.set_user_attr(FOLDER, str(self.run_dir(trial)))

    def warn_of_batch_sizes(self, values: Any) -> None:
        """Warn, once, if the pruner will compare steps with different amounts of data."""
        sizes = [name for name in BATCH_SIZES if name in values]
        if (
            self.pruner is None
            or self.options.pruning_unit != "steps"
            or not sizes
            or "sizes" in self._warned
        ):
            return
        self._warned.add("sizes")
        if self.trainer.args.eval_strategy != "no" and not self.options.several:
            logger.warning(
                "The search varies %s, and %s compares trials at the same optimizer step, after "
                "different amounts of data. Pass pruning_unit='epochs', or "
                "pruner=optuna.pruners.NopPruner() to prune none.",
                " and ".join(sizes),
                type(self.pruner).__name__,
            )

    def run_dir(self, trial: Any) -> Path:
        """Return the folder of a trial. One of optuna claims it: folders of other searches are
        left alone.
        """
        output_dir = str(self.trainer.args.output_dir)
        number: Any = getattr(trial, "number", None)
        if self.folder is not None:
            return Path(output_dir) / self.folder
        if number not in self.places:
            start = self.starts.get(number)
            name = folder_name(
                self.trainer.hp_name, trial, number if start is None else start.origin
            )
            place = Path(output_dir) / name
            if start is not None and not is_address(output_dir):
                place = claim_folder(output_dir, name, start.owner)
            elif place in self.places.values():  # equal values, or a name without them
                place = place.with_name(f"{name}-{number}")
            self.places[number] = place
        return self.places[number]

    def drop_model(self) -> None:
        """Free the model before the next one is made, so that two are never alive."""
        trainer: Any = self.trainer
        model = None if trainer.model is None else weakref.ref(trainer.model)
        trainer.model = trainer.model_wrapped = trainer.callback_handler.model = None
        if model is not None and model() is not None and self.best.model is not model():
            gc.collect()  # part of a reference cycle

    def end(self) -> None:
        """Restore the Trainer's arguments, and give it a model if an error left it without one."""
        trainer = self.trainer
        self.given.restore()
        if trainer.model is not None or self.best.hand_over(trainer, str(self.best.number)):
            return
        try:
            install(trainer, trainer.call_model_init())
        except Exception as error:  # must not hide the error that ended the search
            logger.warning(
                "The Trainer has no model now: model_init cannot make one without a trial (%s).",
                error,
            )

    def install_final_model(self, found: BestRun | list[BestRun]) -> None:
        """Give the Trainer the model that `final_model` asks for; its arguments are restored
        already.

        Args:
            found: the result of the search.
        """
        wanted = self.options.final_model
        if wanted == "last":
            return
        if isinstance(found, list):
            logger.warning(
                "Number of best runs: %s. The Trainer holds the model of the last trial; for "
                "another set the values of a run on trainer.args, and call train().",
                len(found),
            )
        elif wanted == "retrain":
            self._retrain(found)
        elif not self.best.hand_over(self.trainer, found.run_id) and not self._load(found):
            logger.warning(
                "The best run, trial %s, was not trained by this process and has no checkpoint "
                "here, so the Trainer holds another model. Pass final_model='retrain', or set "
                "these on trainer.args and train(): %s",
                found.run_id,
                found.hyperparameters,
            )

    def _warn_of_minimized_metrics(self) -> None:
        """Warn, once, if the sum of metrics is minimized by default, as in the reference."""
        summed = (
            self.trainer.compute_objective is default_compute_objective and self.options.implied
        )
        if not summed or "minimized" in self._warned:
            return
        self._warned.add("minimized")
        names = [
            name
            for name in self.metrics
            if default_compute_objective({name: 1.0}) and name != "eval_loss"
        ]
        if names:
            logger.warning(
                "The search MINIMIZES %s. Pass direction='maximize' if more is better, or "
                "compute_objective='loss'.",
                " + ".join(names),
            )

    def _trial_of(self, found: BestRun) -> Any:
        """Return a trial that suggests the values of a run."""
        if self.trainer.hp_search_backend == HPSearchBackend.RAY:
            return dict(found.hyperparameters)
        from optuna.trial import FixedTrial

        return FixedTrial(found.hyperparameters, number=int(found.run_id))

    def _retrain(self, found: BestRun) -> None:
        """Train again with the values of the best run, in the folder `best`."""
        output_dir = str(self.trainer.args.output_dir)
        trial = self._trial_of(found)
        self.folder = "best"
        if not is_address(output_dir):
            # Processes that train together have the same owner.
            owner = f"best: {sorted(found.hyperparameters.items(), key=str)}"
            self.folder = claim_folder(output_dir, self.folder, owner).name
        self.is_over = True
        self._require_model(trial)
        try:
            self.trainer.train(trial=trial)
        finally:
            self.folder = None
            self.given.restore()

    def _load(self, found: BestRun) -> bool:
        """Load the best model from the checkpoint of its trial, unless that is of an older
        search.
        """
        host = self.trainer
        trial = self._trial_of(found)
        if isinstance(trial, dict):
            self.folder = folder_name(host.hp_name, trial, found.run_id)
        elif trial.number not in self.places:
            return False
        folder = self.run_dir(trial)
        newest = last_intact_checkpoint(folder) if folder.is_dir() else None
        if newest is None:
            return False
        state = TrainerState.load_from_json(Path(newest) / "trainer_state.json")
        if state.trial_params is None or any(
            found.hyperparameters.get(k) != v for k, v in state.trial_params.items()
        ):
            return False
        chosen = state.best_model_checkpoint if host.args.load_best_model_at_end else None
        chosen = chosen if chosen is not None and Path(chosen).is_dir() else newest
        install(host, host.call_model_init(trial))
        host._load_from_checkpoint(chosen)
        host.state = state
        logger.info("The Trainer holds the model of %s.", chosen)
        return True

    def _begin(self, trial: Any, start: Start) -> None:
        self.trainer.objective = None
        self.metrics = {}
        self.given.restore()
        self.best.make_room()
        self._require_model(trial)
        self.starts[trial.number] = start
        self.reported = set(start.reported)

    def _require_model(self, trial: Any) -> None:
        """Make a model if `model_init` failed in the trial before: `train` inspects one before
        it makes its own.
        """
        if self.trainer.model is None:
            install(self.trainer, self.trainer.call_model_init(trial))

    def _remove_pruned(self, trial: Any) -> None:
        """Remove the folder of a pruned trial, which nothing else writes to."""
        folder = self.run_dir(trial)
        owner = self.starts[trial.number].owner
        if (
            self.options.remove_pruned
            and self.trainer.args.should_save
            and is_claimed(folder, owner)
        ):
            shutil.rmtree(folder, ignore_errors=True)


class GivenArguments:
    """The arguments as the user gave them: each trial begins with them, and they are restored at
    the end.

    Args:
        trainer: the Trainer, before the search.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._args = trainer.args
        self._values = _copied(vars(trainer.args))

    def restore(self) -> None:
        """Put all of them back, in the same object."""
        present = vars(self._args)
        present.clear()
        present.update(_copied(self._values))
        self._trainer.args = self._args
        self._trainer._train_batch_size = self._args.train_batch_size
        renew_accelerator(self._trainer)


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of which those that a trial could change in place are copies."""
    return {
        name: copy.deepcopy(value) if isinstance(value, (dict, list)) else value
        for name, value in values.items()
    }


def renew_accelerator(trainer: Trainer) -> None:
    """Make an accelerator for the arguments as they are now; a `gather_function` of the user
    stays.
    """
    given = trainer.gather_function
    own = given == trainer.accelerator.gather_for_metrics
    trainer.create_accelerator_and_postprocess()
    if not own:
        trainer.gather_function = given


class BestModel:
    """Keeps the model of the best trial so far in main memory: one model, however many trials there
    are.

    Args:
        direction: `minimize` or `maximize`.
        wanted: False to keep nothing.
    """

    def __init__(self, direction: str, wanted: bool) -> None:
        self._direction = direction
        self._sign = 1 if direction == "maximize" else -1
        self._wanted = wanted
        self.number: int | None = None
        self._value: float | None = None
        self.model: Any = None
        self._state: Any = None

    def offer(self, trainer: Trainer, number: int, value: Any) -> None:
        """Keep the model of a trial that has just ended, if it is the best one."""
        if (
            not self._wanted
            or why_unusable(value, [self._direction])
            or trainer.plan.strategy.configures_model
        ):
            return
        if self._value is None or self._sign * value > self._sign * self._value:
            self.number = number
            self._value = value
            self.model = trainer.model
            self._state = trainer.state

    def make_room(self) -> None:
        """Move the model to main memory before the next trial."""
        if self.model is not None and getattr(self.model, "hf_device_map", None) is None:
            try:
                self.model.to("cpu")
            except (ValueError, RuntimeError) as error:  # quantized models cannot be moved
                logger.debug("The best model stays on its device: %s", error)

    def hand_over(self, trainer: Trainer, run_id: str) -> bool:
        """Give the Trainer the model, if it is that of the trial with this number."""
        if self.model is None or str(self.number) != run_id:
            return False
        model = self.model
        self.model = None
        install(trainer, model)
        trainer.state = self._state
        return True


def install(host: Trainer, model: Any) -> None:
    """Make this the Trainer's model, on its device, without an optimizer."""
    if host.place_model_on_device:
        host._move_model_to_device(model, host.args.device)
    host.model = host.model_wrapped = model
    forget_optimizer(host)
    host.callback_handler.model = model


def forget_optimizer(trainer: Trainer) -> None:
    """Free the optimizer of a trial that has ended, which is twice as large as its model."""
    trainer.optimizer = trainer.lr_scheduler = None
    handler = trainer.callback_handler
    handler.optimizer = handler.lr_scheduler = handler.train_dataloader = (
        handler.eval_dataloader
    ) = None
