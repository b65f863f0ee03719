"""Trials whose worker was killed: they fail, are begun again, and go on from their own checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

from ...callbacks import TrainerState
from ...lightning_modules.checkpoints import last_intact_checkpoint
from ...lightning_modules.common.process_identity import is_gone, owner_token
from ...lightning_modules.search.together import FAILURE
from .storages import MAX_RETRY, retry_callback

logger = logging.getLogger(__name__)

WORKER = "lightrainer:worker"
"""The attribute of a trial that says which process works on it."""
FOLDER, LOG = "lightrainer:folder", "lightrainer:log"
"""The attributes that say where the files of a trial are; a retry shares them with the trial that it goes on with."""
COMMAND = "lightrainer:command"
"""The attribute of a trial of a sweep with the command that trains it once more."""
_REPEATS = "lightrainer:repeats"
"""The attribute with the number of a failed trial whose values are tried once more."""


class Continuation(NamedTuple):
    """Where a trial goes on that was interrupted."""

    origin: int
    """The number of the trial that was begun first: the folder is called after it."""
    checkpoint: str | None = None
    reports: dict[int, float] = {}
    """What had been reported up to the checkpoint, by step."""


def is_persistent(study: Any) -> bool:
    """Whether others can go on with a study when this process is gone."""
    from optuna.storages import InMemoryStorage

    return not isinstance(study._storage, InMemoryStorage)


def take_on(study: Any, trial: Any) -> None:
    """Note who works on a trial, so that it can be told whether that process is still there."""
    if is_persistent(study):
        trial.set_user_attr(WORKER, owner_token())


def frozen(study: Any, number: int) -> Any:
    """A trial as the study has it."""
    return study.get_trials(deepcopy=False)[number]


def origin_of(study: Any, trial: Any) -> int:
    """The number of the trial that this one is a retry of; its own, if of none."""
    origin = frozen(study, trial.number).system_attrs.get("failed_trial", trial.number)
    return origin if type(origin) is int else trial.number  # it names a folder, and a storage can hold anything


def origins_of(study: Any) -> dict[int, int]:
    """By the number of each retry the number of the trial that it is one of."""
    trials = study.get_trials(deepcopy=False)
    return {one.number: one.system_attrs["failed_trial"] for one in trials if "failed_trial" in one.system_attrs}


def interrupted(trials: Any) -> set[int]:
    """The numbers of trials that did not fail by themselves: they were interrupted, and there is a retry of each."""
    return {number for trial in trials for number in trial.system_attrs.get("retry_history", [])}


def state_of(trial: Any, passed_on: set[int]) -> str:
    """The state of a trial for people: as optuna has it, or INTERRUPTED, which optuna counts among the failed ones.

    Args:
        trial: the trial.
        passed_on: what `interrupted` says of all trials.
    """
    return "INTERRUPTED" if trial.number in passed_on and trial.state.name == "FAIL" else trial.state.name


def failures(trials: Any) -> dict[int, str]:
    """Return why trials failed, by their numbers; those that were interrupted are none of them."""
    passed_on = interrupted(trials)
    failed = [trial for trial in trials if state_of(trial, passed_on) == "FAIL"]
    return {trial.number: trial.user_attrs.get(FAILURE, "its process ended without a reason") for trial in failed}


def listed(reasons: dict[int, str], most: int = 5) -> str:
    """Return which trials failed, and why, in one line for each."""
    lines = [f"\n  trial {number}: {why}" for number, why in reasons.items()]
    return "".join(lines[:most]) + (f"\n  and {len(lines) - most} more" if len(lines) > most else "")


def repeat_failed(study: Any) -> list[int]:
    """Queue the values of trials that failed, each once; their numbers."""
    trials = study.get_trials(deepcopy=False)
    repeated = {trial.user_attrs.get(_REPEATS) for trial in trials}
    numbers = [number for number in failures(trials) if number not in repeated]
    for number in numbers:
        study.enqueue_trial(trials[number].params, user_attrs={_REPEATS: number})
    return numbers


def queue_again(study: Any, number: int, max_retry: int = MAX_RETRY) -> None:
    """Put a trial that failed, or is about to, into the queue once more; not if it was there too often."""
    retry_callback(max_retry)(study, frozen(study, number))


def give_up(study: Any, number: int, max_retry: int = MAX_RETRY) -> None:
    """Let a running trial fail, and put it into the queue again."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    trial = frozen(study, number)
    try:
        study._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)
    except UpdateFinishedTrialError:  # somebody else was quicker, and has queued it too
        return
    queue_again(study, number, max_retry)


def give_up_dead(study: Any, max_retry: int = MAX_RETRY) -> list[int]:
    """Let the trials of processes of this machine fail that are gone, and queue them; their numbers.

    What ran on other machines is noticed by its heartbeat, in storages that have one.
    """
    from optuna.trial import TrialState

    if not is_persistent(study):
        return []
    found = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        worker = trial.user_attrs.get(WORKER)
        if worker is not None and is_gone(worker):
            logger.warning("Trial %s was not finished: its process is gone. It is begun again.", trial.number)
            give_up(study, trial.number, max_retry)
            found.append(trial.number)
    return found


def continuation(study: Any, trial: Any, folder: Path, number: int, unit: str = "steps") -> Continuation:
    """Where a retry goes on.

    Args:
        study: its study.
        trial: the retry.
        folder: the folder of the trial that was interrupted.
        number: the number of that trial.
        unit: what it was reported under, `steps` or `epochs`.
    """
    checkpoint = last_intact_checkpoint(folder) if folder.is_dir() else None
    if checkpoint is None:
        return Continuation(number)
    reached = float(Path(checkpoint).name.rpartition("-")[2])
    if unit == "epochs":
        reached = TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json").epoch or 0.0
    history = frozen(study, trial.number).system_attrs.get("retry_history", [number])
    reports: dict[int, float] = {}
    for earlier in history:
        reports |= {at: value for at, value in frozen(study, earlier).intermediate_values.items() if at <= reached}
    logger.info("Trial %s goes on from %s.", trial.number, checkpoint)
    return Continuation(number, checkpoint, reports)
