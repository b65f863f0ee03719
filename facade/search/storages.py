"""Storages of studies: those of optuna, with a heartbeat, retries, and errors that say what to do."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from optuna.storages import JournalStorage

Made = TypeVar("Made")

HEARTBEAT_SECONDS = 60
"""Interval of a worker's heartbeat; a worker without one for twice as long counts as killed."""
MAX_RETRY = 3
"""Number of retries of a trial whose worker was killed."""

_SECONDS_TO_CREATE = 60
_CREATED_MEANWHILE = re.compile("exists|unique|duplicate|locked", re.IGNORECASE)
"""Errors of a database in which another process creates the same tables: a new attempt finds them."""
_HEARTBEAT = "lightrainer:heartbeat"
"""Attribute of a trial in a journal: its number, and the time of the latest sign of life."""
_LONGEST_LINE = 2**20
"""Bytes; an entry of a journal has some hundred."""
_JOURNAL = (".log", ".journal", ".jsonl")


class StorageError(ConnectionError):
    """The storage of a study cannot be reached, or is not one of optuna."""


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Silence optuna's warnings about experimental features: heartbeats, retries, names of metrics."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def open_storage(storage: Any, *, heartbeat: float = HEARTBEAT_SECONDS, max_retry: int = MAX_RETRY) -> Any:
    """As the parameter `storage` of `optuna.create_study`, with journal files, a heartbeat and retries.

    Args:
        storage: None for main memory, an address (`sqlite:///study.db`, `postgresql://...`, `mysql://...`), the path of
            a journal file (`study.log`, `.journal` or `.jsonl`, or `journal://path`), or an object of optuna, which is
            used as it is.
        heartbeat: seconds between two signs of life.
        max_retry: number of retries of a trial whose worker was killed.

    Raises:
        StorageError: it cannot be reached.
        ValueError: it is not an address.
    """
    if not isinstance(storage, (str, os.PathLike)):
        return storage
    address = str(storage)
    is_journal = address.startswith("journal://") or ("://" not in address and address.endswith(_JOURNAL))
    if not is_journal and "://" not in address:
        known = "sqlite:///study.db, postgresql://user@host/name, or the path of a journal file (study.log)"
        raise ValueError(f"storage={address!r} is not a storage URL. Pass e.g. {known}.")
    with _explained(address), without_experimental_warnings():
        if is_journal:
            return _journal(address.removeprefix("journal://"), heartbeat, max_retry)
        return _database(address, heartbeat, max_retry)


def disconnect(storage: Any) -> None:
    """Close the connections of a storage to its server; the next use opens new ones.

    Args:
        storage: of optuna; one without connections is left alone.
    """
    engine = getattr(getattr(storage, "_backend", storage), "engine", None)
    if engine is not None:
        engine.dispose()


def retry_callback(max_retry: int = MAX_RETRY) -> Any:
    """Return optuna's callback that queues a trial whose worker was killed."""
    from optuna import storages

    kind = getattr(storages, "RetryHeartbeatStaleTrialCallback", None) or storages.RetryFailedTrialCallback
    with without_experimental_warnings():
        return kind(max_retry=max_retry)


def shown(address: str) -> str:
    """Return an address without its password."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", address)


def _database(address: str, heartbeat: float, max_retry: int) -> Any:
    from optuna.storages import RDBStorage

    accepted = inspect.signature(RDBStorage.__init__).parameters
    name = "heartbeat_stale_trial_callback" if "heartbeat_stale_trial_callback" in accepted else "failed_trial_callback"
    retry: Any = {name: retry_callback(max_retry)}
    # Workers that write to one file wait for each other.
    engine = {"connect_args": {"timeout": 60}} if address.startswith("sqlite") else {"pool_pre_ping": True}
    return until_unlocked(
        lambda: RDBStorage(address, engine_kwargs=engine, heartbeat_interval=max(int(heartbeat), 1), **retry)
    )


def until_unlocked(make: Callable[[], Made]) -> Made:
    """Return the result of a function that creates tables or a study, while other processes may do so, too.

    optuna creates missing tables without a lock against others; and SQLite refuses to wait where two processes wait for
    each other.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError

    deadline = time.monotonic() + _SECONDS_TO_CREATE
    while True:
        try:
            return make()
        except (DBAPIError, StorageInternalError) as error:
            reason = str(getattr(error, "orig", None) or error.__cause__)
            if time.monotonic() > deadline or not _CREATED_MEANWHILE.search(reason):
                raise
            time.sleep(random.uniform(0.01, 0.1))


def database_address(path: str | os.PathLike[str]) -> str:
    """Return the address of a database in a file, whose path may have any characters."""
    from sqlalchemy import URL

    return URL.create("sqlite", database=os.fspath(path)).render_as_string()


def _journal(path: str, heartbeat: float, max_retry: int) -> JournalStorage:
    """Return a journal with heartbeats, which optuna has for databases only: attributes of the running trials."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.storages import JournalStorage
    from optuna.storages._heartbeat import BaseHeartbeat
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    class BeatingJournal(JournalStorage, BaseHeartbeat):
        def record_heartbeat(self, trial_id: int) -> None:
            # Another process may have given the trial up, while this one was suspended.
            with contextlib.suppress(UpdateFinishedTrialError):
                number = self.get_trial_number_from_id(trial_id)
                self.set_trial_system_attr(trial_id, _HEARTBEAT, [number, time.time()])

        def _get_stale_trial_ids(self, study_id: int) -> list[int]:
            stale = []
            for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
                # A retry has the attributes of the trial that it retries.
                owner, beat = trial.system_attrs.get(_HEARTBEAT, (None, 0.0))
                if owner == trial.number and time.time() - beat > 2 * self.get_heartbeat_interval():
                    stale.append(self.get_trial_id_from_study_id_trial_number(study_id, trial.number))
            return stale

        def get_heartbeat_interval(self) -> int:
            return max(int(heartbeat), 1)

        def get_heartbeat_stale_trial_callback(self) -> Any:
            return retry_callback(max_retry)

        get_failed_trial_callback = get_heartbeat_stale_trial_callback  # its name before optuna 4.9

    if os.path.exists(path):
        _require_journal(path)
    return BeatingJournal(JournalFileBackend(path))


def _require_journal(path: str) -> None:
    """Refuse a file that is not a journal, as optuna would append to it."""
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_LINE)
    try:
        is_entry = "op_code" in json.loads(first.decode()) if first else True
    except (ValueError, TypeError, RecursionError):
        is_entry = False
    if not is_entry:
        raise StorageError(f"storage={path!r} is not a journal of optuna. Pass the path of one, or of a new file.")


@contextlib.contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise StorageError(
            f"storage={shown(address)!r} cannot be reached: {reason or type(error).__name__}. A folder of sqlite:/// "
            "has to exist, a server to run, its driver to be installed. Nothing was begun."
        ) from error
