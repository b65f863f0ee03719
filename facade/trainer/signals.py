"""`enable_jit_checkpoint`: what a signal means for a training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...callbacks import JITCheckpointCallback
from ...lightning_modules import checkpoints
from .saving import Saving
from .tokens import TokenCounting


class Interruption(TokenCounting, Saving):
    """Looks after the callbacks that listen to signals."""

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """Let nobody listen any more at the end, and pass on a signal that stopped the training."""
        try:
            yield
        finally:
            for callback in self._listeners():
                callback.stop_listening()
        for callback in self._listeners():
            callback.pass_on()

    @property
    def _is_leaving(self) -> bool:
        """Whether a signal is what stops the training, so that its end is left to the one that goes on from here."""
        return any(callback.leaving for callback in self._listeners())

    def _take_up_jit_checkpoint(self) -> None:
        """Listen, or do not, as the argument has it now."""
        own = [callback for callback in self._listeners() if callback.save == self._save_at_once]
        if self.args.enable_jit_checkpoint and not own:
            self.add_callback(JITCheckpointCallback(save=self._save_at_once))
        if not self.args.enable_jit_checkpoint:
            for callback in own:
                self.remove_callback(callback)

    def _saves_training_state(self) -> bool:
        """Also with `save_only_model`, if it is a signal that asks for the checkpoint: it is to go on from."""
        return super()._saves_training_state() or self._is_leaving

    def _save_at_once(self) -> None:
        """Write a checkpoint in the middle of something else; a full disk ends in a warning."""
        self._flush_input_tokens()
        try:
            self._save_checkpoint(self.model, self._trial)
        except OSError as error:
            checkpoints.warn_if_disk_full(error, self._get_output_dir(self._trial))

    def _listeners(self) -> list[JITCheckpointCallback]:
        callbacks = self.callback_handler.callbacks
        return [callback for callback in callbacks if isinstance(callback, JITCheckpointCallback)]
