"""Save a checkpoint when the process receives a signal to end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ._signal_listener import REQUESTED_BY_SCRIPT, SignalListener, raise_again, signal_name
from .base import TrainerCallback
from .checkpoint_manager import CheckpointManager, SavingTrainer, save_at_once
from .state import TrainerControl, TrainerState, ends_epoch

if TYPE_CHECKING:
    from ..facade import TrainingArguments

logger = logging.getLogger(__name__)


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

        self._listener = SignalListener()

        # What this training is doing because of a signal.
        self._is_stopping = False
        self.has_announced_stop = False
        """True once this process has logged that this callback stops the training."""
        self._stopped_at = 0  # the step at which `_is_stopping` became True
        self._last_saved_step: int | None = None
        """Step of the last checkpoint of any kind, so that an evaluation saves once."""
        self._last_saved_step_of_loop: int | None = None
        """Step of the last checkpoint that the loop has written, not `save`.

        `on_train_end` saves only if the last step lacks one.
        """
        self._is_after_epoch_end = False  # between `on_epoch_end` and the next epoch

    def set_trainer(self, trainer: SavingTrainer) -> None:
        """Keep the Trainer that uses this callback; it calls this before a training."""
        self.trainer = trainer
        if not trainer.args.enable_jit_checkpoint:
            return
        self.jit_manager = _ManagerOfCallback(trainer, self)
        if self.save is None:
            self.save = partial(save_at_once, trainer)

    @property
    def received_signal(self) -> int | None:
        """The signal that any process has received."""
        return self._listener.received_signal

    @property
    def is_checkpoint_requested(self) -> bool:
        """True after a signal.

        Setting it to True requests a checkpoint too, but `train` then returns normally.
        """
        return self.received_signal is not None

    @is_checkpoint_requested.setter
    def is_checkpoint_requested(self, requested: bool) -> None:
        if not requested:
            self._listener.received_signal = None
        elif self.received_signal is None:
            self._listener.received_signal = REQUESTED_BY_SCRIPT

    @property
    def is_stopping(self) -> bool:
        """True while this callback stops the training, or saves in the middle of it."""
        return self._is_stopping and not self._listener.has_dropped_signal

    @property
    def is_listening(self) -> bool:
        """Return whether this callback takes part in the exchange of signals.

        Outside of the main thread it does so without handling any itself.
        """
        return self._listener.is_started

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
        self._is_stopping = False
        self.has_announced_stop = False
        self._last_saved_step = None
        self._last_saved_step_of_loop = None
        self._listener.received_signal = None
        self._listener.writes_to_terminal = state.is_world_process_zero
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
        if not self._listener.has_signal():
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
        # Collective, so it is asked before any rank may return.
        is_stop_requested = self._listener.has_signal()
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
        if not self._listener.has_signal():
            return
        if self._last_saved_step != state.global_step:
            self.save_now(state)

        # The user waits for the end after Ctrl-C, unless the script has its own handler.
        if self.received_signal != signal.SIGINT or self.save is None:
            return
        if self._listener.has_default_sigint():
            self._announce_stop(state)
            self._listener.drop_signal()
            raise KeyboardInterrupt

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop after the evaluation."""
        if self._listener.has_signal():
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
        if not self._listener.has_signal() or self.is_stopping:
            return
        if self._is_after_epoch_end or not ends_epoch(state, control):
            self._announce_stop(state)
            self._is_stopping = True
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

        self.finish_steps(state)
        self.stop_listening()

    def finish_steps(self, state: TrainerState) -> None:
        """Save for a signal that came after the last step, on any rank.

        The Trainer calls this before it loads the best model: a checkpoint that is written later
        would have those weights. A second call only notes the signal.
        """
        if not self.is_listening:
            return
        if self._listener.has_signal(wait=True) and not self.is_stopping:
            self._is_stopping = True
            if self._last_saved_step_of_loop != state.global_step:
                self._announce_stop(state)
                self.save_now(state)
        self._last_saved_step_of_loop = state.global_step

    # Signals.

    def start_listening(self) -> None:
        """Install the signal handlers.

        Only in the main thread, and only in place of handlers that can be restored.
        """
        self._listener.start(self.signals, self.required_signals, self.on_change)

    def stop_listening(self) -> None:
        """Restore the previous handlers, unless they were replaced since; may be called twice."""
        self._listener.stop()

    def raise_received_signal(self) -> None:
        """Raise the signal that stopped the training again, for its previous handler.

        If the signal has no handler, so that it would have ended the process, the interpreter exits
        with 128 plus the number of the signal, by a `SystemExit`.

        Raises:
            SystemExit: the signal has the default handler.
        """
        number = self.received_signal
        has_stopped_training = self.is_stopping
        self._listener.received_signal = None
        self._is_stopping = False
        if number is not None and has_stopped_training:
            raise_again(number)

    # Save and stop.

    def save_now(self, state: TrainerState) -> None:
        """Write a checkpoint with `save`, in the middle of something else."""
        self._last_saved_step = state.global_step
        self._last_saved_step_of_loop = None
        was_stopping = self._is_stopping
        self._is_stopping = True
        try:
            if self.save is not None:
                self.save()
        finally:
            self._is_stopping = was_stopping

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

    def _stop_training(self, state: TrainerState, control: TrainerControl) -> None:
        """Set the switches for a checkpoint and the end of the training."""
        control.should_training_stop = True

        # Lightning continues up to `min_epochs` and `min_steps`: save only once.
        if self.is_stopping and state.global_step > self._stopped_at:
            return

        if not self.is_stopping:
            self._announce_stop(state)
            self._stopped_at = state.global_step
        self._is_stopping = True
        control.should_save = True

    def _announce_stop(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            self.has_announced_stop = True
            logger.warning(
                "%s: training stops at step %s, with a checkpoint to resume from.",
                signal_name(self.received_signal),
                state.global_step,
            )
