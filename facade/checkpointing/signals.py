"""Early ends of a training: signals (`checkpoint_on_signals`, `enable_jit_checkpoint`) and time
limits.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ...callbacks import EVENTS, JITCheckpointCallback, TimeLimitCallback, TrainerCallback
from ...lightning_modules.common.weak_attribute import WeakAttribute

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)


class SignalListening:
    """Manage the callbacks that listen to signals, and the flag that worker processes read.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.newest_checkpoint: str | None = None
        """The last checkpoint of this training."""
        # The default listener; not in the list of callbacks, which scripts compare with their own.
        self._listener: JITCheckpointCallback | None = None

    @property
    def handled(self) -> tuple[int, ...]:
        """Return the signals that end a training with a checkpoint."""
        args, given = self.trainer.args, tuple(self.trainer.checkpoint_on_signals)
        if args.enable_jit_checkpoint:
            return tuple(dict.fromkeys((signal.SIGTERM, *given)))
        return () if args.save_strategy == "no" else given

    @cached_property
    def shared_flag(self) -> torch.Tensor:
        """Flag in shared memory: True while the training listens to signals."""
        return torch.zeros(1, dtype=torch.bool, device="cpu").share_memory_()

    @property
    def is_leaving(self) -> bool:
        """Return whether a signal stops the training, so that a resumed training has to finish
        it.
        """
        return any(callback.is_stopping for callback in self.listeners())

    @property
    def time_is_up(self) -> bool:
        """Return whether a time limit stops the training with a checkpoint to resume from."""
        limits = [
            one
            for one in self.trainer.callback_handler.callbacks
            if isinstance(one, TimeLimitCallback)
        ]
        return any(one.stopped and one.save for one in limits)

    @property
    def is_interrupted(self) -> bool:
        """Return whether the training stops early with a checkpoint to resume from."""
        return self.is_leaving or self.time_is_up

    def listeners(self) -> list[JITCheckpointCallback]:
        """Return all callbacks that listen to signals, also those of the user."""
        unlisted = [] if self._listener is None else [self._listener]
        listed = self.trainer.callback_handler.callbacks
        return [one for one in listed if isinstance(one, JITCheckpointCallback)] + unlisted

    def own(self) -> list[JITCheckpointCallback]:
        """Return the listeners that were made here."""
        return [
            callback for callback in self.listeners() if callback.on_change == self._tell_workers
        ]

    @contextlib.contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Stop listening at the end of the block, and re-raise a signal that stopped the
        training.
        """
        self.newest_checkpoint = None
        try:
            yield
        finally:
            listeners, self._listener = self.listeners(), None
            self.trainer.callback_handler.final_listeners = {}
            for callback in listeners:
                callback.stop_listening()
            if self.newest_checkpoint is not None and any(
                callback.has_announced_stop for callback in listeners
            ):
                logger.warning(
                    "The checkpoint is %s. To go on from it: "
                    "trainer.train(resume_from_checkpoint=True)",
                    self.newest_checkpoint,
                )
        for callback in listeners:
            callback.raise_received_signal()

    def begin_training(self, save: Callable[[], None]) -> None:
        """Install or remove listeners according to arguments and attributes.

        Args:
            save: writes a checkpoint immediately, outside of the regular events.
        """
        trainer, wanted = self.trainer, self.trainer.args.enable_jit_checkpoint
        own = self.own()
        for callback in own[1:] if wanted else own:
            trainer.remove_callback(callback)
        taken = {number for one in self.listeners() if one not in own for number in one.signals}
        signals = tuple(number for number in self.handled if number not in taken)
        if wanted:
            listener = own[0] if own else self.add_listener()
            listener.signals, listener.save = signals, save
        else:
            quiet = JITCheckpointCallback(
                signals, save=save, required_signals=(), on_change=self._tell_workers
            )
            self._listener = quiet if signals else None
            trainer.callback_handler.final_listeners = _events(quiet) if signals else {}

    def add_listener(self) -> JITCheckpointCallback:
        """Add the callback of `enable_jit_checkpoint`, whose manager scripts set up before a
        training.
        """
        listener = JITCheckpointCallback(on_change=self._tell_workers)
        listener.set_trainer(self.trainer)
        self.trainer.add_callback(listener)
        return listener

    def _tell_workers(self, listening: bool) -> None:
        self.shared_flag.fill_(listening)


def _events(listener: JITCheckpointCallback) -> dict[str, Callable[..., object]]:
    """Return the methods of an unlisted listener by event, without those that only serve
    resource managers.
    """
    cls = type(listener)
    return {
        event: getattr(listener, event)
        for event in EVENTS
        if event not in ("on_step_begin", "on_pre_optimizer_step")
        and getattr(cls, event) is not getattr(TrainerCallback, event)
    }
