"""Storages of studies: those of optuna, with a heartbeat, retries, and errors that say what to
do.
"""

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
    from .beating_journal import BeatingJournal

Made = TypeVar("Made")

HEARTBEAT_SECONDS = 60
"""Interval of a worker's heartbeat; a worker without one for twice as long counts as killed."""
MAX_RETRY = 3
"""Number of retries of a trial whose worker was killed."""

_SECONDS_TO_CREATE = 60
_CREATED_MEANWHILE = re.compile("exists|unique|duplicate|locked", re.IGNORECASE)
"""Errors of a database in which another process creates the same tables: a new attempt finds
them.
"""
_LONGEST_LINE = 2**20
"""Bytes; an entry of a journal has some hundred."""
_JOURNAL = (".log", ".journal", ".jsonl")


class StorageError(ConnectionError):
    """The storage of a study cannot be reached, or is not one of optuna."""


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Silence optuna's warnings about experimental features: heartbeats, retries, names of
    metrics.
    """
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def open_storage(
    storage: Any, *, heartbeat: float = HEARTBEAT_SECONDS, max_retry: int = MAX_RETRY
) -> Any:
    """As the parameter `storage` of `optuna.create_study`, with journal files, a heartbeat and
    retries.

    Args:
        storage: None for main memory, an address (`sqlite:///study.db`, `postgresql://...`,
            `mysql://...`), the path of a journal file (`study.log`, `.journal` or `.jsonl`, or
            `journal://path`), or an object of optuna, which is used as it is.
        heartbeat: seconds between two signs of life.
        max_retry: number of retries of a trial whose worker was killed.

    Raises:
        StorageError: it cannot be reached.
        ValueError: it is not an address.
    """
    if not isinstance(storage, (str, os.PathLike)):
        return storage
    address = str(storage)
    is_path = "://" not in address
    is_journal = address.startswith("journal://") or (is_path and address.endswith(_JOURNAL))
    if is_path and not is_journal:
        known = (
            "sqlite:///study.db, postgresql://user@host/name, or the path of a journal file "
            "(study.log)"
        )
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

    kind = (
        getattr(storages, "RetryHeartbeatStaleTrialCallback", None)
        or storages.RetryFailedTrialCallback
    )
    with without_experimental_warnings():
        return kind(max_retry=max_retry, inherit_intermediate_values=True)


def shown(address: str) -> str:
    """Return an address without its password."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", address)


def _database(address: str, heartbeat: float, max_retry: int) -> Any:
    from optuna.storages import RDBStorage

    options: dict[str, Any] = {"heartbeat_interval": _interval(heartbeat)}

    # The parameter has another name since optuna 4.9.
    on_stale = "heartbeat_stale_trial_callback"
    if on_stale not in inspect.signature(RDBStorage.__init__).parameters:
        on_stale = "failed_trial_callback"
    options[on_stale] = retry_callback(max_retry)

    if address.startswith("sqlite"):
        # Workers that write to one file wait for each other.
        options["engine_kwargs"] = {"connect_args": {"timeout": 60}}
    else:
        options["engine_kwargs"] = {"pool_pre_ping": True}
    return until_unlocked(lambda: RDBStorage(address, **options))


def until_unlocked(make: Callable[[], Made]) -> Made:
    """Return the result of a function that creates tables or a study, while other processes may do
    so, too.

    optuna creates missing tables without a lock against others; and SQLite refuses to wait where
    two processes wait for each other.
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


def _journal(path: str, heartbeat: float, max_retry: int) -> BeatingJournal:
    from .beating_journal import BeatingJournal

    if os.path.exists(path):
        _require_journal(path)
    return BeatingJournal(path, _interval(heartbeat), retry_callback(max_retry))


def _interval(heartbeat: float) -> int:
    """Return the seconds between two heartbeats as optuna takes them: a whole number of at least
    1.
    """
    return max(int(heartbeat), 1)


def _require_journal(path: str) -> None:
    """Refuse a file that is not a journal, as optuna would append to it."""
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_LINE)
    if first and not _is_entry(first):
        raise StorageError(
            f"storage={path!r} is not a journal of optuna. Pass the path of one, or of a new file."
        )


def _is_entry(line: bytes) -> bool:
    """Return whether a line is an entry of a journal."""
    try:
        return "op_code" in json.loads(line.decode())
    except (ValueError, TypeError, RecursionError):
        return False


@contextlib.contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise StorageError(
            f"storage={shown(address)!r} cannot be reached: {reason or type(error).__name__}. A "
            "folder of sqlite:/// has to exist, a server to run, its driver to be installed. "
            "Nothing was begun."
        ) from error
