"""Stop a training early at signals and time limits, with a checkpoint to resume from."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from ...callbacks import EVENTS, JITCheckpointCallback, TimeLimitCallback, TrainerCallback
from ...callbacks.checkpoint_manager import save_at_once
from ...lightning_modules.common.weak_attribute import WeakAttribute

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)


class SignalListening:
    """Manages the callbacks that listen to signals, and the flag that worker processes read.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.newest_checkpoint: str | None = None
        """The last checkpoint of this training."""
        self.own_listener: JITCheckpointCallback | None = None
        """The listener created by this object. It is in the list of callbacks only with
        `enable_jit_checkpoint`, because scripts compare that list with their own.
        """

    @property
    def handled(self) -> tuple[int, ...]:
        """Return the signals that stop a training with a checkpoint."""
        args = self.trainer.args
        signals = tuple(self.trainer.checkpoint_on_signals)
        if args.enable_jit_checkpoint:
            return tuple(dict.fromkeys((signal.SIGTERM, *signals)))
        if args.save_strategy == "no":
            return ()
        return signals

    @cached_property
    def shared_flag(self) -> torch.Tensor:
        """Flag in shared memory: True while the training listens to signals."""
        return torch.zeros(1, dtype=torch.bool, device="cpu").share_memory_()

    @property
    def is_leaving(self) -> bool:
        """Return whether a signal stops the training."""
        return any(callback.is_stopping for callback in self.listeners())

    @property
    def time_is_up(self) -> bool:
        """Return whether a time limit stops the training."""
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, TimeLimitCallback) and callback.stopped:
                return True
        return False

    @property
    def is_interrupted(self) -> bool:
        """Return whether the training stops early with a checkpoint to resume from."""
        return self.is_leaving or self.time_is_up

    def listeners(self) -> list[JITCheckpointCallback]:
        """Return all callbacks that listen to signals, including those of the user."""
        listeners: list[JITCheckpointCallback] = []
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, JITCheckpointCallback):
                listeners.append(callback)
        if self.own_listener is not None and not self._is_listed:
            listeners.append(self.own_listener)
        return listeners

    @property
    def _is_listed(self) -> bool:
        """Whether `own_listener` is in the list of callbacks."""
        return self.own_listener in self.trainer.callback_handler.callbacks

    @contextlib.contextmanager
    def stop_listening_at_end(self) -> Iterator[None]:
        """Stop listening at the end of the `with` block, and re-raise a received signal."""
        self.newest_checkpoint = None
        try:
            yield
        finally:
            listeners = self.listeners()
            self.trainer.callback_handler.final_listeners = {}
            if not self._is_listed:
                self.own_listener = None
            for listener in listeners:
                listener.stop_listening()

            # If the user was told that the training stops, log how to resume it.
            has_announced_stop = any(listener.has_announced_stop for listener in listeners)
            if has_announced_stop and self.newest_checkpoint is not None:
                logger.warning(
                    "The checkpoint is %s. To resume from it: "
                    "trainer.train(resume_from_checkpoint=True)",
                    self.newest_checkpoint,
                )

        # Not in the `finally` block: an error of the training takes precedence.
        for listener in listeners:
            listener.raise_received_signal()

    def begin_training(self) -> None:
        """Install or remove listeners according to arguments and attributes."""
        trainer = self.trainer
        handler = trainer.callback_handler

        # Exclude signals that a listener of the user handles.
        signals = list(self.handled)
        for listener in self.listeners():
            if listener is not self.own_listener:
                signals = [number for number in signals if number not in listener.signals]

        # With `enable_jit_checkpoint` it is in the list of callbacks.
        if trainer.args.enable_jit_checkpoint:
            listener = self.own_listener
            if listener is None or not self._is_listed:
                listener = self.add_listener()
            listener.signals = tuple(signals)
            return

        # Otherwise, an unlisted listener gets the events.
        if self.own_listener is not None and self._is_listed:
            trainer.remove_callback(self.own_listener)
        self.own_listener = None
        handler.final_listeners = {}
        if signals:
            self.own_listener = JITCheckpointCallback(
                tuple(signals),
                # Reference the Trainer instead of its training, so that callbacks can copy the
                # Trainer.
                save=partial(save_at_once, trainer),
                required_signals=(),
                on_change=self._tell_workers,
            )
            handler.final_listeners = _events(self.own_listener)

    def add_listener(self) -> JITCheckpointCallback:
        """Add the callback of `enable_jit_checkpoint` to the list, where scripts can find it."""
        listener = JITCheckpointCallback(on_change=self._tell_workers)
        listener.set_trainer(self.trainer)
        self.own_listener = listener
        self.trainer.add_callback(listener)
        return listener

    def _tell_workers(self, listening: bool) -> None:
        self.shared_flag.fill_(listening)


def _events(listener: JITCheckpointCallback) -> dict[str, Callable[..., object]]:
    """Return the methods of an unlisted listener, by event."""
    methods: dict[str, Callable[..., object]] = {}
    for event in EVENTS:
        # These two only call `jit_manager`, which scripts assign to a listed callback.
        if event in ("on_step_begin", "on_pre_optimizer_step"):
            continue
        if getattr(type(listener), event) is not getattr(TrainerCallback, event):
            methods[event] = getattr(listener, event)
    return methods
