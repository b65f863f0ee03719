"""Save and load optimizer, schedule, loss scale, and the callbacks of both APIs."""

from __future__ import annotations

import copy
import logging
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ...callbacks import TrainerControl, collect_states, is_exportable
from ...callbacks.tensor_states import CALLBACK_STATES_NAME, load_state_dicts, state_dicts
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints.callback_paths import remove_foreign_paths
from ...lightning_modules.checkpoints.state_guards import loading_schedule
from ...lightning_modules.common.file_names import SCALER_NAME, SCHEDULER_NAME
from ...lightning_modules.common.safe_serialization import from_plain, plain_entries
from ...lightning_modules.common.weak_attribute import WeakAttribute

if TYPE_CHECKING:
    from .. import Trainer, TrainingRun
    from ..strategies.strategy import Strategy

logger = logging.getLogger(__name__)

LIGHTNING_CALLBACKS_NAME = "lightning_callbacks.pt"
"""File of a checkpoint with the states of Lightning callbacks. The reference has no such file."""

_LIGHTNING_ENTRIES = ("epoch", "global_step", "pytorch-lightning_version", "state_dict")
"""Lightning's own entries in a checkpoint dict. Callbacks added all others."""

_NOT_INCLUDED = (
    "%s has states of callbacks that are not included in this Trainer; ignoring them: %s"
)


def load_optimizer_and_schedule(strategy: Strategy, schedule: Any, checkpoint: str) -> None:
    """Load optimizer and schedule from a checkpoint, or warn if they are missing.

    Args:
        strategy: loads the state of its optimizer.
        schedule: the schedule of the learning rate.
        checkpoint: the folder of the checkpoint.
    """
    if not strategy.load_optimizer(checkpoint):
        return
    state = strategy.read_schedule(checkpoint)
    if state is None:
        logger.warning("%s has no schedule; training continues with a new one.", checkpoint)
        return
    with loading_schedule(schedule, state, os.path.join(checkpoint, SCHEDULER_NAME)):
        schedule.load_state_dict(state)
    strategy.schedule_loaded()


def load_scaler(scaler: Any, checkpoint: str) -> None:
    """Load the fp16 loss scale, or warn if it is missing."""
    path = os.path.join(checkpoint, SCALER_NAME)
    if os.path.isfile(path):
        scaler.load_state_dict(checkpoints.load_torch(path))
    else:
        logger.warning(
            "%s has no %s; fp16 continues with a new loss scale.", checkpoint, SCALER_NAME
        )


class CallbackStates:
    """Saves and restores the states of TrainerCallbacks.

    Small states are in `trainer_state.json`, states with tensors in a separate file.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def exportable(self) -> list[Any]:
        """Return the callbacks, including the control, that are an `ExportableState`."""
        everything = [*self.trainer.callback_handler.callbacks, self.trainer.control]
        return [callback for callback in everything if is_exportable(callback)]

    def exported(self) -> dict[str, Any]:
        """Return the states of exportable callbacks by class name, as in `trainer_state.json`."""
        return collect_states(self.exportable())

    def restore_exported(self) -> None:
        """Recreate callbacks from the states of their classes in `trainer.state`."""
        missing: list[str] = []
        for name, states in self.trainer.state.stateful_callbacks.items():
            if not isinstance(states, list):
                states = [states]
            callbacks = [
                callback for callback in self.exportable() if type(callback).__name__ == name
            ]
            if not callbacks:
                missing.append(name)
            for callback, state in zip(callbacks, states, strict=False):
                self._replace(callback, type(callback).from_state(state))
        if missing:
            logger.warning(_NOT_INCLUDED, "The checkpoint", ", ".join(missing))

    def tensors(self) -> dict[str, Any]:
        """Return the states of callbacks with `state_dict` and `load_state_dict`."""
        return state_dicts(self.trainer.callback_handler.callbacks)

    def load(self, checkpoint: str) -> None:
        """Load states with tensors, and warn of those without a callback."""
        path = os.path.join(checkpoint, CALLBACK_STATES_NAME)
        if not os.path.isfile(path):
            return
        callbacks = self.trainer.callback_handler.callbacks
        not_included = load_state_dicts(callbacks, checkpoints.load_torch(path))
        if not_included:
            logger.warning(_NOT_INCLUDED, path, ", ".join(not_included))

    def load_best(self) -> None:
        """Load states that belong to the weights of the best checkpoint, such as averages.

        Callbacks with a method `load_best_state_dict` have such states.
        """
        callbacks: list[Any] = []
        for callback in self.trainer.callback_handler.callbacks:
            if hasattr(callback, "load_best_state_dict"):
                callbacks.append(callback)
        best = self.trainer.state.best_model_checkpoint
        if not callbacks or best is None:
            return

        path = os.path.join(best, CALLBACK_STATES_NAME)
        if not os.path.isfile(path):
            logger.warning("%s is missing: using the last averages of weights, not the best.", path)
            return
        states = checkpoints.load_torch(path)
        for callback in callbacks:
            # Callbacks of the same class get their states in order.
            states_of_class = states.get(type(callback).__name__)
            if states_of_class:
                callback.load_best_state_dict(states_of_class.pop(0))

    def _replace(self, callback: object, restored: Any) -> None:
        if isinstance(callback, TrainerControl):
            # The saved control still requests the checkpoint in which it was saved.
            restored.should_save = False
            self.trainer.control = restored
        else:
            callbacks = self.trainer.callback_handler.callbacks
            callbacks[callbacks.index(callback)] = restored


class LightningCallbackStates:
    """Saves and restores Lightning callbacks with the checkpoint dict of a Lightning Trainer.

    Args:
        trainer: the Trainer.
        callbacks: its Lightning callbacks; the list may grow.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer, callbacks: list[Any]) -> None:
        self.trainer = trainer
        self.callbacks = callbacks
        self.checkpoint: dict[str, Any] | None = None
        """The Lightning checkpoint of the current save; `CheckpointSaver` sets it back to None."""

    def weights(self, run: TrainingRun | None) -> dict[str, Any] | None:
        """Return the weights to save if a callback such as WeightAveraging replaces them."""
        checkpoint = self.checkpoint or self.collected(run)
        if checkpoint is None or "state_dict" not in checkpoint:
            return None
        weights: dict[str, Any] = {}
        for name, weight in checkpoint["state_dict"].items():
            weights[name.removeprefix("model.")] = weight
        return weights

    def save(self, folder: str, files: checkpoints.CheckpointFiles) -> None:
        """Write the states of the callbacks, if there are any. Called on the saving process."""
        assert self.checkpoint is not None
        states = self.checkpoint.pop("callbacks")
        states = {name: _without_function(state) for name, state in states.items()}

        # Collect entries that callbacks have added to the checkpoint besides their states.
        entries: dict[str, Any] = {}
        for name, value in self.checkpoint.items():
            if name not in _LIGHTNING_ENTRIES:
                entries[name] = value

        content = {"callbacks": plain_entries(states), "further": plain_entries(entries)}
        if content["callbacks"] or content["further"]:
            files.write_tensors(content, os.path.join(folder, LIGHTNING_CALLBACKS_NAME))

    def load(self, checkpoint: str, run: TrainingRun) -> None:
        """Restore the callbacks of a run, after the weights have been loaded."""
        path = os.path.join(checkpoint, LIGHTNING_CALLBACKS_NAME)
        if not os.path.isfile(path):
            return
        content = checkpoints.load_torch(path)
        states = {name: from_plain(state) for name, state in content["callbacks"].items()}
        states = remove_foreign_paths(
            states, self.callbacks, checkpoint, str(self.trainer.args.output_dir)
        )

        # As in Lightning, every callback gets the whole checkpoint first, then its own state.
        lightning_checkpoint: dict[str, Any] = {
            name: from_plain(value) for name, value in content["further"].items()
        }
        lightning_checkpoint["callbacks"] = states
        lightning_checkpoint |= _entries_of_lightning(run)
        lightning_checkpoint["state_dict"] = _weights_of(run)
        lightning_checkpoint["global_step"] = self.trainer.state.global_step
        for callback in self.callbacks:
            callback.on_load_checkpoint(run.lightning_trainer, run.module, lightning_checkpoint)
        for callback in self.callbacks:
            if callback.state_key not in states:
                continue
            # `SpikeDetection.load_state_dict` of Lightning expects this attribute.
            if hasattr(callback, "running_mean"):
                callback.running = callback.running_mean
            # As in Lightning, pass a copy.
            callback.load_state_dict(copy.deepcopy(states.pop(callback.state_key)))
        if states:
            logger.warning(_NOT_INCLUDED, path, ", ".join(states))

    def collected(self, run: TrainingRun | None) -> dict[str, Any] | None:
        """Return a checkpoint dict with the entries of Lightning callbacks; None outside of `fit`.

        Calls their `on_save_checkpoint`, so call it only once per checkpoint.
        """
        if run is None or not self.callbacks:
            return None

        # Collect the states of the callbacks.
        states: dict[str, Any] = {}
        for callback in self.callbacks:
            state = callback.state_dict()
            if state:
                states[callback.state_key] = state

        # Let callbacks add entries, or replace the weights.
        weights = _weights_of(run)
        checkpoint: dict[str, Any] = {
            **_entries_of_lightning(run),
            "state_dict": weights,
            "callbacks": states,
        }
        for callback in self.callbacks:
            callback.on_save_checkpoint(run.lightning_trainer, run.module, checkpoint)
        if checkpoint["state_dict"] is weights:
            del checkpoint["state_dict"]
        return checkpoint


def _entries_of_lightning(run: TrainingRun) -> dict[str, object]:
    trainer = run.lightning_trainer
    return {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": version("lightning"),
    }


def _weights_of(run: TrainingRun) -> dict[str, Any]:
    """Return the weights of the module; empty if it is sharded, where weight averaging is not
    supported.
    """
    if run.strategy.sharded_model is not None:
        return {}
    return run.module.state_dict()


def _without_function(state: object) -> Any:
    """Remove the annealing function from states of `SWALR` before torch 2.10.

    It cannot be saved safely, and the schedule recreates it when the state is loaded.
    """
    if not isinstance(state, dict):
        return state
    schedule = state.get("scheduler_state")
    if not isinstance(schedule, dict) or "anneal_func" not in schedule:
        return state
    schedule = dict(schedule)
    del schedule["anneal_func"]
    return state | {"scheduler_state": schedule}
