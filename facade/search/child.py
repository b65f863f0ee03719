"""A script that is one trial of a sweep: its arguments get the trial's values, and its evaluations are told.

The sweep writes into the environment what there is to know (`VARIABLE`); the script itself is as it was.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.search.channel import Channel
from .objective import judged, look_up
from .reporting import place_of
from .trial_files import files_below, remove_all_but, without_checkpoints

logger = logging.getLogger(__name__)

VARIABLE = "LIGHTRAINER_TRIAL"
"""Holds a `ChildTrial` as JSON."""


class PrunedBySweep(SystemExit):
    """Ends a script whose trial is pruned: like `sys.exit(0)`, so that no `except Exception` of it goes on."""

    def __init__(self, step: int) -> None:
        super().__init__(0)
        self.step = step


@dataclass(kw_only=True)
class ChildTrial:
    """What a script has to know of the trial that it is."""

    storage: str
    """The address of the study's storage."""
    study: str
    number: int
    values: dict[str, Any]
    """Those of training arguments, by name."""
    metrics: list[str]
    """The objectives."""
    result: str
    """The file for what the evaluations said."""
    run_name: str
    """The folder in `output_dir`."""
    pruner: str = "none"
    """The pruner, as the command line has it."""
    unit: str = "steps"
    """What evaluations are reported under to the pruner, `steps` or `epochs`."""
    resume: bool = False
    parent: int = 0
    """The process of the sweep."""
    trial_id: int = 0
    reported: list[int] = field(default_factory=list)
    """Steps, or epochs, of which the study knows already."""
    remove_pruned: bool = False
    """Whether what the trial writes is removed if it is pruned."""

    def as_json(self) -> str:
        """For the environment."""
        return json.dumps(asdict(self))


_known: dict[str, Any] = {}


def this_trial() -> ChildTrial | None:
    """The trial that this process is; None where it is no part of a sweep."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    if _known.get("text") != text:
        _known.update(text=text, trial=ChildTrial(**json.loads(text)))
        _end_with_parent(_known["trial"])
    return _known["trial"]


def apply_values(args: Any) -> None:
    """Set the values of the trial on training arguments that are being made, and give them a folder of their own."""
    trial = this_trial()
    if trial is None:
        return
    from .values import cast, declared_types

    declared = declared_types(args)
    for name, value in trial.values.items():
        if hasattr(args, name):
            setattr(args, name, cast(name, value, declared.get(name), getattr(args, name)))
    folder = str(args.output_dir or "trainer_output")
    if os.path.basename(folder) != trial.run_name:
        args.output_dir = os.path.join(folder, trial.run_name)


def has_checkpoint(args: Any) -> bool:
    """Whether the script should go on where an earlier process of the same trial was interrupted."""
    trial = this_trial()
    folder = Path(str(args.output_dir))
    return trial is not None and trial.resume and folder.is_dir() and last_intact_checkpoint(folder) is not None


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
    if trial is None or not trainer.is_world_process_zero():
        return
    seen = _read(trial)
    if all(_has(metrics, name) for name in trial.metrics):
        value = judged(lambda found: [look_up(found, name) for name in trial.metrics], metrics, len(trial.metrics))
        values = value if isinstance(value, list) else [value]
        seen["values"].append([place_of(trainer.state, trainer.state.global_step, trial.unit), values])
    seen["seen"] = sorted({*seen["seen"], *metrics})
    seen["folder"] = str(trainer.args.output_dir)
    _write(trial, seen)


def report(trainer: Any, step: int, metrics: dict[str, float]) -> None:
    """Tell the study about an evaluation in the middle of the training; it may be the last.

    Raises:
        MissingMetricError: the objective is a metric that does not exist.
        PrunedBySweep: the trial is to be pruned.
    """
    trial = this_trial()
    if trial is None or len(trial.metrics) > 1:
        return
    value = float(look_up(metrics, trial.metrics[0]))
    place = place_of(trainer.state, step, trial.unit)
    if trial.pruner == "none" or place is None:
        return
    channel = _known.get("channel") or _known.setdefault("channel", Channel())
    if channel.share(lambda: _is_hopeless(trial, place, value)):
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        if trainer.is_world_process_zero():
            _write(trial, {**_read(trial), "pruned": f"{trial.unit[:-1]} {place}"})
        print(f"This trial is pruned at {trial.unit[:-1]} {place}: {trial.metrics[0]} is {value:.6g}.", file=sys.stderr)
        raise PrunedBySweep(step)


def _is_hopeless(trial: ChildTrial, step: int, value: float) -> bool:
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
    return own.should_prune()


def _has(metrics: dict[str, float], name: str) -> bool:
    return name in metrics or f"eval_{name}" in metrics


def _read(trial: ChildTrial) -> dict[str, Any]:
    path = Path(trial.result)
    return json.loads(path.read_text()) if path.exists() else {"values": [], "seen": [], "pruned": None}


def _write(trial: ChildTrial, found: dict[str, Any]) -> None:
    beside = Path(f"{trial.result}.partial")
    beside.write_text(json.dumps(found))
    os.replace(beside, trial.result)


def _end_with_parent(trial: ChildTrial) -> None:
    """Let the kernel end this process when the sweep is killed: whoever goes on with it begins the trial again."""
    if sys.platform != "linux" or not trial.parent or os.getppid() != trial.parent:
        return
    import ctypes

    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
