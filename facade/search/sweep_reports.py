"""Reports of a script to the sweep that it is a trial of: evaluations, folders, pruning.

A Trainer calls these functions by itself; a plain `lightning.Trainer` gets the callback of `callbacks`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.search.channel import Channel
from ..arguments.sweep_trial import ChildTrial, this_trial
from .metric_objective import look_up, objective_value, report_position
from .trial_folders import files_below, remove_all_but, without_checkpoints

_process: dict[str, Any] = {}
"""State of this process: `training`, `reported`, `channel` and `trial`."""


class PrunedBySweep(SystemExit):
    """Ends a script whose trial is pruned: like `sys.exit(0)`, so that `except Exception` does not catch it."""


class SeveralTrainings(SystemExit):
    """Ends a script whose pruner would compare evaluations of different trainings."""


def has_checkpoint(args: Any) -> bool:
    """Return whether the script should resume from a checkpoint of an interrupted process of the same trial."""
    trial = this_trial()
    folder = Path(str(args.output_dir))
    return trial is not None and trial.resume and folder.is_dir() and last_intact_checkpoint(folder) is not None


def count_training() -> None:
    """Number the trainings of this script; evaluations before the first one have the number 0."""
    _process["training"] = _process.get("training", 0) + 1


def begin_training(trainer: Any) -> None:
    """Write down the content of the folder, as the sweep removes only files that a pruned trial wrote."""
    trial = this_trial()
    if trial is None or not trial.remove_pruned or not trainer.is_world_process_zero():
        return
    folder, found = Path(str(trainer.args.output_dir)).absolute(), _read(trial)
    before = found.setdefault("before", {})
    if str(folder) not in before:
        there = files_below(folder)
        if trial.resume:
            there = without_checkpoints(there)
        before[str(folder)] = sorted(there) or None  # the Trainer has made an empty folder by now
        _write(trial, found)


def remove_written_files(found: dict[str, Any]) -> None:
    """Remove the files that a pruned trial wrote.

    Args:
        found: the content of its `ChildTrial.result`.
    """
    for folder, before in found.get("before", {}).items():
        remove_all_but(Path(folder), before or (), made=before is None)


def note(trainer: Any, metrics: dict[str, float]) -> None:
    """Write down the metrics of an evaluation of a Trainer."""
    trial = this_trial()
    if trial is not None and trainer.is_world_process_zero():
        position = report_position(trainer.state, trainer.state.global_step, trial.unit)
        _keep(trial, metrics, position, str(trainer.args.output_dir))


def report(trainer: Any, step: int, metrics: dict[str, float]) -> None:
    """Report an evaluation in the middle of a training, and end the script if its trial is pruned.

    Raises:
        MissingMetricError: the objective is a metric that does not exist.
        SeveralTrainings: an earlier training was reported, and `--training` is not given.
        PrunedBySweep: the trial is to be pruned.
    """
    trial = this_trial()
    if trial is None:
        return
    channel = _process.get("channel") or _process.setdefault("channel", Channel())
    if _is_pruned(trial, metrics, report_position(trainer.state, step, trial.unit), channel.run_on_first):
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        raise PrunedBySweep(0)


def callbacks() -> list[Any]:
    """Return the callbacks of a plain Trainer in a sweep.

    If the sweep asks for the objective only, `fit` answers and ends the script, so that nothing is written.
    """
    from ...lightning_modules.internals.lightning_import import Callback, Trainer

    class SweepReports(Callback):
        """Report logged metrics after each validation, and end the script if its trial is pruned."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if trial.values and not trial.applied:
                said = (
                    f"The sweep has values for training arguments ({', '.join(trial.values)}), and this script has none"
                )
                raise ValueError(f"{said}. Pass --values-as options, or another way in which it takes them.")

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            count_training()

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                _report_of_lightning(trial, trainer)

    trial: Any = this_trial()
    if trial is None:
        return []
    if trial.asks:
        Trainer.fit = cast(Any, lambda trainer, *args, **kwargs: _answer(trial, trainer))
    return [SweepReports()]


def _answer(trial: ChildTrial, trainer: Any) -> NoReturn:
    watching: list[Any] = [one for one in trainer.checkpoint_callbacks if getattr(one, "monitor", None)]
    for one in [*watching, *trainer.early_stopping_callbacks]:
        why = f"The script has {type(one).__name__}(monitor={one.monitor!r}, mode={one.mode!r})."
        trial.answer(one.monitor, one.mode == "max", why)
    trial.answer("val_loss", False, "No ModelCheckpoint or EarlyStopping of the script has a monitor.")


def _report_of_lightning(trial: ChildTrial, trainer: Any) -> None:
    fits = trainer.state.fn == "fit"
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    epochs = trainer.current_epoch + (fits and trainer.is_last_batch)
    position = trainer.global_step if trial.unit == "steps" else epochs or None
    folder = trainer.log_dir or trainer.default_root_dir  # a collective call
    if trainer.is_global_zero:
        _keep(trial, metrics, position, folder)

    def run_on_first(ask: Callable[[], bool]) -> bool:
        return trainer.strategy.broadcast(trainer.is_global_zero and ask())

    if fits and _is_pruned(trial, metrics, position, run_on_first):
        raise PrunedBySweep(0)


def _keep(trial: ChildTrial, metrics: Mapping[str, float], position: int | None, folder: str) -> None:
    """Add an evaluation to the result file of the trial."""
    found = _read(trial)
    if all(name in metrics or f"eval_{name}" in metrics for name in trial.metrics):
        names = trial.metrics
        value = objective_value(lambda metrics: [look_up(metrics, name) for name in names], metrics, len(names))
        values = value if isinstance(value, list) else [value]
        found["values"].append([position, values, _process.get("training", 0)])
    found["seen"] = sorted({*found["seen"], *metrics})
    found["folder"] = folder
    _write(trial, found)


def _is_pruned(trial: ChildTrial, metrics: Mapping[str, float], position: int | None, run_on_first: Any) -> bool:
    """Report an evaluation to the study, and return whether the trial is to be pruned.

    Args:
        trial: the trial of this script.
        metrics: of the evaluation.
        position: the step, or the completed epochs.
        run_on_first: runs a function in the first process, and returns the result in all.
    """
    if len(trial.metrics) > 1:
        return False
    value, training = float(look_up(metrics, trial.metrics[0])), _process["training"]
    if trial.pruner == "none" or position is None or trial.training not in (None, training):
        return False
    if _process.setdefault("reported", training) != training:
        said = "The script evaluates in more than one training: say which one --pruner compares, with --training N."
        run_on_first(lambda: bool(_write(trial, {**_read(trial), "refused": said})))
        raise SeveralTrainings(said)
    if not run_on_first(lambda: _should_prune(trial, position, value)):
        return False
    print(f"This trial is pruned at {trial.unit[:-1]} {position}: {trial.metrics[0]} is {value:.6g}.", file=sys.stderr)
    return True


def _should_prune(trial: ChildTrial, position: int, value: float) -> bool:
    import optuna

    from .samplers import make_pruner
    from .storages import open_storage

    if "trial" not in _process:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage, pruner = open_storage(trial.storage), make_pruner(trial.pruner)
        study = optuna.load_study(study_name=trial.study, storage=storage, pruner=pruner)
        study_id = storage.get_study_id_from_name(trial.study)
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        _process["trial"] = optuna.trial.Trial(study, trial_id)
    in_study = _process["trial"]
    if position not in trial.reported:
        trial.reported.append(position)
        in_study.report(value, position)
    is_pruned = in_study.should_prune()
    if is_pruned:
        _write(trial, {**_read(trial), "pruned": f"{trial.unit[:-1]} {position}"})
    return is_pruned


def _read(trial: ChildTrial) -> dict[str, Any]:
    path = Path(trial.result)
    return json.loads(path.read_text()) if path.exists() else {"values": [], "seen": [], "pruned": None}


def _write(trial: ChildTrial, found: dict[str, Any]) -> None:
    neighbour = Path(f"{trial.result}.partial")
    neighbour.write_text(json.dumps(found))
    os.replace(neighbour, trial.result)
