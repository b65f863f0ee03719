"""Find interrupted and failed trials of a study, queue them again, and resume them."""

from __future__ import annotations

import logging
import math
import time
import uuid
import warnings
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ...lightning_modules.common.process_identity import process_state, process_token
from ...lightning_modules.search.channel import FAILURE
from .storages import MAX_RETRY, retry_callback, without_experimental_warnings

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

    from ...lightning_modules.search.shared_study import SharedTrial

logger = logging.getLogger(__name__)

WORKER = "lightrainer:worker"
"""User attribute of a trial: its number, and the process that runs it."""
FOLDER = "lightrainer:folder"
"""User attribute of a trial: its folder; a retry uses the folder of the trial that it retries."""
LOG = "lightrainer:log"
"""User attribute of a trial of a sweep: the file with the output of its script."""
COMMAND = "lightrainer:command"
"""User attribute of a trial of a sweep: the command that trains it again."""
SECONDS_TO_CLAIM = 10.0
"""Seconds within which a process claims a trial that it started; it usually takes milliseconds."""
_OWNER = "lightrainer:owner"
"""User attribute of a trial: the owner of its folder, see `claim_folder`."""
_POLL_SECONDS = 0.1
"""Seconds between two checks whether trials were claimed."""

_RETRY_HISTORY = "retry_history"
"""System attribute of optuna: the numbers of the trials that a trial retries."""


class Start(NamedTuple):
    """Initial data of a trial, which a retry inherits from the trial that it retries."""

    origin: int
    """The number of the trial; for a retry the number of the first trial that it retries."""
    owner: str
    """The owner of the trial's folder, see `claim_folder`."""
    checkpoint: str | None = None
    """The checkpoint that the trial resumes from; None to start from scratch."""


def is_persistent(study: Study) -> bool:
    """Return whether other processes can continue a study."""
    from optuna.storages import InMemoryStorage

    return not isinstance(study._storage, InMemoryStorage)


def record_worker(study: Study, trial: Trial) -> None:
    """Record the process that runs a trial, so that others can tell whether it has exited."""
    if is_persistent(study):
        trial.set_user_attr(WORKER, [trial.number, process_token()])


def origin_of(study: Study, trial: Trial | SharedTrial) -> int:
    """Return the number of the first trial that this one retries, or its own number."""
    origin = _stored_trial(study, trial.number).system_attrs.get("failed_trial", trial.number)
    # Accept only an int, because the number becomes part of a path, and the storage may have been
    # edited.
    return origin if type(origin) is int else trial.number


def owner_of(trial: Trial) -> str:
    """Return the owner of a trial's folder; a retry has the owner of the trial that it retries."""
    if not isinstance(trial.user_attrs.get(_OWNER), str):
        trial.set_user_attr(_OWNER, uuid.uuid4().hex)
    return trial.user_attrs[_OWNER]


def interrupted(trials: Iterable[FrozenTrial]) -> set[int]:
    """Return the numbers of the trials that were interrupted, which are those with a retry."""
    numbers: set[int] = set()
    for trial in trials:
        numbers.update(trial.system_attrs.get(_RETRY_HISTORY, []))
    return numbers


def failure_reasons(trials: Iterable[FrozenTrial]) -> dict[int, str]:
    """Return the reason of each failed trial by its number; interrupted trials are left out."""
    interrupted_numbers = interrupted(trials)
    reasons = {}
    for trial in trials:
        if trial.state.name == "FAIL" and trial.number not in interrupted_numbers:
            reasons[trial.number] = trial.user_attrs.get(
                FAILURE, "its process exited without reporting an error"
            )
    return reasons


def state_of(trial: FrozenTrial, reasons: dict[int, str]) -> str:
    """Return optuna's state of a trial, or INTERRUPTED, which optuna counts as failed.

    Args:
        trial: the trial.
        reasons: the `failure_reasons` of its study.
    """
    if trial.state.name == "FAIL" and trial.number not in reasons:
        return "INTERRUPTED"
    return trial.state.name


def format_failures(reasons: dict[int, str], limit: int = 5) -> str:
    """Format failures for a message, one per line.

    Args:
        reasons: the reason of each failed trial, by its number.
        limit: maximum number of failures to list.
    """
    lines = [f"\n  trial {number}: {reason}" for number, reason in reasons.items()]
    text = "".join(lines[:limit])
    if len(lines) > limit:
        text += f"\n  and {len(lines) - limit} more"
    return text


def may_retry(study: Study, number: int, max_retry: int = MAX_RETRY) -> bool:
    """Return whether a trial was retried fewer than `max_retry` times."""
    history = _stored_trial(study, number).system_attrs.get(_RETRY_HISTORY, [])
    return len(history) < max_retry


def queue_retry(study: Study, number: int, max_retry: int = MAX_RETRY) -> None:
    """Queue a retry of a failed trial, unless it was already retried `max_retry` times."""
    callback = retry_callback(max_retry)
    callback(study, _stored_trial(study, number))


def fail_and_retry(study: Study, number: int, max_retry: int = MAX_RETRY) -> None:
    """Mark a running trial as failed, and queue a retry, unless another process has done both."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    # Do not use `Study.tell`, which also calls the sampler: a grid sampler stops the study after
    # its last point, which raises outside of `Study.optimize`.
    trial_id = _stored_trial(study, number)._trial_id
    try:
        study._storage.set_trial_state_values(trial_id, state=TrialState.FAIL)
    except UpdateFinishedTrialError:
        return
    if number not in interrupted(study.get_trials(deepcopy=False)):
        queue_retry(study, number, max_retry)


def retry_killed_trials(
    study: Study, max_retry: int = MAX_RETRY, seconds_to_claim: float = math.inf
) -> list[int]:
    """Queue retries of trials whose process was killed, and return the numbers of these trials.

    Processes of this machine are looked up. A process of another machine counts as killed when its
    heartbeat stops, if the storage has heartbeats.

    Args:
        study: the study.
        max_retry: maximum number of retries of a trial.
        seconds_to_claim: seconds after which a running trial that no process has claimed counts as
            killed.
    """
    from optuna.storages import fail_stale_trials

    trials = study.get_trials(deepcopy=False)
    retried_before = interrupted(trials)
    with without_experimental_warnings():
        fail_stale_trials(study)

    for trial in trials:
        owner_state = _owner_state(trial)
        is_overdue = owner_state is None and _seconds_since_start(trial) > seconds_to_claim
        if trial.state.name == "RUNNING" and (owner_state == "ended" or is_overdue):
            fail_and_retry(study, trial.number, max_retry)

        # Also queue the retry of a trial whose process was killed after it marked the trial as
        # failed, but before it queued the retry.
        lacks_retry = trial.number not in retried_before and FAILURE not in trial.user_attrs
        if trial.state.name == "FAIL" and owner_state == "ended" and lacks_retry:
            queue_retry(study, trial.number, max_retry)

    retried_now = interrupted(study.get_trials(deepcopy=False))
    return sorted(retried_now - retried_before)


def retry_unclaimed_trials(study: Study) -> None:
    """Queue retries of trials whose process was killed before it claimed them.

    Args:
        study: the study. If it has such trials, this waits until other processes have had the time
            to claim theirs.
    """
    deadline = time.monotonic() + SECONDS_TO_CLAIM
    while unclaimed := _unclaimed_trials(study):
        if time.monotonic() > deadline:
            for number in unclaimed:
                fail_and_retry(study, number)
            return
        time.sleep(_POLL_SECONDS)


def possibly_killed_trials(study: Study) -> list[int]:
    """Return the numbers of running trials whose process is not found on this machine."""
    numbers = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name == "RUNNING" and _owner_state(trial) != "running":
            numbers.append(trial.number)
    return numbers


def is_pruned(trial: Trial | SharedTrial, value: float, position: int) -> bool:
    """Report a value to a trial, and return whether the trial is pruned.

    Args:
        trial: the trial; a retry inherits the reported values of the trial that it retries.
        value: the value to report; ignored if the trial has a value for this position.
        position: the step, or the epoch.
    """
    with warnings.catch_warnings():
        # Optuna keeps the first value of a position, and warns when a retry reports it again.
        warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
        trial.report(value, position)
    return trial.should_prune()


def _unclaimed_trials(study: Study) -> list[int]:
    """Return the numbers of the running trials that the process of a search has yet to claim."""
    numbers = []
    for trial in study.get_trials(deepcopy=False):
        # An objective of the user claims nothing, but has parameters. A retry inherits its own.
        may_be_of_a_search = not trial.params or _RETRY_HISTORY in trial.system_attrs
        is_claimed = _owner_state(trial) is not None
        if trial.state.name == "RUNNING" and may_be_of_a_search and not is_claimed:
            numbers.append(trial.number)
    return numbers


def _owner_state(trial: FrozenTrial) -> str | None:
    """Return the `process_state` of the process that claimed a trial; None if none has."""
    claim = trial.user_attrs.get(WORKER)
    # A claim contains the number of its trial, because a retry inherits the attributes of the trial
    # that it retries.
    if not isinstance(claim, list) or claim[:1] != [trial.number]:
        return None
    return process_state(str(claim[-1]))


def _seconds_since_start(trial: FrozenTrial) -> float:
    """Return the seconds since a trial started; 0 for a trial that has not started."""
    if trial.datetime_start is None:
        return 0.0
    elapsed = datetime.now() - trial.datetime_start
    return elapsed.total_seconds()


def _stored_trial(study: Study, number: int) -> FrozenTrial:
    """Return the current state of a trial in the storage."""
    return study.get_trials(deepcopy=False)[number]
