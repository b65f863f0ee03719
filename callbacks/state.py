"""State and control of a training run."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self, cast

from ._files import write_atomically

logger = logging.getLogger(__name__)


class ExportableState:
    """Mix into callbacks whose progress is kept in checkpoints.

    Works like `transformers.ExportableState`.

    `state()` returns `{"args": {...}, "attributes": {...}}`, both of plain JSON values: `args` are
    the arguments to construct the object again, `attributes` are set on it afterwards.
    """

    def state(self) -> dict[str, Any]:
        """Return what is needed to build this object again; every subclass defines it."""
        raise NotImplementedError(
            f"{type(self).__name__} must define `state()`, which returns its args and attributes."
        )

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Build the object that `state()` described.

        Args:
            state: "args" of the constructor, and "attributes" to set; either may be missing.
        """
        exported = cls(**state.get("args", {}))
        for name, value in state.get("attributes", {}).items():
            setattr(exported, name, value)
        return exported


@dataclass
class TrainerControl(ExportableState):
    """Hold the switches that callbacks set, and the training loop reads and resets.

    Works like `transformers.TrainerControl`.
    """

    should_training_stop: bool = False
    """Leave training after the current step. Reset when the next training begins."""
    should_epoch_stop: bool = False
    """Leave the current epoch. Reset when the next epoch begins."""
    should_save: bool = False
    """Write a checkpoint at the end of this step. Reset when the next step begins."""
    should_evaluate: bool = False
    """Evaluate at the end of this step. Reset when the next step begins."""
    should_log: bool = False
    """Report the logs at the end of this step. Reset when the next step begins."""

    # Not a field, as a field would be a constructor argument that transformers does not have.
    should_go_back = False
    """Load weights and optimizer of the newest checkpoint at the end of a step, before
    `on_step_end`. If it is set in that event or in a later one, it applies to the next step.
    """

    def _new_training(self) -> None:
        """Reset the switch that stops a training."""
        self.should_training_stop = False

    def _new_epoch(self) -> None:
        """Reset the switch that stops an epoch."""
        self.should_epoch_stop = False

    def _new_step(self) -> None:
        """Reset the switches of a step."""
        self.should_save = False
        self.should_evaluate = False
        self.should_log = False

    def state(self) -> dict[str, Any]:
        """Return the five switches that are constructor arguments."""
        fields = dataclasses.fields(TrainerControl)
        switches = {field.name: getattr(self, field.name) for field in fields}
        return {"args": switches, "attributes": {}}


def is_exportable(candidate: object) -> bool:
    """Return whether an object is an `ExportableState`, of this package or of transformers.

    Args:
        candidate: any object.
    """
    return any(base.__name__ == ExportableState.__name__ for base in type(candidate).__mro__)


def collect_states(candidates: Iterable[Any]) -> dict[str, Any]:
    """Return the states by class name, as a checkpoint stores them.

    A single object of a class is stored as its state, several as a list of states in their order.

    Args:
        candidates: objects, each an `ExportableState`.

    Raises:
        TypeError: one of `candidates` is not an `ExportableState`.
    """
    states: dict[str, list[dict[str, Any]]] = {}
    for candidate in candidates:
        if not is_exportable(candidate):
            raise TypeError(
                f"stateful_callbacks holds a {type(candidate).__name__}, which is not an "
                "ExportableState. Derive its class from ExportableState, or leave it out."
            )
        states.setdefault(type(candidate).__name__, []).append(candidate.state())

    # The file format has a list only if there are several objects of a class.
    collected: dict[str, Any] = {}
    for class_name, states_of_class in states.items():
        is_single = len(states_of_class) == 1
        collected[class_name] = states_of_class[0] if is_single else states_of_class
    return collected


@dataclass
class TrainerState:
    """Hold the progress of a training: its steps, its history of logs, its best metric.

    Works like `transformers.TrainerState`, with the same JSON file, but written atomically.

    One *step* is one update of the weights, however many micro-batches went into it.
    """

    epoch: float = 0
    """Epochs done, with the fraction of the current one."""
    global_step: int = 0
    """Steps done."""
    max_steps: int = 0
    """Steps of the whole run."""
    logging_steps: int = 500
    """Steps between two logs."""
    eval_steps: int = 500
    """Steps between two evaluations."""
    save_steps: int = 500
    """Steps between two checkpoints."""
    train_batch_size: int | None = None
    """Samples in one micro-batch of one process."""
    num_train_epochs: int = 0
    """Epochs of the whole run; the last one may be partial."""
    num_input_tokens_seen: int = 0
    """Input tokens so far, with `include_num_input_tokens_seen`."""
    total_flos: float = 0
    """Floating point operations so far, where the model estimates them."""
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
    """States of callbacks by class name. A list of `ExportableState` objects is converted."""

    def __post_init__(self) -> None:
        # The types of the fields are those after construction; a caller may pass None.
        log_history = cast("list[dict[str, Any]] | None", self.log_history)
        stateful_callbacks = cast(
            "dict[str, Any] | Iterable[ExportableState] | None", self.stateful_callbacks
        )
        if log_history is None:
            self.log_history = []
        if stateful_callbacks is None:
            self.stateful_callbacks = {}
        elif not isinstance(stateful_callbacks, dict):
            self.stateful_callbacks = collect_states(stateful_callbacks)

    def save_to_json(self, json_path: str | os.PathLike[str]) -> None:
        """Write the state to a JSON file; a kill leaves an older file intact.

        NaN and infinity are written as Python's json module does (`NaN`, `Infinity`). Numbers and
        arrays of numpy and torch are written as plain numbers and lists.

        Args:
            json_path: the file, usually `trainer_state.json`.

        Raises:
            TypeError: a value cannot be converted to JSON; nothing is written.
        """
        write_atomically(json_path, self.to_json())

    def to_json(self) -> bytes:
        """Return the content of `trainer_state.json`.

        Raises:
            TypeError: a value cannot be converted to JSON.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        text = json.dumps(values, indent=2, sort_keys=True, default=_as_json)
        return f"{text}\n".encode()

    @classmethod
    def load_from_json(cls, json_path: str | os.PathLike[str]) -> TrainerState:
        """Read a state from a JSON file, also from one of another version.

        Unknown entries are ignored with a warning, missing entries take their defaults.

        Args:
            json_path: the file, usually `trainer_state.json`.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is not a trainer state; the message has the path and the reason.
        """
        entries = _read_entries(json_path)
        field_names = {field.name for field in dataclasses.fields(cls)}
        unknown_names = sorted(entries.keys() - field_names)
        if unknown_names:
            logger.warning(
                "Ignoring unknown entries of %s: %s.",
                os.fspath(json_path),
                ", ".join(unknown_names),
            )
        return cls(**{name: entries[name] for name in entries.keys() & field_names})

    def compute_steps(self, args: Any, max_steps: int) -> None:
        """Set the intervals of logs, evaluations and checkpoints, in steps.

        The Trainer calls it when a training begins.

        Args:
            args: has `logging_steps`, `eval_steps` and `save_steps`; below 1 they are fractions of
                `max_steps`, and the number of steps is rounded up. `None` leaves the interval
                unchanged.
            max_steps: steps of the whole run.
        """
        for name in ("logging_steps", "eval_steps", "save_steps"):
            interval = getattr(args, name)
            if interval is None:
                continue
            if interval < 1:
                interval = math.ceil(max_steps * interval)
            setattr(self, name, interval)

    def init_training_references(
        self, trainer: Any, max_steps: int, num_train_epochs: int, trial: Any
    ) -> None:
        """Set the values that are known when training begins.

        The Trainer calls it.

        Args:
            trainer: has `hp_name`, `_trial`, `is_local_process_zero()` and
                `is_world_process_zero()`.
            max_steps: steps of the whole run.
            num_train_epochs: epochs of the whole run.
            trial: `None`, an optuna trial, or a dict of hyperparameters.
        """
        # In a hyperparameter search.
        if trainer.hp_name is not None and trainer._trial is not None:
            self.trial_name = trainer.hp_name(trainer._trial)
        if trial is None or isinstance(trial, dict):
            self.trial_params = trial
        else:
            self.trial_params = trial.params

        self.max_steps = max_steps
        self.num_train_epochs = num_train_epochs
        self.is_local_process_zero = trainer.is_local_process_zero()
        self.is_world_process_zero = trainer.is_world_process_zero()


def ends_epoch(state: TrainerState, control: TrainerControl) -> bool:
    """Return whether `on_epoch_end` follows this step, whether or not the run is interrupted."""
    is_last_step_of_epoch = (state.epoch or 0) % 1 == 0
    return control.should_training_stop or control.should_epoch_stop or is_last_step_of_epoch


def _as_json(value: object) -> Any:
    """Convert arrays, tensors, dataclasses and paths to JSON values."""
    # Numbers and arrays of numpy and torch.
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        return tolist()

    # The values of its fields are converted in turn, which dataclasses.asdict would copy.
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    raise TypeError(
        f"{value!r} of type {type(value).__name__} cannot be converted to JSON. Convert it to a "
        "number or a string."
    )


_ENTRY_TYPES = {
    "log_history": (list, "a list"),
    "stateful_callbacks": (dict, "an object"),
    "global_step": (int, "a number"),
}
"""The type of an entry of `trainer_state.json`, and its name in messages."""


def _read_entries(json_path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON object in `json_path` and check that it can be a trainer state."""
    with open(json_path, "rb") as file:
        content = file.read()

    try:
        entries = json.loads(content.decode("utf-8"))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
        reason = str(error) if content.strip() else "it is empty"
        raise _unusable(json_path, reason) from error

    if not isinstance(entries, dict):
        raise _unusable(json_path, f"it holds a JSON {type(entries).__name__}, not an object")
    state_entries = cast("dict[str, Any]", entries)
    for name, (expected_type, type_name) in _ENTRY_TYPES.items():
        value = state_entries.get(name)
        if value is not None and not isinstance(value, expected_type):
            raise _unusable(json_path, f"its {name!r} is {value!r}, not {type_name}")
    return state_entries


def _unusable(json_path: str | os.PathLike[str], reason: str) -> ValueError:
    """Return the error for a file that is not a trainer state."""
    return ValueError(
        f"{os.fspath(json_path)} is not a trainer state: {reason}. The file is damaged or was not "
        "written by a Trainer: use another checkpoint."
    )
