"""What callbacks of Lightning keep in checkpoints."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints.callback_paths import without_foreign_paths
from ...lightning_modules.common.safe_serialization import UnsafeValueError, from_plain, to_plain
from .reporting import TrainerLogging

logger = logging.getLogger(__name__)

LIGHTNING_CALLBACKS_NAME = "lightning_callbacks.pt"
"""The file of a checkpoint with the states of Lightning callbacks; the reference has none such."""

_OWN = ("epoch", "global_step", "pytorch-lightning_version", "state_dict")


class LightningSide(TrainerLogging):
    """Gives Lightning callbacks what they find in a plain Lightning Trainer: a logger, and a place in checkpoints."""

    _writer: Any
    _told_lightning: dict[str, Any] | None = None

    @contextlib.contextmanager
    def _telling_lightning(self) -> Iterator[None]:
        """Tell the callbacks once of a checkpoint, although its parts are written one by one."""
        self._told_lightning = self._tell_lightning()
        try:
            yield
        finally:
            self._told_lightning = None

    def _tell_lightning(self) -> dict[str, Any] | None:
        """A checkpoint as Lightning makes it, in which its callbacks have put what they want; None without them."""
        if self._run is None or not self._lightning_callbacks:
            return None
        trainer, module = self._run.lightning_trainer, self._run
        checkpoint: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "pytorch-lightning_version": version("lightning"),
            "state_dict": self._weights_for_lightning(),
            "callbacks": {one.state_key: state for one in self._lightning_callbacks if (state := one.state_dict())},
        }
        weights = checkpoint["state_dict"]
        for callback in self._lightning_callbacks:
            callback.on_save_checkpoint(trainer, module, checkpoint)
        if checkpoint["state_dict"] is weights:
            del checkpoint["state_dict"]
        return checkpoint

    def _weights_for_lightning(self) -> dict[str, Any]:
        """The module's, but where no process has all of them; what averages weights is refused there."""
        assert self._run is not None
        return {} if self._run.sharded else self._run.state_dict()

    def _weights_of_lightning(self) -> dict[str, Any] | None:
        """The weights to save, where a callback such as WeightAveraging wants others than the present ones."""
        told = self._told_lightning or self._tell_lightning()
        if told is None or "state_dict" not in told:
            return None
        return {name.removeprefix("model."): weight for name, weight in told["state_dict"].items()}

    def _save_lightning_callbacks(self, output_dir: str) -> None:
        """Write what the callbacks keep, if there is any; by the process that saves."""
        told = self._told_lightning
        if told is None or not self.args.should_save:
            return
        kept = _plain(told.pop("callbacks"))
        further = _plain({name: value for name, value in told.items() if name not in _OWN})
        if kept or further:
            path = os.path.join(output_dir, LIGHTNING_CALLBACKS_NAME)
            self._writer.tensors({"callbacks": kept, "further": further}, path)

    def _load_lightning_callbacks(self, checkpoint: str) -> None:
        """Let the callbacks go on from there; the model has the weights of the checkpoint already."""
        path = os.path.join(checkpoint, LIGHTNING_CALLBACKS_NAME)
        if self._run is None or not os.path.isfile(path):
            return
        stored = checkpoints.load_torch(path)
        states, further = ({name: from_plain(v) for name, v in part.items()} for part in stored.values())
        trainer, module = self._run.lightning_trainer, self._run
        states = without_foreign_paths(states, self._lightning_callbacks, checkpoint, str(self.args.output_dir))
        whole = {
            **further,
            "callbacks": states,
            "state_dict": self._weights_for_lightning(),
            "epoch": trainer.current_epoch,
        }
        whole |= {"global_step": self.state.global_step, "pytorch-lightning_version": version("lightning")}
        for callback in self._lightning_callbacks:
            callback.on_load_checkpoint(trainer, module, whole)
        for callback in self._lightning_callbacks:
            if callback.state_key in states:
                callback.load_state_dict(copy.deepcopy(states.pop(callback.state_key)))
        if states:
            logger.warning("%s holds the states of callbacks that are not there: %s", path, ", ".join(states))


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
