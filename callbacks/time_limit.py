"""Stop after a given time, with a checkpoint to resume from."""

from __future__ import annotations

import logging
import math
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ._signal_exchange import SignalExchange, world_size
from ._speed_meter import format_seconds
from .base import TrainerCallback
from .state import TrainerControl, TrainerState, ends_epoch

if TYPE_CHECKING:
    from .arguments import CallbackArguments

logger = logging.getLogger(__name__)

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PARTS = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:(d)(?:ays?)?|(h)(?:rs?|ours?)?|(m)(?:ins?|inutes?)?|(s)(?:ecs?|econds?)?)(?![a-z])\s*"
)
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)")


class TimeLimitCallback(TrainerCallback):
    """No counterpart in transformers: saves a checkpoint and stops the training when its time is
    up.

    The time is checked after each step. Everything due at that step still happens, so that a
    training resumed from the checkpoint has the numbers of an uninterrupted one; leave some time
    for that and for the saving. The checkpoint is complete also under `save_only_model`, and
    neither `save_strategy="best"` nor `save_total_limit=1` prevents or removes it.

    With several processes, all stop at the same step: each reports when its own clock has run out,
    and gets the others' reports at the next step.

    Args:
        limit: seconds, a `timedelta`, or a text: "2h", "1h 30m", "90 min", "1:30:00", "1-12:00:00"
            (with days), "45:00" (minutes and seconds).
        save: write a checkpoint at the last step.
        over_all_runs: count the time of the runs before this one too, as the checkpoint that was
            resumed has it. A training whose time is up already then stops after a step.

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
        self._began: float | None = None
        self._ran = 0.0
        self._before = 0.0
        self._exchange: SignalExchange | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of training so far: of this run or, with `over_all_runs`, of all of them."""
        return self._this_run() + (self._before if self.over_all_runs else 0.0)

    def on_train_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Start the clock."""
        if state.global_step == 0:  # a training from scratch, also on the same object
            self._before = 0.0
        self.stopped = False
        self._leave_exchange()
        self._began = time.monotonic()
        if world_size() > 1:
            self._exchange = SignalExchange()

    def on_step_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop; at the last step of an epoch `on_epoch_end` does, after its logs and
        evaluations.
        """
        if self._is_up() and (self.stopped or not ends_epoch(state, control)):
            self._stop(state, control)

    def on_epoch_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save and stop; after a stop in the middle of the epoch, nothing is due here."""
        up = self._is_up()
        if self.stopped:
            control.should_log = control.should_evaluate = control.should_save = False
        elif up:
            self._stop(state, control)

    def on_train_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Stop the clock."""
        self._ran = self._this_run()
        self._began = None
        self._leave_exchange()

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds of training so far, for a checkpoint."""
        return {"seconds": self._before + self._this_run()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting from a checkpoint."""
        self._before = float(state_dict["seconds"])

    def _this_run(self) -> float:
        return self._ran if self._began is None else time.monotonic() - self._began

    def _is_up(self) -> bool:
        """Return whether to stop; all ranks call it at the same places and get the same answer."""
        up = self._began is not None and self.elapsed >= self.limit
        return up if self._exchange is None else self._exchange.exchange(int(up), wait=False) > 0

    def _stop(self, state: TrainerState, control: TrainerControl) -> None:
        control.should_training_stop = True
        if self.stopped:  # Lightning goes on up to `min_epochs` and `min_steps`
            return
        self.stopped = True
        control.should_save = control.should_save or self.save
        if state.is_world_process_zero:
            logger.warning(
                "The time limit of %s is reached: training stops at step %s of %s%s.",
                format_seconds(self.limit),
                state.global_step,
                state.max_steps,
                ", with a checkpoint to resume from" if self.save else "",
            )

    def _leave_exchange(self) -> None:
        exchange = self._exchange
        self._exchange = None
        if exchange is not None:
            exchange.close()


def seconds_of(limit: float | str | timedelta) -> float:
    """Return a length of time in seconds; `TimeLimitCallback` lists the forms."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float, str, timedelta)):
        raise TypeError(
            f"limit is {limit!r} ({type(limit).__name__}): give seconds, a timedelta, or a text. "
            f"{_SO}"
        )
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else _read(limit)
    if not seconds > 0 or math.isinf(seconds):
        raise ValueError(
            f"limit is {limit!r}, but a time to stop after has to be above zero and finite. {_SO}"
        )
    return seconds


_SO = "For example 7200, timedelta(hours=2), '2h', '1h 30m' or '1:30:00'."


def _read(limit: float | str) -> float:
    if not isinstance(limit, str):
        return float(limit)
    text = limit.strip().lower()
    if on_clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in on_clock.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    parts = _PARTS.findall(text)
    if parts and not _PARTS.sub("", text):
        return sum(float(number) * _UNITS["".join(unit)] for number, *unit in parts)
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(
            f"limit is {limit!r}, which is not read as a length of time. {_SO}"
        ) from error
