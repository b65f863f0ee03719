"""Where a study is kept: optuna's own storages, with a heartbeat, and with an error that helps."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import random
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 60
"""How often a worker says that its trial is alive; one that is silent for twice as long is taken for killed."""
MAX_RETRY = 3
"""How often a trial whose worker was killed is begun again."""

_SECONDS_TO_CREATE = 60
_CREATED_MEANWHILE = re.compile("exists|unique|duplicate|locked", re.IGNORECASE)
"""Errors of a database in which another process creates the same tables: a new attempt finds them."""
_LONGEST_LINE = 2**20
"""Bytes; an entry of a journal has some hundred."""
_JOURNAL = (".log", ".journal", ".jsonl")


class StorageError(ConnectionError):
    """The storage of a study cannot be reached, or what is there is no study of optuna."""


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Heartbeats and retries are what optuna calls experimental; it says so at each use."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def open_storage(storage: Any, *, heartbeat: float = HEARTBEAT_SECONDS, max_retry: int = MAX_RETRY) -> Any:
    """As what `optuna.create_study` makes of `storage`, but workers that were killed are noticed.

    Args:
        storage: None for main memory, an address (`sqlite:///study.db`, `postgresql://...`, `mysql://...`), the path of
            a journal file (`study.log`, `.journal` or `.jsonl`, or `journal://path`), or an object of optuna, which is
            used as it is.
        heartbeat: seconds between two signs of life.
        max_retry: how often a trial is begun again whose worker was killed.

    Raises:
        StorageError: it cannot be reached.
        ValueError: this is no address.
    """
    if not isinstance(storage, (str, os.PathLike)):
        return storage
    address = str(storage)
    path = journal_path(address)
    with _explained(address), without_experimental_warnings():
        return _journal(path) if path is not None else _database(address, heartbeat, max_retry)


def disconnect(storage: Any) -> None:
    """Close the connections of a storage to its server; the next use opens new ones.

    Args:
        storage: of optuna; one without connections is left alone.
    """
    engine = getattr(getattr(storage, "_backend", storage), "engine", None)
    if engine is not None:
        engine.dispose()


def journal_path(address: str) -> str | None:
    """The file of a journal; None where the address is that of a database.

    Raises:
        ValueError: it is neither.
    """
    if address.startswith("journal://"):
        return address.removeprefix("journal://")
    if "://" in address:
        return None
    if address.endswith(_JOURNAL):
        return address
    raise ValueError(
        f"storage={address!r} is no address of a storage. Pass e.g. sqlite:///study.db (one machine), "
        "postgresql://user@host/name or mysql://user@host/name, or the path of a journal file (study.log) on a disk "
        "that all machines see."
    )


def retry_callback(max_retry: int = MAX_RETRY) -> Any:
    """Puts a trial whose worker was killed into the queue once more."""
    from optuna import storages

    kind = getattr(storages, "RetryHeartbeatStaleTrialCallback", None) or storages.RetryFailedTrialCallback
    with without_experimental_warnings():
        return kind(max_retry=max_retry)


def shown(address: str) -> str:
    """An address without its password."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", address)


def _database(address: str, heartbeat: float, max_retry: int) -> Any:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import DBAPIError

    accepted = inspect.signature(RDBStorage.__init__).parameters
    name = "heartbeat_stale_trial_callback" if "heartbeat_stale_trial_callback" in accepted else "failed_trial_callback"
    retry: Any = {name: retry_callback(max_retry)}
    # Several workers write to one file: better wait for one another than fail.
    engine = {"connect_args": {"timeout": 60}} if address.startswith("sqlite") else {"pool_pre_ping": True}
    give_up = time.monotonic() + _SECONDS_TO_CREATE
    while True:
        try:
            return RDBStorage(address, engine_kwargs=engine, heartbeat_interval=max(int(heartbeat), 1), **retry)
        except DBAPIError as error:  # optuna creates missing tables without a lock against other processes
            if time.monotonic() > give_up or not _CREATED_MEANWHILE.search(str(error.orig)):
                raise
            time.sleep(random.uniform(0.01, 0.1))


def _journal(path: str) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StorageError(f"storage={path!r} cannot be reached: there is no folder {folder}. Nothing was begun.")
    reason = _why_no_journal(path)
    if reason:
        raise StorageError(
            f"storage={path!r} is no journal of optuna: {reason}. Pass the path of one, or of a new file, on a disk "
            "that all machines see. Nothing was begun."
        )
    return JournalStorage(JournalFileBackend(path))


def _why_no_journal(path: str) -> str | None:
    """What is wrong with a file in which optuna is to go on: it appends to whatever there is."""
    if not path or os.path.isdir(path):
        return "it is a folder" if path else "it has no name"
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_LINE)
    try:
        entry = json.loads(first.decode()) if first else {"op_code": 0}
    except (ValueError, RecursionError):
        return "its first line is not JSON"
    return None if isinstance(entry, dict) and "op_code" in entry else "its first line is not an entry of a study"


@contextlib.contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"storage={shown(address)!r} needs a driver of the database that is not installed ({_missing(error)}). "
            "Install the one that the address names: psycopg[binary] for postgresql+psycopg://, psycopg2-binary for "
            "postgresql+psycopg2://, pymysql for mysql+pymysql://."
        ) from error
    except StorageError:
        raise
    except Exception as error:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise StorageError(
            f"storage={shown(address)!r} cannot be reached: {reason or type(error).__name__}. For sqlite:/// the "
            "folder has to exist (a relative path has three slashes, an absolute one four); a server has to run and "
            "to let this user in. Nothing was begun."
        ) from error


def _missing(error: BaseException) -> str:
    """What the error came from in the end: the package that was not there."""
    while (cause := error.__cause__) is not None:
        error = cause
    return str(error)
