"""Open Optuna storages with heartbeats, retries and errors that suggest a remedy."""

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
    from optuna import Study
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.trial import FrozenTrial
    from sqlalchemy import Connection, Engine

    StaleTrialCallback = Callable[[Study, FrozenTrial], None]

Created = TypeVar("Created")

HEARTBEAT_SECONDS = 60
"""Seconds between two heartbeats; a worker without one for twice as long counts as killed."""
MAX_RETRY = 3
"""Maximum number of retries of a trial whose worker was killed."""

_SECONDS_TO_CREATE = 60
"""Time allowed for processes that open a new database together to create its tables."""
_CREATED_MEANWHILE = re.compile("exists|unique|duplicate|locked", re.IGNORECASE)
"""Database errors raised while another process creates the same tables; a new attempt succeeds."""
_LONGEST_LINE = 2**20
"""Maximum number of bytes read from the first line. Journal entries have a few hundred bytes."""
_JOURNAL_SUFFIXES = (".log", ".journal", ".jsonl")


class StorageError(ConnectionError):
    """The storage of a study cannot be reached, or is not an Optuna storage."""


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Silence Optuna's warnings about experimental features in the `with` block.

    Heartbeats, retries and metric names are such features.
    """
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def open_storage(
    storage: object, *, heartbeat: float = HEARTBEAT_SECONDS, max_retry: int = MAX_RETRY
) -> Any:
    """Open a storage. Databases get heartbeats, which tell when a worker elsewhere was killed.

    Args:
        storage: as in `optuna.create_study`: None for main memory, a URL (`sqlite:///study.db`,
            `postgresql://...`, `mysql://...`), or an Optuna storage, which is returned unchanged.
            Also the path of a journal file (`study.log`, `.journal` or `.jsonl`, or
            `journal://path`).
        heartbeat: seconds between two heartbeats, for databases only.
        max_retry: maximum number of retries of a trial whose heartbeats have stopped, for databases
            only.

    Returns:
        an object that Optuna accepts as `storage`.

    Raises:
        StorageError: the storage cannot be reached.
        ValueError: `storage` is neither a URL nor the path of a journal.
    """
    if not isinstance(storage, (str, os.PathLike)):
        return storage

    # A string without a scheme is the path of a journal.
    address = str(storage)
    is_path = "://" not in address
    is_journal = address.startswith("journal://") or (
        is_path and address.endswith(_JOURNAL_SUFFIXES)
    )
    if is_path and not is_journal:
        raise ValueError(
            f"storage={address!r} is not a storage URL. Pass e.g. sqlite:///study.db, "
            "postgresql://user@host/name, or the path of a journal file (study.log)."
        )
    with _as_storage_errors(address), without_experimental_warnings():
        if is_journal:
            return _open_journal(address.removeprefix("journal://"))
        return _open_database(address, heartbeat, max_retry)


def disconnect(storage: object) -> None:
    """Close the connections of a storage to its server; the next use opens new ones.

    Args:
        storage: an Optuna storage; nothing happens if it has no connections.
    """
    # A study wraps a database storage in a cache, whose `_backend` is the storage.
    database = getattr(storage, "_backend", storage)
    engine = getattr(database, "engine", None)
    if engine is not None:
        engine.dispose()


def retry_callback(max_retry: int = MAX_RETRY) -> StaleTrialCallback:
    """Return Optuna's callback that queues a retry of a trial whose worker was killed."""
    from optuna import storages

    # The class has another name since optuna 4.9.
    callback_class = getattr(storages, "RetryHeartbeatStaleTrialCallback", None)
    if callback_class is None:
        callback_class = storages.RetryFailedTrialCallback
    with without_experimental_warnings():
        return callback_class(max_retry=max_retry, inherit_intermediate_values=True)


def without_password(address: str) -> str:
    """Return a storage URL with its password replaced by stars."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", address)


def absolute_address(address: str) -> str:
    """Return the address of a storage with the absolute path of its file, if it has one.

    Args:
        address: a URL, or the path of a journal, see `open_storage`.
    """
    # `sqlite:////path` has an absolute path, and `sqlite:///file:name?uri=true` an SQLite URI.
    relative = re.match(r"((?:journal://|sqlite:///)?)(?!/|file:|:memory:|[\w+]+://)(.+)", address)
    return relative[1] + os.path.abspath(relative[2]) if relative else address


def _open_database(address: str, heartbeat: float, max_retry: int) -> RDBStorage:
    """Open a database by its URL, see `open_storage`."""
    from optuna.storages import RDBStorage

    # Optuna accepts only whole seconds of at least 1.
    options: dict[str, Any] = {"heartbeat_interval": max(int(heartbeat), 1)}

    # The parameter has another name since optuna 4.9.
    parameter = "heartbeat_stale_trial_callback"
    if parameter not in inspect.signature(RDBStorage.__init__).parameters:
        parameter = "failed_trial_callback"
    options[parameter] = retry_callback(max_retry)

    is_sqlite = address.startswith("sqlite")
    if is_sqlite:
        # Wait up to a minute while another worker writes. With isolation_level=None the driver does
        # not begin transactions itself, see `_lock_before_reading`.
        connection_options = {"timeout": 60, "isolation_level": None}
        options["engine_kwargs"] = {"connect_args": connection_options}
        _create_tables(address, options["engine_kwargs"])
    else:
        options["engine_kwargs"] = {"pool_pre_ping": True}
    storage = retry_while_locked(lambda: RDBStorage(address, **options))
    if is_sqlite:
        _lock_before_reading(storage.engine)
    return storage


def _create_tables(address: str, engine_options: dict[str, Any]) -> None:
    """Create the tables of an SQLite database in one transaction, unless they exist.

    Optuna would create each table and each index separately. If its process were killed in between,
    the index that makes study names unique could be missing from then on, and each search would
    create another study with the same name.

    Args:
        address: the URL of the database.
        engine_options: the options of `sqlalchemy.create_engine`.
    """
    from optuna.storages._rdb.models import BaseModel
    from sqlalchemy import create_engine

    engine = create_engine(address, **engine_options)
    _lock_before_reading(engine)
    BaseModel.metadata.create_all(engine)
    engine.dispose()


def _lock_before_reading(engine: Engine) -> None:
    """Make each transaction of an SQLite database lock the file before it reads.

    Python's driver would begin a transaction only at the first write. Optuna first reads that a
    queued trial is waiting, and then writes that it is running. Without the lock, two workers could
    start the same trial.

    Args:
        engine: the engine of the database, whose driver does not begin transactions itself.
    """
    from sqlalchemy import event

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "begin", begin)


def retry_while_locked(create: Callable[[], Created]) -> Created:
    """Create tables or a study, and retry while another process creates the same.

    Optuna creates missing tables without locking out other processes, and SQLite raises if two
    processes wait for each other.

    Args:
        create: creates the tables or the study.

    Returns:
        the result of `create`.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError

    deadline = time.monotonic() + _SECONDS_TO_CREATE
    while True:
        try:
            return create()
        except (DBAPIError, StorageInternalError) as error:
            reason = str(getattr(error, "orig", None) or error.__cause__)
            if time.monotonic() > deadline or not _CREATED_MEANWHILE.search(reason):
                raise
            # Pause for a random time, so that the two processes do not collide again.
            time.sleep(random.uniform(0.01, 0.1))


def database_address(path: str | os.PathLike[str]) -> str:
    """Return the URL of an SQLite file, whose path may contain any characters."""
    from sqlalchemy import URL

    return URL.create("sqlite", database=os.fspath(path)).render_as_string()


def _open_journal(path: str) -> JournalStorage:
    """Open a journal file, see `open_storage`."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from .journal_lock import RepairingLock

    if os.path.exists(path):
        _require_journal(path)
    path = os.path.abspath(path)
    return JournalStorage(JournalFileBackend(path, RepairingLock(path)))


def _require_journal(path: str) -> None:
    """Raise for a file that is not a journal, because Optuna would append to it."""
    with open(path, "rb") as file:
        first_line = file.readline(_LONGEST_LINE)
    try:
        is_journal = not first_line or "op_code" in json.loads(first_line)
    except (ValueError, TypeError, RecursionError):
        is_journal = False
    if not is_journal:
        raise StorageError(
            f"storage={path!r} is not a journal of optuna. Pass the path of a journal, or of a new "
            "file."
        )


@contextlib.contextmanager
def _as_storage_errors(address: str) -> Iterator[None]:
    """Convert errors in the `with` block, which opens a storage, to `StorageError`."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        # SQLAlchemy keeps the driver's error in `orig`; its first line is the readable part.
        first_line = str(getattr(error, "orig", None) or error).partition("\n")[0]
        reason = first_line or type(error).__name__
        raise StorageError(
            f"storage={without_password(address)!r} cannot be reached: {reason}. The folder of a "
            "sqlite:/// file has to exist, a database server has to run, and its driver has to be "
            "installed. No trial was started."
        ) from error
