"""What ends a training before its time: signals (`checkpoint_on_signals`, `enable_jit_checkpoint`), a time limit."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ...callbacks import EVENTS, JITCheckpointCallback, TimeLimitCallback, TrainerCallback
from ...lightning_modules.common.weak_attribute import WeakAttribute

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class SignalListening:
    """The callbacks by which a training listens to signals, and what worker processes know of that.

    Args:
        host: the Trainer whose trainings a signal ends with a checkpoint.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host
        self.newest_checkpoint: str | None = None
        """The checkpoint that was written last."""
        self._listener: JITCheckpointCallback | None = None
        # Where nobody asked for it; it is in no list, as scripts know the callbacks that are theirs.

    @property
    def handled(self) -> tuple[int, ...]:
        """The signals that end a training with a checkpoint, as arguments and attributes have it now."""
        args, given = self.host.args, tuple(self.host.checkpoint_on_signals)
        if args.enable_jit_checkpoint:
            return tuple(dict.fromkeys((signal.SIGTERM, *given)))
        return () if args.save_strategy == "no" else given

    @cached_property
    def shared_flag(self) -> torch.Tensor:
        """Whether the training listens now, in memory that worker processes see."""
        return torch.zeros(1, dtype=torch.bool).share_memory_()

    @property
    def is_leaving(self) -> bool:
        """Whether a signal is what stops the training, so that its end is left to the one that goes on from here."""
        return any(callback.leaving for callback in self.listeners())

    @property
    def time_is_up(self) -> bool:
        """Whether a time limit stops the training, with a checkpoint from which it may go on."""
        limits = [one for one in self.host.callback_handler.callbacks if isinstance(one, TimeLimitCallback)]
        return any(one.stopped and one.save for one in limits)

    @property
    def is_interrupted(self) -> bool:
        """Whether the training stops before its end, with a checkpoint to go on from."""
        return self.is_leaving or self.time_is_up

    def listeners(self) -> list[JITCheckpointCallback]:
        """Return all callbacks that listen to signals, the user's own too."""
        unlisted = [] if self._listener is None else [self._listener]
        listed = self.host.callback_handler.callbacks
        return [one for one in listed if isinstance(one, JITCheckpointCallback)] + unlisted

    @contextlib.contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Let nobody listen any more at the end, and pass on a signal that stopped the training."""
        self.newest_checkpoint = None
        try:
            yield
        finally:
            listeners, self._listener = self.listeners(), None
            self.host.callback_handler.unlisted = {}
            for callback in listeners:
                callback.stop_listening()
            if any(callback.told for callback in listeners):
                self._say_how_to_go_on()
        for callback in listeners:
            callback.pass_on()

    def _say_how_to_go_on(self) -> None:
        if self.newest_checkpoint is not None:
            logger.warning(
                "The checkpoint is %s. To go on from it: trainer.train(resume_from_checkpoint=True)",
                self.newest_checkpoint,
            )

    def begin_training(self, save: Callable[[], None]) -> None:
        """Listen, or do not, as arguments and attributes have it now.

        Args:
            save: writes a checkpoint in the middle of something else.
        """
        host, wanted = self.host, self.host.args.enable_jit_checkpoint
        own = [callback for callback in self.listeners() if callback.on_change == self._tell_workers]
        for callback in own[1:] if wanted else own:
            host.remove_callback(callback)
        taken = {number for one in self.listeners() if one not in own for number in one.signals}
        signals = tuple(number for number in self.handled if number not in taken)
        if not wanted:
            self._listener = self._listening(signals, save) if signals else None
            host.callback_handler.unlisted = {} if self._listener is None else _events(self._listener)
        elif own:
            own[0].signals, own[0].save = signals, save
        else:
            listener = self._listening(signals, save, insisted_on=(signal.SIGTERM,))
            listener.set_trainer(host)
            host.add_callback(listener)

    def _listening(
        self, signals: Iterable[int], save: Callable[[], None], insisted_on: Iterable[int] = ()
    ) -> JITCheckpointCallback:
        return JITCheckpointCallback(signals, save=save, insisted_on=insisted_on, on_change=self._tell_workers)

    def _tell_workers(self, listening: bool) -> None:
        self.shared_flag.fill_(listening)


def _events(listener: JITCheckpointCallback) -> dict[str, object]:
    """Its methods, by the events that it listens to; at others it only obeys managers, which it has none of."""
    cls = type(listener)
    return {
        event: getattr(listener, event)
        for event in EVENTS
        if event not in ("on_step_begin", "on_pre_optimizer_step")
        and getattr(cls, event) is not getattr(TrainerCallback, event)
    }
