"""Save a checkpoint when the process receives a signal to end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ._signal_exchange import SignalExchange, processes
from .base import TrainerCallback
from .state import TrainerControl, TrainerState, ends_epoch

logger = logging.getLogger(__name__)

_DEFAULT: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
_INTERRUPTED = b"\nInterrupted. Saving a checkpoint; press Ctrl-C again to stop immediately.\n"
_REQUEST = 1 << 16
"""In the place of a signal: the script asks for a checkpoint and the end of the training."""


class CheckpointManager:
    """As `transformers.trainer_jit_checkpoint.CheckpointManager`: asks for a checkpoint,
    `kill_wait` after a SIGTERM.

    A manager that a script puts into `jit_manager` replaces the listening of the callback, which is
    its own manager otherwise.

    Args:
        trainer: the Trainer whose state is written.
        kill_wait: in seconds.
    """

    def __init__(self, trainer: Any, kill_wait: float = 3) -> None:
        self.trainer = trainer
        self.is_checkpoint_requested = False
        self.kill_wait = kill_wait
        self._original_sigterm_handler: Any = None

    def setup_signal_handler(self) -> None:
        """Listen to SIGTERM from now on."""
        self._original_sigterm_handler = signal.signal(signal.SIGTERM, self._sigterm_handler)

    def execute_jit_checkpoint(self) -> None:
        """Write a checkpoint of the present state."""
        self.is_checkpoint_requested = False
        self.trainer._save_checkpoint(self.trainer.model, trial=None)

    def _sigterm_handler(self, signum: int, frame: Any) -> None:
        if not self.is_checkpoint_requested:
            threading.Timer(self.kill_wait, self._enable_checkpoint).start()

    def _enable_checkpoint(self) -> None:
        self.is_checkpoint_requested = True


class JITCheckpointCallback(TrainerCallback):
    """As the class of that name in `transformers`, but a run stopped by a signal does not end like
    a finished one.

    From `on_train_begin` on, a signal asks for a checkpoint at the end of the step: one with
    everything that is due at that step, so that a resumed run has the numbers of one that was never
    stopped. Then training stops. It does not wait first (the reference waits three seconds); a
    second SIGINT (Ctrl-C) interrupts at once, other signals are ignored; and the previous handlers
    are restored after the training, however it ends.

    With several processes it does not matter which of them gets the signal. All exchange signals at
    every step or, where steps are short, every few milliseconds, and get the result at the next
    step. So all of them stop at the same one, a step or a few later.

    The callback itself sets `should_save` and `should_training_stop`, so it works with any loop
    that has these events. `Trainer.train` does two things more: it calls `stop_listening`, and
    `pass_on` at the very end.

    Args:
        signals: what to listen to, SIGTERM by default. Python handles signals in the main thread
            only, so in a training in another thread nothing is listened to.
        save: writes a checkpoint of the present state. With it, a signal in the middle of an
            evaluation saves at once, and once more after the evaluation; and one after the last
            step saves what would be lost otherwise.
        insisted_on: those among `signals` that were asked for by name, by default all. They are
            handled although the process ignores them, and if they cannot be, a warning says so; the
            others stay ignored.
        on_change: called with whether signals are listened to, when that changes.
    """

    reads_checkpoints = False

    def __init__(
        self,
        signals: Iterable[int] = (signal.SIGTERM,),
        *,
        save: Callable[[], None] | None = None,
        insisted_on: Iterable[int] | None = None,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        self.signals = tuple(signals)
        self.save = save
        self.insisted_on = self.signals if insisted_on is None else tuple(insisted_on)
        self.on_change = on_change or (lambda listening: None)
        self.leaving = False
        """True while this callback stops the training, or saves in the middle of it."""
        self.told = False
        """True once the first process has logged that this callback stops the present or the
        last training.
        """
        self.received: int | None = None
        """The signal that this process, or with several of them any process, got, or `_REQUEST`."""
        self._previous: dict[int, Any] = {}
        self._listening_in: int | None = None
        self._interrupted = False
        self._speaks = True
        self._exchange: SignalExchange | None = None
        self._saved: tuple[int, bool] | None = None
        self._at_epoch_end = False
        self._left_at = 0
        self.trainer: Any = None
        """The Trainer, once `set_trainer` was called."""
        self.jit_manager: CheckpointManager | JITCheckpointCallback | None = None
        """As in the reference, set by `set_trainer` where `enable_jit_checkpoint` is set: the
        callback itself.
        """

    def set_trainer(self, trainer: Any) -> None:
        """As in the reference: called by the Trainer that listens with this callback, before a
        training.
        """
        self.trainer = trainer
        if not trainer.args.enable_jit_checkpoint:
            return
        self.jit_manager = self
        if self.save is None:
            self.save = partial(_save, trainer)

    @property
    def is_checkpoint_requested(self) -> bool:
        """True after a signal. Setting it to True requests a checkpoint too, but `train` then
        returns normally.
        """
        return self.received is not None

    @is_checkpoint_requested.setter
    def is_checkpoint_requested(self, requested: bool) -> None:
        if not requested:
            self.received = None
        elif self.received is None:
            self.received = _REQUEST

    def setup_signal_handler(self) -> None:
        """Listen from now on, and not from `on_train_begin` on."""
        if not self.is_listening:
            self.start_listening()

    def execute_jit_checkpoint(self) -> None:
        """Write a checkpoint of the present state."""
        self.save_now(self.trainer.state)

    @property
    def is_listening(self) -> bool:
        """Return whether this callback handles the signals of this process."""
        return self._listening_in == os.getpid()

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to listen; a training that starts over keeps listening."""
        if not self.is_listening and self._foreign_manager() is None:
            self.leaving = False
            self.told = False
            self.received = None
            self._saved = None
            self._interrupted = False
            self._speaks = state.is_world_process_zero
            self.start_listening()

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note that the end of the epoch before is over."""
        self._at_epoch_end = False

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and stop, where a manager of the script's own asks for it."""
        self._obey(control)

    on_pre_optimizer_step = on_step_begin

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and stop, unless the epoch ends here as well: then that has to come first."""
        if self._obey(control):
            control.should_save = False
        elif self._asked() and (self.leaving or not ends_epoch(state, control)):
            self._leave(state, control)

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and stop; after a stop in the middle of the epoch, nothing is due here."""
        self._at_epoch_end = True
        asked = self._asked()
        if self._obey(control):
            control.should_save = False
        elif self.leaving:
            control.should_log = control.should_evaluate = control.should_save = False
        elif asked:
            self._leave(state, control)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save at once, as an evaluation may take longer than there is time; then let it continue.

        Ctrl-C interrupts the evaluation after saving; a resumed training starts with that
        evaluation.

        Raises:
            KeyboardInterrupt: see above.
        """
        if not self._asked():
            return
        if self._saved is None or self._saved[0] != state.global_step:
            self.save_now(state)
        if self.received == signal.SIGINT and self.save is not None:
            handler = self._previous.get(signal.SIGINT, signal.default_int_handler)
            if handler is signal.default_int_handler:
                self._warn(state)
                self._give_up()
                raise KeyboardInterrupt

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and stop, with the evaluation done."""
        if self._asked():
            self._leave(state, control)

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop after a checkpoint that was written anyway."""
        if getattr(args, "save_only_model", False) and not self.leaving:
            return
        self._saved = (state.global_step, True)
        if (
            self._asked()
            and not self.leaving
            and (self._at_epoch_end or not ends_epoch(state, control))
        ):
            self._warn(state)
            self.leaving = control.should_training_stop = True

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop listening; a signal that came after the last step still gets its checkpoint."""
        manager = self._foreign_manager()
        if manager is not None and manager._original_sigterm_handler is not None:
            signal.signal(signal.SIGTERM, manager._original_sigterm_handler)
        if not self.is_listening:
            return
        if self._asked(now=True) and not self.leaving:
            self.leaving = True
            if self._saved != (state.global_step, True):
                self._warn(state)
                self.save_now(state)
        self.stop_listening()

    def start_listening(self) -> None:
        """Take the signals over; in the main thread only, and only from handlers that can be put
        back.
        """
        level = logging.WARNING if self.insisted_on else logging.DEBUG
        try:
            self._exchange = SignalExchange() if processes() > 1 else None
        except RuntimeError as error:
            logger.warning(
                "Signals are not listened to, as the processes cannot tell each other over "
                "gloo: %s",
                error,
            )
            return
        self._listening_in = os.getpid()
        if threading.current_thread() is not threading.main_thread():
            logger.log(
                level,
                "Signals are not listened to, as training is not in the main thread of the "
                "process.",
            )
            return
        for number in self.signals:
            handler = signal.getsignal(number)
            if handler is None:
                logger.log(
                    level,
                    "%s is not handled: a library has installed its own handler.",
                    _name(number),
                )
            elif handler != signal.SIG_IGN or number in self.insisted_on:
                self._previous[number] = signal.signal(number, self._receive)
        self.on_change(True)

    def stop_listening(self) -> None:
        """Put back the handlers that were there, where they have not been replaced since; twice
        is fine.
        """
        self._let_go()
        if self._exchange is not None:
            self._exchange.leave()
            self._exchange = None

    def pass_on(self) -> None:
        """Pass a signal that stopped the training on to its previous handler.

        That is the handler that was there before; where there was none, so that the signal would
        have ended the process, the interpreter exits with 128 plus the number of the signal, by way
        of a `SystemExit`.

        Raises:
            SystemExit: see above.
        """
        number = self.received
        stopped_training = self.leaving
        self.received = None
        self.leaving = False
        if number is None or number == _REQUEST or not stopped_training:
            return
        if signal.getsignal(number) == signal.SIG_DFL:
            sys.exit(128 + number)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(number)

    def _receive(self, number: int, frame: Any) -> None:
        """Record the signal only: a handler runs between arbitrary instructions of the training."""
        # a process that was forked off, which is to end as any other
        if self._listening_in != os.getpid():
            signal.signal(number, self._previous.get(number, _DEFAULT.get(number, signal.SIG_DFL)))
            signal.raise_signal(number)
        elif number == signal.SIGINT and self._interrupted:
            self._give_up()
            signal.raise_signal(number)
        else:
            self.received = number if self.received is None else self.received
            if number == signal.SIGINT:
                self._interrupted = True
                if self._speaks and logger.isEnabledFor(logging.WARNING):
                    # On file descriptor 2, as the buffer of `sys.stderr` may be in the middle of a
                    # line.
                    with contextlib.suppress(OSError):
                        os.write(2, _INTERRUPTED)

    def _give_up(self) -> None:
        """Restore the previous handlers, without a checkpoint for this signal."""
        self.received = None
        self.leaving = False
        self._let_go()

    def _let_go(self) -> None:
        self._listening_in = None
        previous = self._previous
        self._previous = {}
        for number, handler in previous.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)
        if previous:
            self.on_change(False)

    def _foreign_manager(self) -> Any:
        """Return the manager that the script has put into `jit_manager`."""
        return None if self.jit_manager is self else self.jit_manager

    def _obey(self, control: TrainerControl) -> bool:
        """Save and stop at once where the script's own manager requests it, as the reference
        does.
        """
        manager = self._foreign_manager()
        if manager is None or not manager.is_checkpoint_requested:
            return False
        control.should_training_stop = True
        manager.execute_jit_checkpoint()
        return True

    def _asked(self, now: bool = False) -> bool:
        """Return whether to stop; all ranks call it at the same places and get the same answer."""
        if self._exchange is None:
            return self.received is not None and self.is_listening
        if not self.is_listening:
            return False
        agreed = self._exchange.exchange(self.received or 0, now)
        self.received = agreed or self.received
        return agreed > 0

    def _leave(self, state: TrainerState, control: TrainerControl) -> None:
        control.should_training_stop = True
        # Lightning goes on up to `min_epochs` and `min_steps`
        if self.leaving and state.global_step > self._left_at:
            return
        if not self.leaving:
            self._warn(state)
            self._left_at = state.global_step
        self.leaving = True
        control.should_save = True

    def save_now(self, state: TrainerState) -> None:
        """Write a checkpoint in the middle of something else, with `save`."""
        self._saved = (state.global_step, False)
        leaving = self.leaving
        self.leaving = True
        if self.save is not None:
            self.save()
        self.leaving = leaving

    def _warn(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            self.told = True
            logger.warning(
                "%s: training stops at step %s, with a checkpoint to resume from.",
                _name(self.received),
                state.global_step,
            )


def _save(trainer: Any) -> None:
    """Write a checkpoint; a training of the Trainer here waits until it is on the disk."""
    run = getattr(trainer, "_run", None)
    if run is None:
        trainer._save_checkpoint(trainer.model, None)
    else:
        run._save_at_once()


def _name(number: int | None) -> str:
    if number is None or number == _REQUEST:
        return "The script"
    return signal.Signals(number).name
