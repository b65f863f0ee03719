"""Heartbeats for optuna's journal storage; optuna itself has heartbeats for databases only.

The time of the latest heartbeat is a system attribute of each running trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from optuna import Study
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

StaleTrialCallback = Callable[[Study, FrozenTrial], None]

_HEARTBEAT = "lightrainer:heartbeat"
"""System attribute of a trial: its number, and the time of its latest heartbeat."""


class HeartbeatJournal(JournalStorage, BaseHeartbeat):
    """`optuna.storages.JournalStorage` with heartbeats.

    Args:
        path: path of the journal file.
        interval: seconds between two heartbeats. A trial without one for twice as long is stale.
        on_stale: called by optuna for each stale trial, after it was marked as failed.
    """

    def __init__(self, path: str, interval: int, on_stale: StaleTrialCallback) -> None:
        super().__init__(JournalFileBackend(path))
        self._interval = interval
        self._on_stale = on_stale

    def record_heartbeat(self, trial_id: int) -> None:
        """Record that the process of this trial is alive."""
        # While this process was suspended, another one may have marked the trial as failed.
        with suppress(UpdateFinishedTrialError):
            number = self.get_trial_number_from_id(trial_id)
            self.set_trial_system_attr(trial_id, _HEARTBEAT, [number, time.time()])

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        oldest_alive = time.time() - 2 * self._interval
        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        stale_ids = []
        for trial in running:
            # A retry has the attributes of the trial that it retries, hence the number.
            number, last_heartbeat = trial.system_attrs.get(_HEARTBEAT, (None, 0.0))
            if number == trial.number and last_heartbeat < oldest_alive:
                trial_id = self.get_trial_id_from_study_id_trial_number(study_id, trial.number)
                stale_ids.append(trial_id)
        return stale_ids

    def get_heartbeat_interval(self) -> int:
        """Return the seconds between two heartbeats."""
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> StaleTrialCallback:
        """Return the function that optuna calls for stale trials."""
        return self._on_stale

    # The name of the method before optuna 4.9.
    get_failed_trial_callback = get_heartbeat_stale_trial_callback
