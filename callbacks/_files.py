"""Atomic file writes, and checks of names that become folders."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Protocol

from ..lightning_modules.common.flushing import flush
from ..lightning_modules.common.process_identity import process_token

logger = logging.getLogger(__name__)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path` atomically: a reader sees the old file or the new one.

    The content is written to a temporary file in the same folder, flushed to the disk, and renamed.
    If anything fails, the temporary file is removed and the old file stays unchanged. Its name is
    that of an unfinished checkpoint, so if the process is killed, the next training in the folder
    removes it.

    Raises:
        OSError: the file could not be written; names it.
    """
    # A link stays a link: the file that it points to is replaced.
    target = Path(os.path.realpath(path))
    unique_name = f".{target.name}.{os.urandom(4).hex()}.partial-{process_token()}"
    temporary_file = target.with_name(unique_name)
    try:
        with open(temporary_file, "wb") as file:
            file.write(content)
            file.flush()
            flush(file.fileno())
        os.replace(temporary_file, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary_file.unlink()
        # Python names the file only in errors of opening and renaming. One without a number has a
        # message of its own, which the name would hide.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = os.fspath(target)
        raise


def is_folder_name(name: object) -> bool:
    """Return whether a name is a single path component that stays inside its parent folder."""
    if not isinstance(name, str) or name.strip() in ("", ".", ".."):
        return False
    return not any(forbidden in name for forbidden in ("/", "\\", "\0"))


class _TrialState(Protocol):
    """The part of a `TrainerState` about trials."""

    is_hyper_param_search: bool
    trial_name: str | None


def trial_folder(folder: str | os.PathLike[str], state: _TrialState) -> str:
    """Return the folder to which a callback writes.

    In a hyperparameter search each trial has its own subfolder.

    Args:
        folder: the folder outside of searches.
        state: the state of the training. Its `trial_name` may be any text, as a user can choose it.
    """
    if not state.is_hyper_param_search or not state.trial_name:
        return os.fspath(folder)
    if not is_folder_name(state.trial_name):
        logger.warning(
            "trial_name is %r, which is not a valid folder name: writing to %s instead.",
            state.trial_name,
            folder,
        )
        return os.fspath(folder)
    return os.path.join(folder, state.trial_name)
