"""A checkpoint just in time, when the process is asked to end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from .base import TrainerCallback
from .state import TrainerControl, TrainerState

logger = logging.getLogger(__name__)


class JITCheckpointCallback(TrainerCallback):
    """As the class of that name in `transformers`, but a run that a signal stops does not end like one that is done.

    From `on_train_begin` on, a signal asks for a checkpoint at the end of the step: one with everything that is due at
    that step, so that a resumed run has the numbers of one that was never stopped. Then training stops. Nothing is
    waited for first (in the reference three seconds), further signals change nothing, and the handlers that were there
    before are there again after the training, however it ends.

    With several processes it does not matter which of them gets the signal. Each tells the others at every step,
    without waiting for their answer until the next step, so all of them stop at the same one, a step later.

    The callback itself sets `should_save` and `should_training_stop`, so it works with any loop that has these events.
    `Trainer.train` does two things more: it calls `stop_listening`, and `pass_on` at the very end.

    Args:
        signals: what to listen to, SIGTERM by default. Python handles signals in the main thread only, so in a
            training in another thread nothing is listened to.
        save: writes a checkpoint of the present state. With it, a signal in the middle of an evaluation saves at once,
            and once more after the evaluation; and one after the last step saves what would be lost otherwise.
    """

    reads_checkpoints = False

    def __init__(self, signals: Iterable[int] = (signal.SIGTERM,), *, save: Callable[[], None] | None = None) -> None:
        self.signals = tuple(signals)
        self.save = save
        self.leaving = False
        """Whether this is what stops the training, or saves in the middle of it."""
        self.received: int | None = None
        """The signal that this process, or with several of them any process, got."""
        self._previous: dict[int, Any] = {}
        self._listening_in: int | None = None
        self._others: _Others | None = None
        self._saved: tuple[int, bool] | None = None
        self._at_epoch_end = False

    @property
    def is_listening(self) -> bool:
        """Whether signals of this process come here."""
        return self._listening_in == os.getpid()

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Begin to listen; a training that starts over goes on listening."""
        if not self.is_listening:
            self.leaving, self.received, self._saved = False, None, None
            self.start_listening()

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Note that the end of the epoch before is over."""
        self._at_epoch_end = False

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Save and stop, unless the epoch ends here as well: then that has to come first."""
        if self._asked() and (self.leaving or not _ends_epoch(state, control)):
            self._leave(state, control)

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Save and stop; after a stop in the middle of the epoch, nothing is due here."""
        self._at_epoch_end = True
        asked = self._asked()
        if self.leaving:
            control.should_log = control.should_evaluate = control.should_save = False
        elif asked:
            self._leave(state, control)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Save at once, as an evaluation may take longer than there is time; then let it go on."""
        if self._asked() and (self._saved is None or self._saved[0] != state.global_step):
            self._save_now(state)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Save and stop, with the evaluation done."""
        if self._asked():
            self._leave(state, control)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl | None:
        """Stop after a checkpoint that was written anyway."""
        self._saved = (state.global_step, True)
        complete = (self._at_epoch_end or not _ends_epoch(state, control)) and not getattr(
            args, "save_only_model", False
        )
        if self._asked() and not self.leaving and complete:
            self._say(state)
            self.leaving = control.should_training_stop = True

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Stop listening; a signal that came after the last step still gets its checkpoint."""
        if not self.is_listening:
            return
        if self._asked(now=True) and not self.leaving:
            self.leaving = True
            if self._saved != (state.global_step, True):
                self._say(state)
                self._save_now(state)
        self.stop_listening()

    def start_listening(self) -> None:
        """Take the signals over; in the main thread only, and only from handlers that can be put back."""
        self._others = _Others() if _processes() > 1 else None
        self._listening_in = os.getpid()
        if threading.current_thread() is not threading.main_thread():
            logger.warning("Signals are not listened to, as training does not run in the main thread of the process.")
            return
        for number in self.signals:
            if signal.getsignal(number) is None:
                logger.warning("%s is not listened to, for a library handles it already.", _name(number))
            else:
                self._previous[number] = signal.signal(number, self._receive)

    def stop_listening(self) -> None:
        """Put back the handlers that were there, where they have not been replaced since; twice is fine."""
        self._listening_in = None
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)
        others, self._others = self._others, None
        if others is not None:
            others.leave()

    def pass_on(self) -> None:
        """Hand a signal that stopped the training to whoever would have got it.

        That is the handler that was there before; where there was none, so that the signal would have ended the
        process, the interpreter exits with 128 plus the number of the signal, by way of a `SystemExit`.

        Raises:
            SystemExit: see above.
        """
        number, self.received = self.received, None
        leaving, self.leaving = self.leaving, False
        if number is None or not leaving:
            return
        if signal.getsignal(number) == signal.SIG_DFL:
            sys.exit(128 + number)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(number)

    def _receive(self, number: int, frame: Any) -> None:
        """Only note it: between any two instructions of the training there is little else that can be done."""
        if self._listening_in != os.getpid():  # a process that was forked off, which is to end as any other
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif self.received is None:
            self.received = number

    def _asked(self, now: bool = False) -> bool:
        """Whether to stop, the same in all processes, which call this at the same places."""
        if not self.is_listening:
            return False
        if self._others is None:
            return self.received is not None
        agreed = self._others.exchange(self.received or 0, now)
        self.received = self.received or agreed or None
        return agreed > 0

    def _leave(self, state: TrainerState, control: TrainerControl) -> None:
        if not self.leaving:
            self._say(state)
        self.leaving = control.should_save = control.should_training_stop = True

    def _save_now(self, state: TrainerState) -> None:
        self._saved = (state.global_step, False)
        leaving, self.leaving = self.leaving, True
        if self.save is not None:
            self.save()
        self.leaving = leaving

    def _say(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            logger.warning(
                "%s: training stops at step %s, with a checkpoint to go on from.",
                _name(self.received),
                state.global_step,
            )


class _Others:
    """Tells all processes of a signal; over the network of the hosts, so that no accelerator is waited for."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._group: Any = dist.new_group(backend="gloo")
        self._under_way: Any = None
        self._heard: Any = None
        self.agreed = 0

    def exchange(self, number: int, now: bool) -> int:
        """Say which signal there was here, 0 for none, and hear what all said the last time; with `now`, this time."""
        import torch
        import torch.distributed as dist

        if not self.agreed:
            self._hear()
        if not self.agreed:
            self._heard = torch.tensor([number], dtype=torch.int32)
            self._under_way = dist.all_reduce(self._heard, dist.ReduceOp.MAX, group=self._group, async_op=True)
            if now:
                self._hear()
        return self.agreed

    def leave(self) -> None:
        """Give up what is needed for talking, unless this process fails in the middle of it: the others may be gone."""
        import torch.distributed as dist

        if self._under_way is None and dist.is_initialized():
            dist.destroy_process_group(self._group)

    def _hear(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.wait()
            self.agreed = int(self._heard)


def _processes() -> int:
    """How many processes train together; 1 also where torch is not in use."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def _ends_epoch(state: TrainerState, control: TrainerControl) -> bool:
    """Whether the end of the epoch comes next, in the uninterrupted run as well."""
    return control.should_training_stop or control.should_epoch_stop or (state.epoch or 0) % 1 == 0


def _name(number: int | None) -> str:
    return "A signal" if number is None else signal.Signals(number).name
