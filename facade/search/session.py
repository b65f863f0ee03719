"""What a Trainer asks about the hyperparameter search, or the sweep, whose trials it trains."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.search.channel import SharedTrial
from ..arguments.enums import HPSearchBackend
from ..arguments.sweep_trial import VARIABLE
from ..arguments.trial_values import apply
from . import child
from .folders import RunFolders
from .objective import judged, metric_names, objective_from, place_of
from .options import check_functions, read_options
from .retries import failures, listed
from .search import Search, Transport
from .snapshots import renew_accelerator

if TYPE_CHECKING:
    from ...callbacks import TrainerState
    from ..trainer.trainer import Trainer
    from .backend import Backend
    from .hyperparameters import BestRun

logger = logging.getLogger(__name__)

_REFUSED = {
    "wandb": "a sweep of W&B is led by its server, which chooses the values. To see the trials there, leave backend "
    "out and set report_to='wandb': each trial is a run of its own",
    "sigopt": "the service was shut down, and later versions of the reference dropped it too. Leave backend out",
}


class SearchSession:
    """The search that a Trainer is in, if any; where there is none, and no sweep either, each method does nothing.

    Args:
        trainer: the Trainer.
        transport: how it comes to the processes of Ray.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer, transport: Transport) -> None:
        self.trainer = trainer
        self.transport = transport
        self.current: Search | None = None

    def run(
        self,
        hp_space: Any,
        compute_objective: Any,
        n_trials: int | None,
        direction: str | list[str] | None,
        backend: Any,
        hp_name: Any,
        settings: dict[str, Any],
    ) -> BestRun | list[BestRun]:
        """Do what `Trainer.hyperparameter_search` says, whose parameters these are."""
        trainer, chosen = self.trainer, choose_backend(backend)
        objective = objective_from(compute_objective)
        options = read_options(n_trials, direction, settings, metric_names(compute_objective))
        check_functions(hp_space, hp_name)
        chosen.check(trainer, options)
        _require_evaluation(trainer)
        trainer.hp_space = chosen.default_hp_space if hp_space is None else hp_space
        trainer.compute_objective, trainer.hp_name, trainer.hp_search_backend = objective, hp_name, chosen.name
        self.current = search = Search(trainer, options, self.transport)
        logger.info("Search: %s.", options.goal)
        try:
            found = chosen.run(trainer, search)
            search.given.restore()
            search.settle(found)
        finally:
            search.end()
            self.current = trainer.hp_search_backend = None
        for best in found if isinstance(found, list) else [found]:
            logger.info("Best (%s): trial %s with %s.", options.goal, best.run_id, best.objective)
        failed = failures(trainer.study.get_trials(deepcopy=False)) if trainer.study is not None else {}
        if failed:
            logger.warning("Failed trials (%s):%s", len(failed), listed(failed))
        self._write_report(options.report)
        return found

    def apply(self, trial: Any) -> bool:
        """Set the values of a trial on the arguments; whether there were any."""
        trainer = self.trainer
        if trainer.hp_search_backend is None or trial is None:
            return False
        assert trainer.hp_space is not None
        by_optuna = trainer.hp_search_backend == HPSearchBackend.OPTUNA
        values = trainer.hp_space(trial) if by_optuna else dict(trial)
        apply(trainer.args, values)
        if self.current is not None:
            self.current.compare_units(values)
        logger.info("Trial: %s", getattr(trial, "params", values))
        renew_accelerator(trainer)
        return True

    def output_dir(self, folder: str, trial: Any) -> str:
        """The folder of a trial in `output_dir`; `output_dir` itself where there is no search."""
        if self.trainer.hp_search_backend is None or trial is None:
            return folder
        if self.current is not None:
            return str(self.current.run_dir(trial))
        return os.path.join(folder, RunFolders(self.trainer.hp_name).name(trial))

    def resume_from(self, wanted: str | bool | None) -> str | bool | None:
        """The checkpoint to go on from: in a trial of a sweep that was interrupted the newest, else what is wanted."""
        begins = wanted is None or wanted is False
        return True if begins and _in_sweep() and child.has_checkpoint(self.trainer.args) else wanted

    def count_training(self) -> None:
        """Number this call of `train` for the sweep that this script is a trial of."""
        if _in_sweep():
            child.count_training()

    def begin_training(self, state: TrainerState, trial: Any) -> None:
        """Note the folder of the trial, in its state and in the study, before anything is written into it."""
        if _in_sweep():
            child.begin_training(self.trainer)
        if self.current is not None and trial is not None:
            state.trial_name = os.path.basename(self.output_dir(str(self.trainer.args.output_dir), trial))
            state.is_hyper_param_search = True
            self.current.note_folder(trial)

    def note(self, metrics: dict[str, float], prefix: str) -> None:
        """Keep the metrics of an evaluation for the sweep that this script is a trial of."""
        if _in_sweep() and prefix == "eval":
            child.note(self.trainer, metrics)

    def report(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Tell the study about an evaluation in the middle of a trial, and end the trial if its pruner says so.

        With several objectives nothing is pruned: optuna compares single numbers only.

        Args:
            trial: the trial.
            step: optimizer steps done.
            metrics: of the evaluation.

        Raises:
            optuna.TrialPruned: it is to be pruned; `on_train_end` was called, so that trackers close their runs.
            SystemExit: it is to be pruned, and is a trial of a sweep.
        """
        trainer, search = self.trainer, self.current
        if _in_sweep():
            child.report(trainer, step, metrics)
        if trainer.hp_search_backend is None or trial is None:
            return
        objectives = len(search.options.directions) if search is not None else _objectives(trial)
        if search is not None:
            value = search.judge(metrics)
        else:
            assert trainer.compute_objective is not None
            value = trainer.objective = judged(trainer.compute_objective, metrics, objectives)
        if search is not None and search.is_over:
            return
        if trainer.hp_search_backend == HPSearchBackend.RAY:
            from .ray_tune import report as report_to_ray

            report_to_ray(trainer, metrics, value)
        elif objectives == 1 and (hasattr(trial, "study") or isinstance(trial, SharedTrial)):
            self._report_to_optuna(trial, step, value)

    def _report_to_optuna(self, trial: Any, step: int, value: Any) -> None:
        import optuna

        trainer, search = self.trainer, self.current
        reported, unit = (set(), "steps") if search is None else (search.reported, search.options.pruning_unit)
        place = place_of(trainer.state, step, unit)
        if place is None:
            return
        if place not in reported:  # optuna keeps the first one, and would warn
            reported.add(place)
            trial.report(value, place)
        if trial.should_prune():
            trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
            raise optuna.TrialPruned(f"Pruned at {unit[:-1]} {place}, with an objective of {value:.6g}.")

    def _write_report(self, wanted: bool | str) -> None:
        trainer = self.trainer
        if wanted is False or trainer.study is None or not trainer.is_world_process_zero():
            return
        from .report import write_report

        folder = os.path.join(str(trainer.args.output_dir), "search") if wanted is True else wanted
        try:
            write_report(trainer.study, folder)
        except Exception as error:  # hours of training would be lost for it
            logger.warning("The report of the search is not in %s: %s: %s", folder, type(error).__name__, error)


def choose_backend(name: Any) -> Backend:
    """Return the backend of a name; optuna without one.

    Raises:
        ValueError: nobody knows it.
        NotImplementedError: it is known and refused; says why.
        RuntimeError: its library is not installed.
    """
    from .optuna_backend import OptunaBackend
    from .ray_tune import RayBackend

    own: dict[str, type[Backend]] = {"optuna": OptunaBackend, "ray": RayBackend}
    word = "optuna" if name is None else str(getattr(name, "value", name))
    if word in _REFUSED:
        raise NotImplementedError(f"backend={word!r} is not supported: {_REFUSED[word]}.")
    if word not in own:
        raise ValueError(f"backend={name!r} is not known.{did_you_mean(word, own)} Choose from: {', '.join(own)}.")
    own[word].ensure_available()
    return own[word]()


def _require_evaluation(trainer: Trainer) -> None:
    package = __name__.partition(".search.")[0]
    steps = (trainer.evaluate, trainer.get_eval_dataloader)
    if trainer.eval_dataset is None and all(getattr(step, "__module__", "").startswith(package) for step in steps):
        raise ValueError(
            "hyperparameter_search judges trials by an evaluation, but there is nothing to evaluate on: pass "
            "eval_dataset=... to the Trainer."
        )


def _in_sweep() -> bool:
    return VARIABLE in os.environ


def _objectives(trial: Any) -> int:
    study = getattr(trial, "study", None)
    return 1 if study is None else len(study.directions)
