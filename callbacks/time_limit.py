"""Stop after a given time, with a checkpoint to resume from."""

from __future__ import annotations

import logging
import math
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ._signal_exchange import SignalExchange, world_size
from .base import TrainerCallback
from .state import TrainerControl, TrainerState, ends_epoch

if TYPE_CHECKING:
    from ..facade import TrainingArguments

logger = logging.getLogger(__name__)

_SECONDS_IN_UNIT = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}

_EXAMPLES = "For example 7200, timedelta(hours=2), '2h', '1h 30m' or '1:30:00'."

# A number with its unit, as in "1h 30m": the number, and one group for each unit.
_NUMBER_WITH_UNIT = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:(d)(?:ays?)?|(h)(?:rs?|ours?)?|(m)(?:ins?|inutes?)?|(s)(?:ecs?|econds?)?)(?![a-z])\s*"
)

# Days, hours, minutes and seconds, as in "1-12:00:00".
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)")


class TimeLimitCallback(TrainerCallback):
    """Saves a checkpoint and stops the training when its time is up. Not in transformers.

    The time is checked after each step. Everything that is due at that step still happens, so a
    training resumed from the checkpoint has the numbers of an uninterrupted one; leave some time
    for that and for the save. The checkpoint is complete also with `save_only_model`, and neither
    `save_strategy="best"` nor `save_total_limit=1` prevents or removes it.

    With several processes, all stop at the same step: each process reports when its own clock has
    run out, and gets the reports of the others at the next step.

    Args:
        limit: seconds, a `timedelta`, or a text: "2h", "1h 30m", "90 min", "1:30:00", "1-12:00:00"
            (with days), "45:00" (minutes and seconds).
        save: whether to write a checkpoint at the last step.
        over_all_runs: whether to count the time of earlier runs too, which is in the checkpoint
            that was resumed. If the time is up already, the training stops after one step.

    Raises:
        TypeError, ValueError: `limit` is not a time, or not above zero.
    """

    reads_checkpoints = False

    def __init__(
        self, limit: float | str | timedelta, *, save: bool = True, over_all_runs: bool = False
    ) -> None:
        self.limit = seconds_of(limit)
        self.save = save
        self.over_all_runs = over_all_runs
        self.stopped = False
        """True once this callback stops the training."""
        self._start_time: float | None = None  # None while no training runs
        self._seconds_of_last_run = 0.0
        self._seconds_of_earlier_runs = 0.0
        self._exchange: SignalExchange | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of training so far: of this run or, with `over_all_runs`, of all of them."""
        if self.over_all_runs:
            return self._seconds_of_earlier_runs + self._seconds_of_run()
        return self._seconds_of_run()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Start the clock."""
        if state.global_step == 0:  # a training from scratch, also on the same object
            self._seconds_of_earlier_runs = 0.0
        self.stopped = False
        self._close_exchange()
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
        """Stop the clock."""
        self._seconds_of_last_run = self._seconds_of_run()
        self._start_time = None
        self._close_exchange()

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds of training so far, for a checkpoint."""
        return {"seconds": self._seconds_of_earlier_runs + self._seconds_of_run()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting from a checkpoint."""
        self._seconds_of_earlier_runs = float(state_dict["seconds"])

    def _seconds_of_run(self) -> float:
        """Return the seconds of the current run, or of the last one after its end."""
        if self._start_time is None:
            return self._seconds_of_last_run
        return time.monotonic() - self._start_time

    def _is_time_up(self) -> bool:
        """Return whether to stop; all ranks call it at the same places and get the same answer."""
        is_running = self._start_time is not None
        is_up_here = is_running and self.elapsed >= self.limit
        if self._exchange is None:
            return is_up_here
        return self._exchange.exchange(int(is_up_here), wait=False) > 0

    def _stop(self, state: TrainerState, control: TrainerControl) -> None:
        control.should_training_stop = True
        if self.stopped:  # Lightning continues up to `min_epochs` and `min_steps`
            return
        self.stopped = True
        if self.save:
            control.should_save = True

        # One message for all processes, which stop together.
        if state.is_world_process_zero:
            result = ", with a checkpoint to resume from" if self.save else ""
            from tqdm import tqdm

            logger.warning(
                "The time limit of %s is reached: training stops at step %s of %s%s.",
                tqdm.format_interval(round(self.limit)),
                state.global_step,
                state.max_steps,
                result,
            )

    def _close_exchange(self) -> None:
        exchange = self._exchange
        self._exchange = None
        if exchange is not None:
            exchange.close()


def seconds_of(limit: float | str | timedelta) -> float:
    """Return a length of time in seconds; `TimeLimitCallback` lists the forms.

    Raises:
        TypeError, ValueError: `limit` is not a time, or not above zero.
    """
    if isinstance(limit, timedelta):
        seconds = limit.total_seconds()
    elif isinstance(limit, str):
        seconds = _parse(limit)
    elif _is_number(limit):
        seconds = float(limit)
    else:
        raise TypeError(
            f"limit is {limit!r} ({type(limit).__name__}), but it must be seconds, a timedelta, or "
            f"a text. {_EXAMPLES}"
        )

    # NaN is not above zero either.
    if not seconds > 0 or math.isinf(seconds):
        raise ValueError(f"limit is {limit!r}, but it must be above zero and finite. {_EXAMPLES}")
    return seconds


def _is_number(value: object) -> bool:
    # A bool is an int too.
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parse(limit: str) -> float:
    """Return the seconds of a time that is written as text."""
    text = limit.strip().lower()

    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds

    parts = _NUMBER_WITH_UNIT.findall(text)
    rest = _NUMBER_WITH_UNIT.sub("", text)
    if parts and not rest:
        total = 0.0
        for number, *units in parts:
            # Of the groups for the units only one is not empty.
            total += float(number) * _SECONDS_IN_UNIT["".join(units)]
        return total

    try:
        return float(text)
    except ValueError as error:
        raise ValueError(
            f"limit is {limit!r}, which is not a length of time. {_EXAMPLES}"
        ) from error
