"""Stop after a given time, with a checkpoint to resume from."""

from __future__ import annotations

import logging
import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from ._signal_exchange import SignalExchange, world_size
from .base import TrainerCallback
from .state import TrainerControl, TrainerState, ends_epoch

if TYPE_CHECKING:
    from ..facade import TrainingArguments

logger = logging.getLogger(__name__)


class TimeLimitCallback(TrainerCallback):
    """Saves a checkpoint and stops the training when its time is up. Not in transformers.

    The time is checked after each step. Everything that is due at that step still happens, so a
    training resumed from the checkpoint has the numbers of an uninterrupted one; leave some time
    for that and for the save. The checkpoint is complete also with `save_only_model`, and neither
    `save_strategy="best"` nor `save_total_limit=1` prevents or removes it.

    With several processes, all stop at the same step: each process reports when its own clock has
    run out, and gets the reports of the others at the next step.

    Args:
        limit: seconds of this run, or a `timedelta`. It is that of all attempts of
            `auto_find_batch_size` together.

    Raises:
        ValueError: `limit` is not a time above zero.
    """

    reads_checkpoints = False

    def __init__(self, limit: float | timedelta) -> None:
        if isinstance(limit, timedelta):
            limit = limit.total_seconds()
        is_number = isinstance(limit, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be type-checked
        if not is_number or not limit > 0:
            raise ValueError(
                f"limit is {limit!r}, but it must be a number of seconds above zero, or a "
                "timedelta, such as timedelta(hours=2)."
            )
        self.limit = limit
        self.stopped = False
        """True once this callback stops the training."""
        self._start_time = math.inf  # no time passes outside of a training
        self._exchange: SignalExchange | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Start the clock; a training that starts over keeps its own."""
        self.stopped = False
        self._close_exchange()
        if self._start_time == math.inf:
            self._start_time = time.monotonic()
        if world_size() > 1:
            self._exchange = SignalExchange()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop, except at the end of an epoch, where `on_epoch_end` does."""
        # Always asked first, since all ranks have to take part in the exchange.
        if not self._is_time_up():
            return
        if self.stopped or not ends_epoch(state, control):
            self._stop(state, control)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop; after a stop in the middle of the epoch, nothing is due here."""
        is_time_up = self._is_time_up()
        if self.stopped:
            control.should_log = False
            control.should_evaluate = False
            control.should_save = False
        elif is_time_up:
            self._stop(state, control)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Stop the clock, and end the exchange with other processes."""
        self.close()

    def close(self) -> None:
        """Do what `on_train_end` does, after a training that ended with an error."""
        self._start_time = math.inf
        self._close_exchange()

    def _is_time_up(self) -> bool:
        """Return whether to stop; all ranks call it at the same places and get the same answer."""
        is_up_here = time.monotonic() - self._start_time >= self.limit
        if self._exchange is None:
            return is_up_here
        return self._exchange.exchange(int(is_up_here), wait=False) > 0

    def _stop(self, state: TrainerState, control: TrainerControl) -> None:
        control.should_training_stop = True
        if self.stopped:  # Lightning continues up to `min_epochs` and `min_steps`
            return
        self.stopped = True
        control.should_save = True

        # One message for all processes, which stop together.
        if state.is_world_process_zero:
            logger.warning(
                "The time limit of %s is reached: training stops at step %s of %s, with a "
                "checkpoint to resume from.",
                timedelta(seconds=round(self.limit)),
                state.global_step,
                state.max_steps,
            )

    def _close_exchange(self) -> None:
        exchange = self._exchange
        self._exchange = None
        if exchange is not None:
            exchange.close()
