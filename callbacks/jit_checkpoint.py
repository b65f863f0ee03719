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
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from ._signal_exchange import SignalExchange, world_size
from .base import TrainerCallback
from .state import TrainerControl, TrainerState, ends_epoch

if TYPE_CHECKING:
    from ..facade import TrainingArguments

logger = logging.getLogger(__name__)

_SignalHandler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
"""A handler as `signal.signal` accepts and returns it."""

_DEFAULT_HANDLERS: dict[int, _SignalHandler] = {signal.SIGINT: signal.default_int_handler}
"""Handlers that Python installs itself; for all other signals it is `SIG_DFL`."""

_INTERRUPTED = b"\nInterrupted. Saving a checkpoint; press Ctrl-C again to stop immediately.\n"

_REQUESTED_BY_SCRIPT = 1 << 16
"""Stands for a signal where the user's script has requested a checkpoint. Larger than all signals.
"""


class SavingTrainer(Protocol):
    """The parts of a Trainer that are needed to save a checkpoint."""

    @property
    def args(self) -> Any:
        """The training arguments, with `enable_jit_checkpoint`."""
        ...

    @property
    def state(self) -> TrainerState:
        """The state of the training."""
        ...

    @property
    def model(self) -> Any:
        """The model, as `_save_checkpoint` takes it."""
        ...

    def _save_checkpoint(self, model: Any, trial: Any) -> object:
        """Write a checkpoint."""
        ...


class CheckpointManager:
    """Request a checkpoint after a SIGTERM.

    Works like `transformers.trainer_jit_checkpoint.CheckpointManager`.

    Requests a checkpoint `kill_wait` seconds after a SIGTERM. A manager that a script assigns to
    `jit_manager` of a `JITCheckpointCallback` replaces the signal handling of the callback.

    Args:
        trainer: the Trainer whose state is written.
        kill_wait: in seconds.
    """

    def __init__(self, trainer: SavingTrainer, kill_wait: float = 3) -> None:
        self.trainer = trainer
        self.is_checkpoint_requested = False
        self.kill_wait = kill_wait
        self._original_sigterm_handler: _SignalHandler = None

    def setup_signal_handler(self) -> None:
        """Handle SIGTERM from now on."""
        self._original_sigterm_handler = signal.signal(signal.SIGTERM, self._sigterm_handler)

    def execute_jit_checkpoint(self) -> None:
        """Write a checkpoint of the current state."""
        self.is_checkpoint_requested = False
        self.trainer._save_checkpoint(  # pyright: ignore[reportPrivateUsage] - as transformers names it
            self.trainer.model, trial=None
        )

    def _sigterm_handler(self, signum: int, frame: FrameType | None) -> None:
        if not self.is_checkpoint_requested:
            threading.Timer(self.kill_wait, self._enable_checkpoint).start()

    def _enable_checkpoint(self) -> None:
        self.is_checkpoint_requested = True


class _ManagerOfCallback(CheckpointManager):
    """The manager that a callback starts with: a request to it is one to the callback.

    Args:
        trainer: the Trainer whose state is written.
        callback: handles the signals of the training.
    """

    def __init__(self, trainer: SavingTrainer, callback: JITCheckpointCallback) -> None:
        self.callback = callback
        super().__init__(trainer)

    @property
    def is_checkpoint_requested(self) -> bool:
        """See `JITCheckpointCallback.is_checkpoint_requested`."""
        return self.callback.is_checkpoint_requested

    @is_checkpoint_requested.setter
    def is_checkpoint_requested(self, requested: bool) -> None:
        self.callback.is_checkpoint_requested = requested

    def setup_signal_handler(self) -> None:
        """Handle the signals of the callback from now on, before `on_train_begin`."""
        if not self.callback.is_listening:
            self.callback.start_listening()

    def execute_jit_checkpoint(self) -> None:
        """Write a checkpoint of the current state; a signal still ends the training."""
        self.callback.save_now(self.trainer.state)


class JITCheckpointCallback(TrainerCallback):
    """Write a checkpoint after a signal, and end the training, which can be resumed from it.

    The class of that name in `transformers` writes its checkpoint in the middle of a step.

    From `on_train_begin` on, a signal requests a checkpoint at the end of the step. Everything that
    is due at that step still happens, so a resumed run has the numbers of an uninterrupted one.
    Then training stops. The checkpoint does not wait first (transformers waits three seconds).
    A second SIGINT (Ctrl-C) interrupts at once, a second signal of another kind is ignored. The
    previous handlers are restored after the training, however it ends.

    With several processes any of them may get the signal. They exchange signals at every step or,
    where steps are short, every few milliseconds, and get the result at the next step, so all of
    them stop at the same step.

    The callback itself sets `should_save` and `should_training_stop`, so it works with any loop
    that fires these events. `Trainer.train` also calls `stop_listening` and, at the very end,
    `raise_received_signal`.

    Args:
        signals: the signals to handle, SIGTERM by default. Python handles signals in the main
            thread only, so a training in another thread handles none.
        save: writes a checkpoint of the current state. With it, a signal during an evaluation saves
            at once, and again after the evaluation; a signal after the last step saves what would
            be lost otherwise.
        required_signals: those among `signals` that the user has named, by default all. They are
            handled even if the process ignores them, and a warning reports if that is impossible.
            The others stay ignored.
        on_change: called with True when signals are handled from now on, and with False when they
            no longer are.
    """

    reads_checkpoints = False

    def __init__(
        self,
        signals: Iterable[int] = (signal.SIGTERM,),
        *,
        save: Callable[[], None] | None = None,
        required_signals: Iterable[int] | None = None,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        self.signals = tuple(signals)
        self.save = save
        self.required_signals = self.signals
        if required_signals is not None:
            self.required_signals = tuple(required_signals)
        self.on_change = on_change

        self.trainer: SavingTrainer | None = None
        """The Trainer, once `set_trainer` was called."""
        self.jit_manager: CheckpointManager | None = None
        """Set by `set_trainer` with `enable_jit_checkpoint`. A script may assign its own manager.
        """

        # What this training is doing because of a signal.
        self.received_signal: int | None = None
        """The signal that any process has received, or `_REQUESTED_BY_SCRIPT`."""
        self.is_stopping = False
        """True while this callback stops the training, or saves in the middle of it."""
        self.has_announced_stop = False
        """True once this process has logged that this callback stops the training."""
        self._stopped_at = 0  # the step at which `is_stopping` became True
        self._last_saved_step: int | None = None
        """Step of the last checkpoint of any kind, so that an evaluation saves once."""
        self._last_saved_step_of_loop: int | None = None
        """Step of the last checkpoint that the loop has written, not `save`.

        `on_train_end` saves only if the last step lacks one.
        """
        self._is_after_epoch_end = False  # between `on_epoch_end` and the next epoch

        # The signal handling of this process.
        self._listening_pid: int | None = None  # a forked process is not listening
        self._previous_handlers: dict[int, _SignalHandler] = {}
        self._has_received_sigint = False
        self._writes_to_terminal = True
        self._exchange: SignalExchange | None = None

    def set_trainer(self, trainer: SavingTrainer) -> None:
        """Keep the Trainer that uses this callback; it calls this before a training."""
        self.trainer = trainer
        if not trainer.args.enable_jit_checkpoint:
            return
        self.jit_manager = _ManagerOfCallback(trainer, self)
        if self.save is None:
            self.save = partial(_save, trainer)

    @property
    def is_checkpoint_requested(self) -> bool:
        """True after a signal.

        Setting it to True requests a checkpoint too, but `train` then returns normally.
        """
        return self.received_signal is not None

    @is_checkpoint_requested.setter
    def is_checkpoint_requested(self, requested: bool) -> None:
        if not requested:
            self.received_signal = None
        elif self.received_signal is None:
            self.received_signal = _REQUESTED_BY_SCRIPT

    @property
    def is_listening(self) -> bool:
        """Return whether this callback takes part in the exchange of signals.

        Outside of the main thread it does so without handling any itself.
        """
        return self._listening_pid == os.getpid()

    # The events.

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Start to handle signals; a training that starts over keeps its handlers."""
        if self.is_listening or self._has_manager_of_script:
            return
        self.received_signal = None
        self.is_stopping = False
        self.has_announced_stop = False
        self._last_saved_step = None
        self._last_saved_step_of_loop = None
        self._has_received_sigint = False
        self._writes_to_terminal = state.is_world_process_zero
        self.start_listening()

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Record that a new epoch has begun."""
        self._is_after_epoch_end = False

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop if the manager requests it at once."""
        self._apply_manager(control)

    on_pre_optimizer_step = on_step_begin

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop, except at the end of an epoch, where `on_epoch_end` does."""
        if self._apply_manager(control):
            control.should_save = False
            return
        # Collective, so it is asked before any rank may return.
        if not self._is_stop_requested():
            return
        if self.is_stopping or not ends_epoch(state, control):
            self._stop_training(state, control)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop; after a stop in the middle of the epoch, nothing is due here."""
        self._is_after_epoch_end = True
        is_stop_requested = self._is_stop_requested()
        if self._apply_manager(control):
            control.should_save = False
        elif self.is_stopping:
            control.should_log = False
            control.should_evaluate = False
            control.should_save = False
        elif is_stop_requested:
            self._stop_training(state, control)

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save at once, since the evaluation may take longer than the time that is left.

        After that the evaluation continues, except after Ctrl-C; a resumed training then repeats
        the evaluation.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
        """
        if not self._is_stop_requested():
            return
        if self._last_saved_step != state.global_step:
            self.save_now(state)

        # The user waits for the end after Ctrl-C, unless the script has its own handler.
        if self.received_signal != signal.SIGINT or self.save is None:
            return
        previous_handler = self._previous_handlers.get(signal.SIGINT, signal.default_int_handler)
        if previous_handler is signal.default_int_handler:
            self._announce_stop(state)
            self._drop_signal()
            raise KeyboardInterrupt

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop after the evaluation."""
        if self._is_stop_requested():
            self._stop_training(state, control)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Stop after a checkpoint that was due anyway."""
        is_incomplete = getattr(args, "save_only_model", False)
        if is_incomplete and not self.is_stopping:
            return
        self._last_saved_step = state.global_step
        self._last_saved_step_of_loop = state.global_step

        # Collective, so it is asked before `is_stopping`.
        if not self._is_stop_requested() or self.is_stopping:
            return
        if self._is_after_epoch_end or not ends_epoch(state, control):
            self._announce_stop(state)
            self.is_stopping = True
            control.should_training_stop = True

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Stop handling signals; save for a signal that came after the last step."""
        if self.jit_manager is not None:
            handler = self.jit_manager._original_sigterm_handler  # pyright: ignore[reportPrivateUsage] - as transformers names it
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)

        # A signal that came after the last step, on any rank.
        if not self.is_listening:
            return
        if self._is_stop_requested(wait=True) and not self.is_stopping:
            self.is_stopping = True
            if self._last_saved_step_of_loop != state.global_step:
                self._announce_stop(state)
                self.save_now(state)
        self.stop_listening()

    # Signal handlers.

    def start_listening(self) -> None:
        """Install the signal handlers.

        Only in the main thread, and only in place of handlers that can be restored.
        """
        level = logging.WARNING if self.required_signals else logging.DEBUG
        try:
            self._exchange = SignalExchange() if world_size() > 1 else None
        except RuntimeError as error:
            logger.warning(
                "Signals are not handled, since the ranks cannot exchange them over gloo: %s", error
            )
            return

        self._listening_pid = os.getpid()
        if threading.current_thread() is not threading.main_thread():
            logger.log(
                level, "Signals are not handled, since training does not run in the main thread."
            )
            return

        for number in self.signals:
            handler = signal.getsignal(number)
            # Python does not know handlers that were installed from C, and cannot restore them.
            if handler is None:
                logger.log(
                    level,
                    "%s is not handled: a library has installed its own handler.",
                    _signal_name(number),
                )
                continue
            is_ignored = handler == signal.SIG_IGN
            if not is_ignored or number in self.required_signals:
                self._previous_handlers[number] = signal.signal(number, self._receive)
        self._notify(True)

    def stop_listening(self) -> None:
        """Restore the previous handlers, unless they were replaced since; may be called twice."""
        self._restore_handlers()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def raise_received_signal(self) -> None:
        """Raise the signal that stopped the training again, for its previous handler.

        If the signal has no handler, so that it would have ended the process, the interpreter exits
        with 128 plus the number of the signal, by a `SystemExit`.

        Raises:
            SystemExit: the signal has the default handler.
        """
        number = self.received_signal
        has_stopped_training = self.is_stopping
        self.received_signal = None
        self.is_stopping = False
        if number is None or number == _REQUESTED_BY_SCRIPT or not has_stopped_training:
            return
        if signal.getsignal(number) == signal.SIG_DFL:
            sys.exit(128 + number)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(number)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Record the signal, as its handler.

        Nothing else: a handler runs between arbitrary instructions of the training.
        """
        # A forked process, such as a worker of a dataloader, ends as it would without this.
        if self._listening_pid != os.getpid():
            default_handler = _DEFAULT_HANDLERS.get(number, signal.SIG_DFL)
            signal.signal(number, self._previous_handlers.get(number, default_handler))
            signal.raise_signal(number)
            return

        # The second Ctrl-C.
        if number == signal.SIGINT and self._has_received_sigint:
            self._drop_signal()
            signal.raise_signal(number)
            return

        if self.received_signal is None:
            self.received_signal = number
        if number == signal.SIGINT:
            self._has_received_sigint = True
            if self._writes_to_terminal and logger.isEnabledFor(logging.WARNING):
                # To file descriptor 2, since the handler may have interrupted a write to
                # `sys.stderr`.
                with contextlib.suppress(OSError):
                    os.write(2, _INTERRUPTED)

    def _drop_signal(self) -> None:
        """Restore the previous handlers, and write no checkpoint for this signal."""
        self.received_signal = None
        self.is_stopping = False
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        self._listening_pid = None
        previous_handlers = self._previous_handlers
        self._previous_handlers = {}
        for number, handler in previous_handlers.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)
        if previous_handlers:
            self._notify(False)

    def _notify(self, is_listening: bool) -> None:
        if self.on_change is not None:
            self.on_change(is_listening)

    # Save and stop.

    def save_now(self, state: TrainerState) -> None:
        """Write a checkpoint with `save`, in the middle of something else."""
        self._last_saved_step = state.global_step
        self._last_saved_step_of_loop = None
        was_stopping = self.is_stopping
        self.is_stopping = True
        try:
            if self.save is not None:
                self.save()
        finally:
            self.is_stopping = was_stopping

    @property
    def _has_manager_of_script(self) -> bool:
        """Whether a script has assigned a manager, which then handles the signals."""
        return not isinstance(self.jit_manager, _ManagerOfCallback | None)

    def _apply_manager(self, control: TrainerControl) -> bool:
        """Save and stop at once if the manager requests it, as in transformers.

        Where this callback handles the signals itself, it saves at the end of the step.

        Returns:
            Whether it requests it.
        """
        manager = self.jit_manager
        if manager is None or self.is_listening or not manager.is_checkpoint_requested:
            return False
        manager.is_checkpoint_requested = False
        control.should_training_stop = True
        manager.execute_jit_checkpoint()
        return True

    def _is_stop_requested(self, wait: bool = False) -> bool:
        """Return whether a signal was received.

        All ranks call it at the same places and get the same result.

        Args:
            wait: for the signals that the ranks send now. Otherwise those of the previous call.
        """
        if not self.is_listening:
            return False
        if self._exchange is None:
            return self.received_signal is not None

        agreed_signal = self._exchange.exchange(self.received_signal or 0, wait)
        if agreed_signal:
            self.received_signal = agreed_signal
        return agreed_signal > 0

    def _stop_training(self, state: TrainerState, control: TrainerControl) -> None:
        """Set the switches for a checkpoint and the end of the training."""
        control.should_training_stop = True

        # Lightning continues up to `min_epochs` and `min_steps`: save only once.
        if self.is_stopping and state.global_step > self._stopped_at:
            return

        if not self.is_stopping:
            self._announce_stop(state)
            self._stopped_at = state.global_step
        self.is_stopping = True
        control.should_save = True

    def _announce_stop(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            self.has_announced_stop = True
            logger.warning(
                "%s: training stops at step %s, with a checkpoint to resume from.",
                _signal_name(self.received_signal),
                state.global_step,
            )


def _save(trainer: SavingTrainer) -> None:
    """Write a checkpoint; a training of the Trainer of this package waits until it is on disk."""
    run = getattr(trainer, "_fit_run", None)
    if run is None:
        trainer._save_checkpoint(trainer.model, trial=None)  # pyright: ignore[reportPrivateUsage] - as transformers names it
    else:
        run._save_at_once()


def _signal_name(number: int | None) -> str:
    if number is None or number == _REQUESTED_BY_SCRIPT:
        return "Requested by the script"
    return signal.Signals(number).name
