"""States of callbacks that hold tensors, or more than JSON: a file of their own in each checkpoint."""

from __future__ import annotations

import logging
import os
from typing import Any

from ...callbacks import TimeLimitCallback
from ...callbacks.tensor_states import CALLBACK_STATES_NAME, load_state_dicts, state_dicts
from ...lightning_modules import checkpoints
from .reporting import TrainerLogging

logger = logging.getLogger(__name__)


class CallbackStates(TrainerLogging):
    """Keeps the state of each callback that has `state_dict` and `load_state_dict`, as those of Lightning do."""

    _writer: Any

    def _tensor_states(self) -> dict[str, Any]:
        return state_dicts(self.callback_handler.callbacks)

    def _save_callback_states(self, output_dir: str) -> None:
        """Write the states, if there are any; by the process that saves."""
        states = self._tensor_states() if self.args.should_save else {}
        if states:
            self._writer.tensors(states, os.path.join(output_dir, CALLBACK_STATES_NAME))

    def _load_callback_states(self, checkpoint: str) -> None:
        """Give the callbacks their states back; those of callbacks that are gone are left out, with a warning."""
        path = os.path.join(checkpoint, CALLBACK_STATES_NAME)
        if not os.path.isfile(path):
            return
        left = load_state_dicts(self.callback_handler.callbacks, checkpoints.load_torch(path))
        if left:
            logger.warning("%s holds the states of callbacks that are not there: %s", path, ", ".join(left))

    @property
    def _time_is_up(self) -> bool:
        """Whether a time limit stops the training, with a checkpoint from which it may go on."""
        limits = [one for one in self.callback_handler.callbacks if isinstance(one, TimeLimitCallback)]
        return any(one.stopped and one.save for one in limits)
