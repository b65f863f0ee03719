"""One search: its trials, one after the other, each from the same beginning."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks import TrainerState
from ...lightning_modules.checkpoints import last_intact_checkpoint
from ..arguments.enums import HPSearchBackend
from .folders import RunFolders, files_below, remove_all_but, without_checkpoints
from .hyperparameters import BestRun, default_compute_objective
from .objective import judged, warn_of_nan
from .options import SearchOptions
from .retries import FOLDER, Continuation
from .snapshots import BestModel, GivenArguments, forget_optimizer, install

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)

BATCH_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Arguments that say how much data an optimizer step sees."""


@dataclass(frozen=True)
class Transport:
    """How a Trainer comes to another process, which only the Trainer knows."""

    portable: Callable[[Any], Any]
    """A Trainer -> a copy of it that can be pickled."""
    revive: Callable[[Any], tuple[Any, Any]]
    """That copy, in the other process -> a Trainer that trains, and its `SearchSession`."""


class Search:
    """What a Trainer knows of the search that it is in.

    Args:
        trainer: the Trainer.
        options: of the search.
        transport: how the Trainer comes to other processes; None where it does not.
    """

    def __init__(self, trainer: Trainer, options: SearchOptions, transport: Transport | None = None) -> None:
        self.trainer = trainer
        self.options = options
        self.transport = transport
        self.given = GivenArguments(trainer)
        self.folders = RunFolders(trainer.hp_name)
        self.best = BestModel(options.directions[0], options.final_model == "best" and not options.several)
        self.reported: set[int] = set()
        self.metrics: dict[str, float] = {}
        self._origins: dict[int, int] = {}
        self._before: dict[Path, frozenset[str] | None] = {}  # what was in the folders of trials; None: no folder
        self._warned = False
        self._warned_of_sum = False
        self._ended: tuple[int, Any] = (-1, None)
        self.folder: str | None = None
        """Where the trial that runs has its folder, if not by its number."""
        self.pruner: Any = None
        """Who ends trials early; in the first process."""
        self.is_over = False
        """Whether nothing is reported any more: the best run is trained once more."""

    def run(self, trial: Any, continued: Continuation | None = None) -> float | list[float]:
        """Train once with the values of a trial.

        Args:
            trial: the trial.
            continued: where it goes on, if it is a retry.

        Returns:
            Its value: that of the last evaluation, made at the end where there was none.

        Raises:
            optuna.TrialPruned: the pruner had enough of it.
        """
        trainer = self.trainer
        self._begin(trial, continued)
        try:
            trainer.train(resume_from_checkpoint=continued and continued.checkpoint, trial=trial)
            if trainer.objective is None:
                self.judge(trainer.evaluate())
            value: Any = trainer.objective
        except Exception as error:
            if type(error).__name__ == "TrialPruned":
                self._prune(trial)
            raise
        finally:
            forget_optimizer(trainer)
        warn_of_nan(value, trial.number, self.metrics)
        self._ended = trial.number, value
        return value

    def completed(self) -> None:
        """Keep the model of the trial that has just ended, in every process, if it is the best so far."""
        self.best.offer(self.trainer, *self._ended)

    def judge(self, metrics: dict[str, float]) -> float | list[float]:
        """The value of an evaluation, kept as the Trainer's `objective`."""
        self.metrics = dict(metrics)
        self._warn_what_is_minimized()
        assert self.trainer.compute_objective is not None
        self.trainer.objective = judged(self.trainer.compute_objective, metrics, len(self.options.directions))
        return self.trainer.objective

    def learn_origins(self, origins: dict[int, int]) -> None:
        """Take over which trials are retries of which, and so have their folders."""
        self._origins.update(origins)

    def note_folder(self, trial: Any) -> None:
        """Let the study know in which folder a trial is, for the report."""
        if not self.is_over and hasattr(trial, "set_user_attr"):
            trial.set_user_attr(FOLDER, str(self.run_dir(trial)))

    def compare_units(self, values: Any) -> None:
        """Warn, once, where the pruner will compare steps in which different amounts of data were seen."""
        sizes = [name for name in BATCH_SIZES if name in values]
        if self.pruner is None or self.options.pruning_unit != "steps" or not sizes or self._warned:
            return
        self._warned = True
        if self.trainer.args.eval_strategy != "no" and not self.options.several:
            logger.warning(
                "The search varies %s, and %s compares trials at the same optimizer step, at which they have then seen "
                "different amounts of data. Pass pruning_unit='epochs' to compare them after the same epoch, or "
                "pruner=optuna.pruners.NopPruner() to prune none.",
                " and ".join(sizes),
                type(self.pruner).__name__,
            )

    def run_dir(self, trial: Any) -> Path:
        """The folder of a trial."""
        name = self.folder or self.folders.name(trial, self._origin(trial))
        folder = Path(str(self.trainer.args.output_dir)) / name
        if self.options.remove_pruned and folder not in self._before:
            self._before[folder] = files_below(folder) if os.path.lexists(folder) else None
        return folder

    def drop_model(self) -> None:
        """Let go of the model before the next one is made, so that there are never two."""
        trainer: Any = self.trainer
        model = None if trainer.model is None else weakref.ref(trainer.model)
        trainer.model = trainer.model_wrapped = trainer.callback_handler.model = None
        if model is not None and model() is not None and self.best.model is not model():
            gc.collect()  # something that holds it is part of a circle

    def end(self) -> None:
        """Give the Trainer its arguments back, and a model if an error has left it without one."""
        trainer = self.trainer
        self.given.restore()
        if trainer.model is None:
            held = self.best.number is not None and self.best.hand_over(trainer, str(self.best.number))
            if not held:
                self._make_any_model()

    def settle(self, found: BestRun | list[BestRun]) -> None:
        """Do what `final_model` asks for, and say what the Trainer holds; it has its arguments again.

        Args:
            found: what came out of the search.
        """
        wanted = self.options.final_model
        if wanted == "last":
            return
        if isinstance(found, list):
            logger.warning(
                "Number of best runs for these objectives: %s. The Trainer holds the model of the last trial; to train "
                "another, set the hyperparameters of the run that you choose on trainer.args, and call train().",
                len(found),
            )
            return
        if wanted == "retrain":
            self._retrain(self._trial_of(found))
        elif not self.best.hand_over(self.trainer, found.run_id) and not self._read(found):
            logger.warning(
                "The best run, trial %s, was not trained by this process and has no checkpoint here, so the Trainer "
                "holds another model. To get it, pass final_model='retrain', or set these on trainer.args and train(): "
                "%s",
                found.run_id,
                found.hyperparameters,
            )

    def _warn_what_is_minimized(self) -> None:
        """Warn, once, where the sum of metrics is minimized because nobody said anything else, as in the reference."""
        summed = self.trainer.compute_objective is default_compute_objective and self.options.implied
        if not summed or self._warned_of_sum:
            return
        self._warned_of_sum = True
        names = [name for name in self.metrics if default_compute_objective({name: 1.0}) and name != "eval_loss"]
        if names:
            logger.warning(
                "The search MINIMIZES %s: there is no compute_objective and no direction. Pass direction='maximize' if "
                "more is better, or compute_objective='loss'.",
                " + ".join(names),
            )

    def _trial_of(self, found: BestRun) -> Any:
        """A trial that gives the values of a run again, whoever asks for them."""
        if self.trainer.hp_search_backend == HPSearchBackend.RAY:
            return dict(found.hyperparameters)
        from optuna.trial import FixedTrial

        return FixedTrial(found.hyperparameters, number=int(found.run_id))

    def _retrain(self, trial: Any) -> None:
        """One more training, with the values of the best run, in the folder `best`."""
        self.folder, self.is_over = "best", True
        try:
            self.trainer.train(trial=trial)
        finally:
            self.folder = None
            self.given.restore()

    def _read(self, found: BestRun) -> bool:
        """Read the model of another process from the checkpoint that it left; not one that an older search left."""
        host, trial = self.trainer, self._trial_of(found)
        if isinstance(trial, dict):
            self.folder = self.folders.name_of_ray(found.run_id, trial)
        folder = self.run_dir(trial)
        newest = last_intact_checkpoint(folder) if folder.is_dir() else None
        if newest is None:
            return False
        state = TrainerState.load_from_json(Path(newest) / "trainer_state.json")
        if state.trial_params is None or any(found.hyperparameters.get(k) != v for k, v in state.trial_params.items()):
            return False
        chosen = state.best_model_checkpoint if host.args.load_best_model_at_end else None
        chosen = chosen if chosen is not None and Path(chosen).is_dir() else newest
        install(host, host.call_model_init(trial))
        host._load_from_checkpoint(chosen)
        host.state = state
        logger.info("The Trainer holds the model of %s.", chosen)
        return True

    def _make_any_model(self) -> None:
        try:
            install(self.trainer, self.trainer.call_model_init())
        except Exception as error:  # the one that ended the search is more important
            logger.warning("The Trainer has no model now: model_init cannot make one without a trial (%s).", error)

    def _begin(self, trial: Any, continued: Continuation | None) -> None:
        self.trainer.objective = None
        self.metrics = {}
        self.given.restore()
        self.best.make_room()
        self.reported = set()
        if continued is not None:
            self._origins[trial.number] = continued.origin
            self._take_over(self.run_dir(trial))
            for step, value in continued.reports.items():
                trial.report(value, step)
            self.reported = set(continued.reports)

    def _origin(self, trial: Any) -> Any:
        number: Any = getattr(trial, "number", None)
        return self._origins.get(number, number)

    def _prune(self, trial: Any) -> None:
        trainer = self.trainer
        if self.options.remove_pruned and trainer.args.should_save:
            folder = self.run_dir(trial)
            before = self._before[folder]
            remove_all_but(folder, before or (), made=before is None)

    def _take_over(self, folder: Path) -> None:
        """Count the checkpoints that an earlier process left for this trial as its own."""
        before = self._before.get(folder)
        if before:
            kept = without_checkpoints(before)
            self._before[folder] = kept or None
