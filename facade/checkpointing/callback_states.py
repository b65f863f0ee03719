"""What callbacks keep in checkpoints: those of the Trainer API, and those of Lightning."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ...callbacks import TrainerControl, collect_states, is_exportable
from ...callbacks.tensor_states import CALLBACK_STATES_NAME, load_state_dicts, state_dicts
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints.callback_paths import without_foreign_paths
from ...lightning_modules.common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ...lightning_modules.common.weak_attribute import WeakAttribute

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer
    from ..trainer.trainer_module import TrainerModule

logger = logging.getLogger(__name__)

LIGHTNING_CALLBACKS_NAME = "lightning_callbacks.pt"
"""The file of a checkpoint with the states of Lightning callbacks; the reference has none such."""

_OWN = ("epoch", "global_step", "pytorch-lightning_version", "state_dict")
_NOT_THERE = "%s holds the states of callbacks that are not there: %s"

Writer = checkpoints.WriteNow | checkpoints.WriteLater


class CallbackStates:
    """The states of TrainerCallbacks: small ones in `trainer_state.json`, those with tensors in a file of their own.

    Args:
        host: the Trainer whose callbacks they are.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host

    def exportable(self) -> list[Any]:
        """Return the callbacks, and the control, that are an `ExportableState`."""
        everything = [*self.host.callback_handler.callbacks, self.host.control]
        return [callback for callback in everything if is_exportable(callback)]

    def exported(self) -> dict[str, Any]:
        """Return the states of those, by class name, as `trainer_state.json` has them."""
        return collect_states(self.exportable())

    def restore_exported(self) -> None:
        """Make the callbacks anew from the states in `trainer.state`, where there are any of their class."""
        missing = []
        for name, stored in self.host.state.stateful_callbacks.items():
            states = stored if isinstance(stored, list) else [stored]
            present = [callback for callback in self.exportable() if type(callback).__name__ == name]
            if not present:
                missing.append(name)
            for callback, state in zip(present, states, strict=False):
                self._replace(callback, type(callback).from_state(state))
        if missing:
            logger.warning(
                "The checkpoint has states of callbacks that are not included here, and ignored: %s", ", ".join(missing)
            )

    def tensors(self) -> dict[str, Any]:
        """Return the states of callbacks that have `state_dict` and `load_state_dict`, as those of Lightning do."""
        return state_dicts(self.host.callback_handler.callbacks)

    def save(self, folder: str, writer: Writer) -> None:
        """Write those with tensors, if there are any; to be called by the process that saves."""
        states = self.tensors()
        if states:
            writer.tensors(states, os.path.join(folder, CALLBACK_STATES_NAME))

    def load(self, checkpoint: str) -> None:
        """Give the callbacks their states with tensors back; those of callbacks that are gone are left out."""
        path = os.path.join(checkpoint, CALLBACK_STATES_NAME)
        if not os.path.isfile(path):
            return
        left = load_state_dicts(self.host.callback_handler.callbacks, checkpoints.load_torch(path))
        if left:
            logger.warning(_NOT_THERE, path, ", ".join(left))

    def _replace(self, callback: Any, restored: Any) -> None:
        if isinstance(callback, TrainerControl):
            self.host.control = restored
        else:
            present = self.host.callback_handler.callbacks
            present[present.index(callback)] = restored


class LightningCallbackStates:
    """The states of Lightning callbacks, which find in checkpoints what a plain Lightning Trainer puts there.

    Args:
        host: the Trainer.
        callbacks: its Lightning callbacks; the list may grow.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer, callbacks: list[Any]) -> None:
        self.host = host
        self.callbacks = callbacks
        self.checkpoint: dict[str, Any] | None = None
        """The checkpoint that is being written, as Lightning makes it."""

    @contextlib.contextmanager
    def told(self, run: TrainerModule | None) -> Iterator[None]:
        """Tell the callbacks once of a checkpoint, although its parts are written one by one."""
        self.checkpoint = self._tell(run)
        try:
            yield
        finally:
            self.checkpoint = None

    def weights(self, run: TrainerModule | None) -> dict[str, Any] | None:
        """Return the weights to save, where a callback such as WeightAveraging wants others than the present ones."""
        told = self.checkpoint or self._tell(run)
        if told is None or "state_dict" not in told:
            return None
        return {name.removeprefix("model."): weight for name, weight in told["state_dict"].items()}

    def save(self, folder: str, writer: Writer) -> None:
        """Write what the callbacks keep, if there is any; to be called by the process that saves."""
        told = self.checkpoint
        if told is None:
            return
        kept = _plain({name: _without_function(state) for name, state in told.pop("callbacks").items()})
        further = _plain({name: value for name, value in told.items() if name not in _OWN})
        if kept or further:
            writer.tensors({"callbacks": kept, "further": further}, os.path.join(folder, LIGHTNING_CALLBACKS_NAME))

    def load(self, checkpoint: str, run: TrainerModule) -> None:
        """Let the callbacks of a run go on from there; the model has the weights of the checkpoint already."""
        path = os.path.join(checkpoint, LIGHTNING_CALLBACKS_NAME)
        if not os.path.isfile(path):
            return
        stored = checkpoints.load_torch(path)
        states, further = ({name: from_plain(v) for name, v in part.items()} for part in stored.values())
        states = without_foreign_paths(states, self.callbacks, checkpoint, str(self.host.args.output_dir))
        whole = {**further, "callbacks": states, **_lightnings_own(run), "state_dict": _weights_of(run)}
        whole["global_step"] = self.host.state.global_step
        for callback in self.callbacks:
            callback.on_load_checkpoint(run.lightning_trainer, run, whole)
        for callback in self.callbacks:
            if callback.state_key in states:
                if hasattr(callback, "running_mean"):
                    callback.running = callback.running_mean  # where Lightning's SpikeDetection looks for it
                callback.load_state_dict(copy.deepcopy(states.pop(callback.state_key)))
        if states:
            logger.warning(_NOT_THERE, path, ", ".join(states))

    def _tell(self, run: TrainerModule | None) -> dict[str, Any] | None:
        """A checkpoint as Lightning makes it, in which its callbacks have put what they want; None without them."""
        if run is None or not self.callbacks:
            return None
        weights = _weights_of(run)
        states = {one.state_key: state for one in self.callbacks if (state := one.state_dict())}
        checkpoint: dict[str, Any] = {**_lightnings_own(run), "state_dict": weights, "callbacks": states}
        for callback in self.callbacks:
            callback.on_save_checkpoint(run.lightning_trainer, run, checkpoint)
        if checkpoint["state_dict"] is weights:
            del checkpoint["state_dict"]
        return checkpoint


def _lightnings_own(run: TrainerModule) -> dict[str, Any]:
    trainer = run.lightning_trainer
    return {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": version("lightning"),
    }


def _weights_of(run: TrainerModule) -> dict[str, Any]:
    """The module's, but where no process has all of them; what averages weights is refused there."""
    return {} if run.strategy.spread is not None else run.state_dict()


def _without_function(state: Any) -> Any:
    """As it is, but for the function of `SWALR`, which is in its state before torch 2.10 and made anew by any."""
    schedule = state.get("scheduler_state") if isinstance(state, dict) else None
    if not isinstance(schedule, dict) or "anneal_func" not in schedule:
        return state
    return {**state, "scheduler_state": {name: value for name, value in schedule.items() if name != "anneal_func"}}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Without what could not be read again, which is named in a warning."""
    written = {}
    for name, value in values.items():
        try:
            written[name] = to_plain(value)
        except UnsafeValueError as error:
            logger.warning(
                "The checkpoint goes without %r, as it holds what cannot be written safely: %s.", name, error
            )
    return written
