"""`checkpoint_on_signals` and `enable_jit_checkpoint`: what a signal means for a training."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator

from ...callbacks import EVENTS, JITCheckpointCallback, TrainerCallback
from ...lightning_modules import checkpoints
from .saving import Saving
from .tokens import TokenCounting


class Interruption(TokenCounting, Saving):
    """Looks after the callbacks that listen to signals."""

    _listener: JITCheckpointCallback | None = None
    """Listens where nobody asked for it; it is in no list, as scripts know the callbacks that are theirs."""

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """Let nobody listen any more at the end, and pass on a signal that stopped the training."""
        try:
            yield
        finally:
            listeners, self._listener = self._listeners(), None
            self.callback_handler.unlisted = {}
            for callback in listeners:
                callback.stop_listening()
        for callback in listeners:
            callback.pass_on()

    @property
    def _is_leaving(self) -> bool:
        """Whether a signal is what stops the training, so that its end is left to the one that goes on from here."""
        return any(callback.leaving for callback in self._listeners())

    def _apply_signals(self) -> None:
        """Listen, or do not, as arguments and attributes have it now."""
        own = [callback for callback in self._listeners() if callback.save == self._save_at_once]
        for callback in own if not self.args.enable_jit_checkpoint else own[1:]:
            self.remove_callback(callback)
        taken = {number for one in self._listeners() if one not in own for number in one.signals}
        signals = [number for number in self._handled_signals if number not in taken]
        if not self.args.enable_jit_checkpoint:
            self._listener = self._make_listener(signals) if signals else None
            self.callback_handler.unlisted = {} if self._listener is None else _events(self._listener)
        elif own:
            own[0].signals = tuple(signals)
        else:
            listener = self._make_listener(signals, insisted_on=(signal.SIGTERM,))
            listener.set_trainer(self)
            self.add_callback(listener)

    def _make_listener(self, signals: Iterable[int], insisted_on: Iterable[int] = ()) -> JITCheckpointCallback:
        return JITCheckpointCallback(
            signals, save=self._save_at_once, insisted_on=insisted_on, on_change=self._tell_workers
        )

    def _tell_workers(self, listening: bool) -> None:
        self._shared_flag().fill_(listening)

    def _saves_training_state(self) -> bool:
        """Also with `save_only_model`, if it is a signal that asks for the checkpoint: it is to go on from."""
        return super()._saves_training_state() or self._is_leaving

    def _save_at_once(self) -> None:
        """Write a checkpoint in the middle of something else, to the disk; a full one ends in a warning."""
        self._flush_input_tokens()
        try:
            self._save_checkpoint(self.model, self._trial)
        except OSError as error:
            checkpoints.warn_if_disk_full(error, self._get_output_dir(self._trial))
        self._finish_writing()

    def _listeners(self) -> list[JITCheckpointCallback]:
        unlisted = [] if self._listener is None else [self._listener]
        return [one for one in self.callback_handler.callbacks if isinstance(one, JITCheckpointCallback)] + unlisted


def _events(listener: JITCheckpointCallback) -> dict[str, object]:
    """Its methods, by the events that it listens to."""
    cls = type(listener)
    return {
        event: getattr(listener, event)
        for event in EVENTS
        if getattr(cls, event) is not getattr(TrainerCallback, event)
    }
