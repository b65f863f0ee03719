"""Interrupted and failed trials of a study: find them, queue them again, and resume them from
their checkpoints.
"""

from __future__ import annotations

import logging
import math
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ...lightning_modules.common.process_identity import process_state, process_token
from ...lightning_modules.search.channel import FAILURE
from .storages import MAX_RETRY, retry_callback, without_experimental_warnings

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

WORKER = "lightrainer:worker"
"""Attribute of a trial: its number, and the process that runs it."""
FOLDER = "lightrainer:folder"
"""Attribute of a trial: where it writes; a retry has the folder of the trial that it retries."""
LOG = "lightrainer:log"
"""Attribute of a trial of a sweep: the output of its script."""
COMMAND = "lightrainer:command"
"""Attribute of a trial of a sweep: the command that trains it again."""
_OWNER = "lightrainer:owner"
"""Attribute of a trial: the owner of its folder, see `claim_folder`."""
_REPEATS = "lightrainer:repeats"
"""Attribute of a trial: the number of the failed trial whose values it has."""


class Start(NamedTuple):
    """What a trial begins with."""

    origin: int
    """Its number; that of the first trial for a retry that resumes in its folder."""
    owner: str
    """The owner of its folder, see `claim_folder`."""
    reported: list[int] = []
    """The steps, or epochs, for which a retry has the values of the trial that it retries."""
    checkpoint: str | None = None


def is_persistent(study: Any) -> bool:
    """Return whether other processes can continue a study."""
    from optuna.storages import InMemoryStorage

    return not isinstance(study._storage, InMemoryStorage)


def note_worker(study: Any, trial: Any) -> None:
    """Record the process that runs a trial, so that others can tell if it has ended."""
    if is_persistent(study):
        trial.set_user_attr(WORKER, [trial.number, process_token()])


def origin_of(study: Any, trial: Any) -> int:
    """Return the number of the trial that this one is a retry of; its own, if of none."""
    origin = _frozen(study, trial.number).system_attrs.get("failed_trial", trial.number)
    # names a folder, and a storage can hold anything
    return origin if type(origin) is int else trial.number


def owner_of(trial: Trial, *, renew: bool = False) -> str:
    """Return the owner of a trial's folder, which a retry has from the trial that it retries.

    Args:
        trial: the trial, in its study.
        renew: make a new owner, for a separate folder.
    """
    if renew or not isinstance(trial.user_attrs.get(_OWNER), str):
        trial.set_user_attr(_OWNER, uuid.uuid4().hex)
    return trial.user_attrs[_OWNER]


def interrupted(trials: Any) -> set[int]:
    """Return the numbers of trials that were interrupted, so that there is a retry of each."""
    return {number for trial in trials for number in trial.system_attrs.get("retry_history", [])}


def state_of(trial: Any, interrupted: set[int]) -> str:
    """Return optuna's state of a trial, or INTERRUPTED, which optuna counts as failed.

    Args:
        trial: the trial.
        interrupted: see the function of that name.
    """
    return (
        "INTERRUPTED"
        if trial.number in interrupted and trial.state.name == "FAIL"
        else trial.state.name
    )


def failures(trials: Any) -> dict[int, str]:
    """Return the reason of each trial that failed, by its number, without those that were
    interrupted.
    """
    retried = interrupted(trials)
    failed = [trial for trial in trials if state_of(trial, retried) == "FAIL"]
    return {
        trial.number: trial.user_attrs.get(FAILURE, "its process ended without a reason")
        for trial in failed
    }


def listed(reasons: dict[int, str], most: int = 5) -> str:
    """Format failures, one line for each."""
    lines = [f"\n  trial {number}: {why}" for number, why in reasons.items()]
    return "".join(lines[:most]) + (
        f"\n  and {len(lines) - most} more" if len(lines) > most else ""
    )


def repeat_failed(study: Any) -> list[int]:
    """Queue the values of failed trials, each once; return their numbers."""
    trials = study.get_trials(deepcopy=False)
    repeated = {trial.user_attrs.get(_REPEATS) for trial in trials}
    numbers = [number for number in failures(trials) if number not in repeated]
    for number in numbers:
        study.enqueue_trial(trials[number].params, user_attrs={_REPEATS: number})
    return numbers


def may_retry(study: Study, number: int, max_retry: int = MAX_RETRY) -> bool:
    """Return whether a trial was retried less than `max_retry` times."""
    return len(_frozen(study, number).system_attrs.get("retry_history", [])) < max_retry


def queue_again(study: Study, number: int, max_retry: int = MAX_RETRY) -> None:
    """Queue a trial that failed, or is about to, unless it was retried `max_retry` times."""
    retry_callback(max_retry)(study, _frozen(study, number))


def give_up(study: Study, number: int, max_retry: int = MAX_RETRY) -> None:
    """Mark a running trial as failed, and queue it again, unless another process has done both."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        study.tell(number, state=TrialState.FAIL)
    except (ValueError, UpdateFinishedTrialError):
        return
    if number not in interrupted(study.get_trials(deepcopy=False)):
        queue_again(study, number, max_retry)


def give_up_dead(
    study: Study, max_retry: int = MAX_RETRY, seconds_to_claim: float = math.inf
) -> list[int]:
    """Queue the trials whose process was killed; return their numbers.

    The end of a process of this machine is noticed at once, that of a process elsewhere by its
    heartbeat, in storages that have one.

    Args:
        study: the study.
        max_retry: how often a trial is retried.
        seconds_to_claim: time after which a trial that no process has claimed counts as one of a
            killed process.
    """
    from optuna.storages import fail_stale_trials

    trials = study.get_trials(deepcopy=False)
    retried = interrupted(trials)
    with without_experimental_warnings():
        fail_stale_trials(study)
    for trial in trials:
        owner = _owner_state(trial)
        is_unclaimed = owner is None and _seconds_since_begin(trial) > seconds_to_claim
        if trial.state.name == "RUNNING" and (owner == "ended" or is_unclaimed):
            give_up(study, trial.number, max_retry)

        # It was killed after it had given the trial up, and before it had queued it.
        has_no_retry = trial.number not in retried and FAILURE not in trial.user_attrs
        if trial.state.name == "FAIL" and owner == "ended" and has_no_retry:
            queue_again(study, trial.number, max_retry)
    return sorted(interrupted(study.get_trials(deepcopy=False)) - retried)


def unseen(study: Study) -> list[int]:
    """Return the running trials that may be those of killed processes: those not seen to run on
    this machine.
    """
    trials = study.get_trials(deepcopy=False)
    return [
        trial.number
        for trial in trials
        if trial.state.name == "RUNNING" and _owner_state(trial) != "running"
    ]


def _owner_state(trial: FrozenTrial) -> str | None:
    """Return the `process_state` of the process that claimed a trial; None before one has."""
    claim = trial.user_attrs.get(WORKER)
    # A retry begins with the attributes of the trial that it retries, so a claim has the number of
    # its trial.
    if not isinstance(claim, list) or claim[:1] != [trial.number]:
        return None
    return process_state(str(claim[-1]))


def _seconds_since_begin(trial: FrozenTrial) -> float:
    begin = trial.datetime_start
    return 0.0 if begin is None else (datetime.now() - begin).total_seconds()


def reported_steps(study: Study, number: int) -> list[int]:
    """Return the steps, or epochs, at which a trial, or the one that it retries, has reported a
    value.
    """
    return list(_frozen(study, number).intermediate_values)


def _frozen(study: Any, number: int) -> Any:
    return study.get_trials(deepcopy=False)[number]
