"""Trials that another process took over.

Optuna gives up a trial whose heartbeat stopped, for instance because its process was suspended,
and another process retries it. The suspended process may wake up later, and must not report a
result.
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
    """Leaves optuna's loop without a result, since optuna rejects the result of a finished trial.

    It is a `BaseException` so that `except Exception` in optuna does not turn it into a failure.
    """


def require_not_taken(trial: Trial) -> None:
    """Check that no other process has taken over a trial that this process runs.

    Raises:
        TrialTakenError: another process has.
    """
    stored_trial = trial.study.get_trials(deepcopy=False)[trial.number]
    if stored_trial.state.is_finished():
        raise TrialTakenError(
            f"Trial {trial.number} was given to another process while this one was suspended."
        )


@contextmanager
def discard_if_taken(trial: Trial) -> Iterator[None]:
    """Run a block for a trial; discard its result or error if another process took the trial over.

    Raises:
        TrialTakenError: another process took it over.
    """
    try:
        yield
    except Exception:
        require_not_taken(trial)
        raise
    require_not_taken(trial)


def optimize_without_taken(
    study: Study,
    objective: Callable[[Trial], Any],
    n_trials: int | None = None,
    timeout: float | None = None,
    *,
    callbacks: Sequence[Callable[[Study, FrozenTrial], None]] | None = None,
    **options: Any,
) -> None:
    """Run `optuna.Study.optimize`, but do not count trials that another process took over.

    Args:
        study: the study.
        objective: the function of a trial; raises `TrialTakenError` if the trial was taken over.
        n_trials: as in `optuna.Study.optimize`.
        timeout: as in `optuna.Study.optimize`, in seconds.
        callbacks: as in `optuna.Study.optimize`.
        options: further options of `optuna.Study.optimize`.
    """
    start = time.monotonic()
    finished_trials = 0

    def count_trial(study: Study, trial: FrozenTrial) -> None:
        nonlocal finished_trials
        finished_trials += 1

    # An error leaves `study.optimize`, so it is called again for the trials and the time left.
    while True:
        trials_left = None if n_trials is None else n_trials - finished_trials
        seconds_left = None if timeout is None else timeout - (time.monotonic() - start)
        try:
            study.optimize(
                objective,
                n_trials=trials_left,
                timeout=seconds_left,
                callbacks=[*(callbacks or ()), count_trial],
                **options,
            )
            return
        except TrialTakenError as taken:
            logger.warning("%s The search continues.", taken)
