"""State and control of a training run."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._files import write_whole

logger = logging.getLogger(__name__)


class ExportableState:
    """As `transformers.ExportableState`: mix it into a callback whose progress belongs in a
    checkpoint.

    `state()` returns `{"args": {...}, "attributes": {...}}`, both of plain JSON values: `args` are
    the arguments to construct the object again, `attributes` are set on it afterwards.
    """

    def state(self) -> dict[str, Any]:
        """Return what is needed to build this object again; every subclass defines it."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method `state` that returns args and attributes."
        )

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Any:
        """Build the object that `state()` described."""
        exported = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(exported, name, value)
        return exported


@dataclass
class TrainerControl(ExportableState):
    """As `transformers.TrainerControl`: callbacks raise these switches, the loop reads and
    resets them.
    """

    should_training_stop: bool = False
    """Leave training after the current step. Stays up until the next training begins."""
    should_epoch_stop: bool = False
    """Leave the current epoch. Taken down when the next epoch begins."""
    should_save: bool = False
    """Write a checkpoint at the end of this step. Taken down when the next step begins."""
    should_evaluate: bool = False
    """Evaluate at the end of this step. Taken down when the next step begins."""
    should_log: bool = False
    """Report the logs at the end of this step. Taken down when the next step begins."""

    should_go_back = False
    """Load weights and optimizer of the newest checkpoint at the end of this step; not in the
    reference.
    """

    def state(self) -> dict[str, Any]:
        """Return the five switches of the reference, which are constructor arguments."""
        switches = {f.name: getattr(self, f.name) for f in dataclasses.fields(TrainerControl)}
        return {"args": switches, "attributes": {}}


def is_exportable(candidate: object) -> bool:
    """Return whether `candidate` is an `ExportableState`: ours, or a class of that name from
    another library.
    """
    return any(base.__name__ == ExportableState.__name__ for base in type(candidate).__mro__)


def collect_states(candidates: Iterable[Any]) -> dict[str, Any]:
    """Return the states by class name, as a checkpoint stores them.

    One object of a class is stored as its state, several as a list of states in the given order.

    Raises:
        TypeError: one of `candidates` is not an `ExportableState`.
    """
    states: dict[str, list[dict[str, Any]]] = {}
    for candidate in candidates:
        if not is_exportable(candidate):
            raise TypeError(
                f"stateful_callbacks holds a {type(candidate).__name__}, which is no "
                "ExportableState."
            )
        states.setdefault(type(candidate).__name__, []).append(candidate.state())
    return {name: found[0] if len(found) == 1 else found for name, found in states.items()}


@dataclass
class TrainerState:
    """As `transformers.TrainerState`, with the same JSON file, which is written whole or not at
    all.

    One *step* is one update of the weights, however many micro-batches went into it.
    """

    epoch: float = 0
    """Epochs done, with the fraction of the current one."""
    global_step: int = 0
    """Steps done."""
    max_steps: int = 0
    """Steps that this run is going to do in all."""
    logging_steps: int = 500
    """Steps between two logs."""
    eval_steps: int = 500
    """Steps between two evaluations."""
    save_steps: int = 500
    """Steps between two checkpoints."""
    train_batch_size: int | None = None
    """Samples in one micro-batch of one process."""
    num_train_epochs: int = 0
    """Epochs that this run is going to do, the last of them perhaps in part."""
    num_input_tokens_seen: int = 0
    """Input tokens so far, where the arguments ask for counting them."""
    total_flos: float = 0
    """Floating point operations so far, where the model can tell."""
    log_history: list[dict[str, Any]] = None  # pyright: ignore[reportAssignmentType] - made in __post_init__
    """Every log of the run, oldest first."""
    best_metric: float | None = None
    """The best value of the metric that chooses the best model."""
    best_global_step: int | None = None
    """The step that gave `best_metric`."""
    best_model_checkpoint: str | None = None
    """The checkpoint folder that belongs to `best_metric`."""
    is_local_process_zero: bool = True
    """True in the first process of each machine."""
    is_world_process_zero: bool = True
    """True in the first process of all."""
    is_hyper_param_search: bool = False
    """True if the run is one trial of a hyperparameter search."""
    trial_name: str | None = None
    """The name of that trial."""
    trial_params: dict[str, Any] | None = None
    """The hyperparameters of that trial."""
    stateful_callbacks: dict[str, Any] = None  # pyright: ignore[reportAssignmentType] - made in __post_init__
    """States of callbacks by class name; a list of `ExportableState` objects given here is
    turned into that.
    """

    def __post_init__(self) -> None:
        if self.log_history is None:
            self.log_history = []
        if self.stateful_callbacks is None:
            self.stateful_callbacks = {}
        elif not isinstance(self.stateful_callbacks, dict):
            self.stateful_callbacks = collect_states(self.stateful_callbacks)

    def save_to_json(self, json_path: str | os.PathLike[str]) -> None:
        """As `transformers.TrainerState.save_to_json`, but a kill in the middle leaves the old
        file.

        NaN and infinity are written as Python's json module does (`NaN`, `Infinity`). Numbers and
        arrays of numpy and torch are written as plain numbers and lists.

        Raises:
            TypeError: a value has no JSON form; nothing is written.
        """
        write_whole(json_path, self.to_json())

    def to_json(self) -> bytes:
        """Return the content of `trainer_state.json`.

        Raises:
            TypeError: a value has no JSON form.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        text = json.dumps(values, indent=2, sort_keys=True, default=_as_json)
        return f"{text}\n".encode()

    @classmethod
    def load_from_json(cls, json_path: str | os.PathLike[str]) -> TrainerState:
        """As `transformers.TrainerState.load_from_json`, but also for files of other versions.

        Entries that this version does not know are left out with a warning, missing entries take
        their defaults.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file holds no trainer state; the message names the file and the reason.
        """
        entries = _read_entries(json_path)
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(entries.keys() - known)
        if unknown:
            logger.warning(
                "%s has unknown entries, which are left out: %s.",
                os.fspath(json_path),
                ", ".join(unknown),
            )
        return cls(**{name: value for name, value in entries.items() if name in known})

    def compute_steps(self, args: Any, max_steps: int) -> None:
        """As `transformers.TrainerState.compute_steps`: take the three intervals from the
        arguments.

        Args:
            args: has `logging_steps`, `eval_steps` and `save_steps`; below 1 they are fractions of
                `max_steps`, and the number of steps is rounded up. `None` keeps what the state has.
            max_steps: steps of the whole run.
        """
        for name in ("logging_steps", "eval_steps", "save_steps"):
            interval = getattr(args, name)
            if interval is not None:
                setattr(self, name, math.ceil(max_steps * interval) if interval < 1 else interval)

    def init_training_references(
        self, trainer: Any, max_steps: int, num_train_epochs: int, trial: Any
    ) -> None:
        """As `transformers.TrainerState.init_training_references`: set the values known when
        training begins.

        Args:
            trainer: has `hp_name`, `_trial`, `is_local_process_zero()` and
                `is_world_process_zero()`.
            max_steps: steps of the whole run.
            num_train_epochs: epochs of the whole run.
            trial: `None`, an optuna trial, or a dict of hyperparameters.
        """
        if trainer.hp_name is not None and trainer._trial is not None:
            self.trial_name = trainer.hp_name(trainer._trial)
        self.trial_params = trial if trial is None or isinstance(trial, dict) else trial.params
        self.max_steps = max_steps
        self.num_train_epochs = num_train_epochs
        self.is_local_process_zero = trainer.is_local_process_zero()
        self.is_world_process_zero = trainer.is_world_process_zero()


def ends_epoch(state: TrainerState, control: TrainerControl) -> bool:
    """Return whether `on_epoch_end` follows this step, also in a run that is not interrupted
    here.
    """
    return control.should_training_stop or control.should_epoch_stop or (state.epoch or 0) % 1 == 0


def _as_json(value: Any) -> Any:
    """Convert arrays, tensors, dataclasses and paths to JSON values."""
    to_plain = getattr(value, "tolist", None)  # numpy and torch, numbers and arrays
    if to_plain is not None:
        return to_plain()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(
        f"{value!r} of type {type(value).__name__} has no JSON form. Convert it to a number or a "
        "string."
    )


_MUST_BE = {
    "log_history": (list, "a list"),
    "stateful_callbacks": (dict, "an object"),
    "global_step": (int, "a number"),
}


def _read_entries(json_path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON object in `json_path` and check that it can be a trainer state."""
    with open(json_path, "rb") as file:
        content = file.read()

    def unusable(reason: str) -> ValueError:
        advice = (
            "The file is damaged or was not written by a Trainer: use the one of another "
            "checkpoint."
        )
        return ValueError(f"{os.fspath(json_path)} holds no trainer state: {reason}. {advice}")

    try:
        entries = json.loads(content.decode("utf-8"))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
        raise unusable(str(error) if content.strip() else "it is empty") from error
    if not isinstance(entries, dict):
        raise unusable(f"it holds a JSON {type(entries).__name__}, not an object")
    for name, (kind, description) in _MUST_BE.items():
        value = entries.get(name)
        if value is not None and not isinstance(value, kind):
            raise unusable(f"its {name!r} is {value!r}, not {description}")
    return entries
