"""Trials that other processes take over: those of a process that was suspended, so that its
heartbeat stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)


class TrialTakenError(BaseException):
    """Leaves optuna's loop without a result: optuna refuses that of a trial that has one."""


def require_own(trial: Trial) -> None:
    """Check that no other process has given up a trial that this one runs.

    Raises:
        TrialTakenError: another one has.
    """
    if trial.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
        raise TrialTakenError(
            f"Trial {trial.number} was given to another process, as this one was suspended."
        )


@contextmanager
def own_trial(trial: Trial) -> Iterator[None]:
    """Run a block for a trial, whose result and errors count only if no other process has given the
    trial up.

    Raises:
        TrialTakenError: another one has.
    """
    try:
        yield
    except Exception:
        require_own(trial)
        raise
    require_own(trial)


def optimize_own(
    study: Study,
    objective: Callable[[Trial], Any],
    n_trials: int | None = None,
    timeout: float | None = None,
    *,
    callbacks: Sequence[Callable[[Study, FrozenTrial], None]] | None = None,
    **options: Any,
) -> None:
    """As `optuna.Study.optimize`, but it continues after a trial that another process took over,
    without counting it.

    Args:
        study: the study.
        objective: raises `TrialTakenError` for such a trial.
        n_trials: as there.
        timeout: as there.
        callbacks: as there.
        options: more of `optuna.Study.optimize`.
    """
    begin = time.monotonic()
    ended = 0

    def count(study: Study, trial: FrozenTrial) -> None:
        nonlocal ended
        ended += 1

    while True:
        left: dict[str, Any] = {}
        if n_trials is not None:
            left["n_trials"] = n_trials - ended
        if timeout is not None:
            left["timeout"] = timeout - (time.monotonic() - begin)
        try:
            study.optimize(objective, callbacks=[*(callbacks or ()), count], **left, **options)
            return
        except TrialTakenError as taken:
            logger.warning("%s The search continues.", taken)
