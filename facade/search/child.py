"""What a script that is one trial of a sweep tells the sweep: its evaluations, its folder, that it is pruned."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.search.channel import Channel
from ..arguments.sweep_trial import ChildTrial, this_trial
from .folders import files_below, remove_all_but, without_checkpoints
from .objective import judged, look_up, place_of

_known: dict[str, Any] = {}


class PrunedBySweep(SystemExit):
    """Ends a script whose trial is pruned: like `sys.exit(0)`, so that no `except Exception` of it goes on."""


def has_checkpoint(args: Any) -> bool:
    """Whether the script should go on where an earlier process of the same trial was interrupted."""
    trial = this_trial()
    folder = Path(str(args.output_dir))
    return trial is not None and trial.resume and folder.is_dir() and last_intact_checkpoint(folder) is not None


class SeveralTrainings(SystemExit):
    """Ends a script whose pruner would compare evaluations of different trainings."""


def count_training() -> None:
    """Number the trainings of this script; what is evaluated before the first one has the number 0."""
    _known["training"] = _known.get("training", 0) + 1


def begin_training(trainer: Any) -> None:
    """Note what is in the folder already, as the sweep removes what a pruned trial wrote, and nothing else."""
    trial = this_trial()
    if trial is None or not trial.remove_pruned or not trainer.is_world_process_zero():
        return
    folder, found = Path(str(trainer.args.output_dir)).absolute(), _read(trial)
    before = found.setdefault("before", {})
    if str(folder) in before:
        return
    there = files_below(folder)
    if trial.resume:
        there = without_checkpoints(there)
    before[str(folder)] = sorted(there) or None  # the Trainer has made an empty folder by now
    _write(trial, found)


def remove_what_it_wrote(found: dict[str, Any]) -> None:
    """Remove what a trial wrote that was pruned.

    Args:
        found: the content of its `ChildTrial.result`.
    """
    for folder, before in found.get("before", {}).items():
        remove_all_but(Path(folder), before or (), made=before is None)


def note(trainer: Any, metrics: dict[str, float]) -> None:
    """Keep what an evaluation says, for the sweep to read when the script has ended."""
    trial = this_trial()
    if trial is not None and trainer.is_world_process_zero():
        place = place_of(trainer.state, trainer.state.global_step, trial.unit)
        keep(trial, metrics, place, str(trainer.args.output_dir))


def keep(trial: ChildTrial, metrics: Mapping[str, float], place: int | None, folder: str) -> None:
    """Write down what an evaluation says.

    Args:
        trial: what this script is.
        metrics: of the evaluation.
        place: the step, or the completed epochs.
        folder: of the training.
    """
    seen = _read(trial)
    if all(_has(metrics, name) for name in trial.metrics):
        value = judged(lambda found: [look_up(found, name) for name in trial.metrics], metrics, len(trial.metrics))
        values = value if isinstance(value, list) else [value]
        seen["values"].append([place, values, _known.get("training", 0)])
    seen["seen"] = sorted({*seen["seen"], *metrics})
    seen["folder"] = folder
    _write(trial, seen)


def report(trainer: Any, step: int, metrics: dict[str, float]) -> None:
    """Tell the study about an evaluation in the middle of the training; it may be the last.

    Raises:
        MissingMetricError: the objective is a metric that does not exist.
        SeveralTrainings: as in `is_hopeless`.
        PrunedBySweep: the trial is to be pruned.
    """
    trial = this_trial()
    if trial is None:
        return
    place = place_of(trainer.state, step, trial.unit)
    channel = _known.get("channel") or _known.setdefault("channel", Channel())
    if is_hopeless(trial, metrics, place, channel.share):
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        raise PrunedBySweep(0)


def is_hopeless(
    trial: ChildTrial, metrics: Mapping[str, float], place: int | None, share: Callable[[Callable[[], bool]], bool]
) -> bool:
    """Report an evaluation, and return whether the trial is to be pruned.

    Args:
        trial: what this script is.
        metrics: of the evaluation.
        place: the step, or the completed epochs.
        share: calls what it is given in the first process, and returns the result in all.

    Raises:
        MissingMetricError: the objective is a metric that does not exist.
        SeveralTrainings: an earlier training of the script was reported, and it is not said which one counts.
    """
    if len(trial.metrics) > 1:
        return False
    value, training = float(look_up(metrics, trial.metrics[0])), _known["training"]
    if trial.pruner == "none" or place is None or trial.training not in (None, training):
        return False
    if _known.setdefault("reported", training) != training:
        said = "The script evaluates in more than one training: say which one --pruner compares, with --training N."
        share(lambda: bool(_write(trial, {**_read(trial), "refused": said})))
        raise SeveralTrainings(said)
    if not share(lambda: _should_prune(trial, place, value)):
        return False
    print(f"This trial is pruned at {trial.unit[:-1]} {place}: {trial.metrics[0]} is {value:.6g}.", file=sys.stderr)
    return True


def _should_prune(trial: ChildTrial, step: int, value: float) -> bool:
    import optuna

    from .choices import make_pruner
    from .storages import open_storage

    if "study" not in _known:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage, pruner = open_storage(trial.storage), make_pruner(trial.pruner)
        _known["study"] = optuna.load_study(study_name=trial.study, storage=storage, pruner=pruner)
    own = optuna.trial.Trial(_known["study"], trial.trial_id)
    if step not in trial.reported:
        trial.reported.append(step)
        own.report(value, step)
    hopeless = own.should_prune()
    if hopeless:
        _write(trial, {**_read(trial), "pruned": f"{trial.unit[:-1]} {step}"})
    return hopeless


def _has(metrics: Mapping[str, float], name: str) -> bool:
    return name in metrics or f"eval_{name}" in metrics


def _read(trial: ChildTrial) -> dict[str, Any]:
    path = Path(trial.result)
    return json.loads(path.read_text()) if path.exists() else {"values": [], "seen": [], "pruned": None}


def _write(trial: ChildTrial, found: dict[str, Any]) -> None:
    beside = Path(f"{trial.result}.partial")
    beside.write_text(json.dumps(found))
    os.replace(beside, trial.result)
