"""A journal of optuna with heartbeats, which optuna has for databases only: attributes of the
running trials.
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

OnStale = Callable[[Study, FrozenTrial], None]

_HEARTBEAT = "lightrainer:heartbeat"
"""Attribute of a trial: its number, and the time of the latest sign of life."""


class BeatingJournal(JournalStorage, BaseHeartbeat):
    """As `optuna.storages.JournalStorage`, with heartbeats.

    Args:
        path: of the file.
        interval: seconds between two heartbeats; a trial without one for twice as long is stale.
        on_stale: called by optuna for each trial that it has failed as stale.
    """

    def __init__(self, path: str, interval: int, on_stale: OnStale) -> None:
        super().__init__(JournalFileBackend(path))
        self._interval = interval
        self._on_stale = on_stale

    def record_heartbeat(self, trial_id: int) -> None:
        """Write the time of this sign of life."""
        # Another process may have given the trial up, while this one was suspended.
        with suppress(UpdateFinishedTrialError):
            number = self.get_trial_number_from_id(trial_id)
            self.set_trial_system_attr(trial_id, _HEARTBEAT, [number, time.time()])

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        latest = time.time() - 2 * self._interval
        stale = []
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            # A retry has the attributes of the trial that it retries.
            owner, beat = trial.system_attrs.get(_HEARTBEAT, (None, 0.0))
            if owner == trial.number and beat < latest:
                stale.append(self.get_trial_id_from_study_id_trial_number(study_id, trial.number))
        return stale

    def get_heartbeat_interval(self) -> int:
        """Return the seconds between two heartbeats."""
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> OnStale:
        """Return the function that is called for stale trials."""
        return self._on_stale

    get_failed_trial_callback = get_heartbeat_stale_trial_callback  # its name before optuna 4.9
