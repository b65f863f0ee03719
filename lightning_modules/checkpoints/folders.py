"""List folders `checkpoint-N`, find the newest intact one, and delete the oldest.

As the checkpoint functions of `transformers.trainer_utils`, but robust against damage and kills.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from ..common.file_names import PREFIX_CHECKPOINT_DIR
from ..common.local_paths import StrPath
from .staging import discard, restore_replaced
from .verify import problems

_log = logging.getLogger(__name__)


class CheckpointNotFoundError(FileNotFoundError, ValueError):
    """No checkpoint was found. A ValueError, as in the reference, and also a FileNotFoundError."""


def list_checkpoints(run_dir: StrPath, prefix: str = PREFIX_CHECKPOINT_DIR) -> list[Path]:
    """Return all folders `checkpoint-<step>` in a folder, sorted by step. Contents are not checked.

    Raises:
        FileNotFoundError: the folder `run_dir` does not exist.
    """
    numbered: list[tuple[int, str]] = []
    for entry in os.scandir(run_dir):
        step = _step(entry.name, prefix)
        if step is not None and entry.is_dir():
            numbered.append((step, entry.name))
    # "checkpoint-1" and "checkpoint-01" have the same step and are sorted by name.
    return [Path(run_dir, name) for _, name in sorted(numbered)]


def get_last_checkpoint(folder: StrPath) -> str | None:
    """Find the checkpoint with the highest step in a folder.

    Works like `transformers.trainer_utils.get_last_checkpoint`. The checkpoint may be damaged;
    `last_intact_checkpoint` skips damaged ones.

    Args:
        folder: the folder that holds the checkpoints, such as `output_dir`.

    Returns:
        The path of the folder `checkpoint-<step>`, or None if there is no checkpoint.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        return None
    return os.path.join(folder, checkpoints[-1].name)


def last_intact_checkpoint(
    folder: StrPath,
    *,
    training_state: bool = True,
    weights: bool = True,
    is_candidate: Callable[[Path], bool] | None = None,
) -> str | None:
    """Find the newest intact checkpoint, and warn of each damaged one that is skipped.

    Restores folders first whose process was killed while it replaced them.

    Args:
        folder: the folder that holds the checkpoints.
        training_state: as for `problems`.
        weights: as for `problems`.
        is_candidate: return whether to consider a checkpoint. None considers all.

    Returns:
        the newest intact checkpoint, or None.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    restore_replaced(folder)
    for checkpoint in reversed(list_checkpoints(folder)):
        if is_candidate is not None and not is_candidate(checkpoint):
            continue
        damage = problems(checkpoint, training_state=training_state, weights=weights)
        if not damage:
            return os.path.join(folder, checkpoint.name)
        _log.warning("Checkpoint %s is damaged and was skipped: %s.", checkpoint, "; ".join(damage))
    return None


def sort_checkpoints(
    output_dir: StrPath,
    checkpoint_prefix: str = PREFIX_CHECKPOINT_DIR,
    use_mtime: bool = False,
    best_model_checkpoint: StrPath | None = None,
    *,
    newest: StrPath | None = None,
) -> list[str]:
    """List the checkpoints of a folder in the order in which `rotate_checkpoints` deletes them.

    Works like `transformers.trainer_utils.sort_checkpoints`.

    The reference matches `PREFIX-*`, but here only `PREFIX-<digits>`: a user's `checkpoint-12-keep`
    is never deleted.

    Args:
        output_dir: the folder that holds the checkpoints.
        checkpoint_prefix: prefix of their names, before the step.
        use_mtime: order by modification time instead of step, unless all times are within a second
            of each other (as on some network file systems).
        best_model_checkpoint: moved to the second-last position, so that only the most recent one
            is deleted after it.
        newest: the checkpoint just written. Checkpoints with a higher step are left over from
            another run, or from steps of this run that a resumption discarded, so they come first.
            transformers orders by time instead. It keeps the same checkpoints, except that it
            orders those with lower steps by time, not by step.
    """
    if not os.path.isdir(output_dir):
        return []
    checkpoints = list_checkpoints(output_dir, checkpoint_prefix)
    if use_mtime:
        checkpoints = _by_time(checkpoints)
    if newest is not None:
        newest_name = Path(newest).name
        # The sort is stable: it moves only checkpoints with higher steps to the front.
        checkpoints.sort(key=lambda path: not _is_later(path.name, newest_name, checkpoint_prefix))

    # Move the best checkpoint to the second-last position, unless it is the most recent.
    ordered = [str(path) for path in checkpoints]
    best = _find_same_folder(ordered, best_model_checkpoint)
    if best is not None and best != ordered[-1]:
        ordered.remove(best)
        ordered.insert(-1, best)
    return ordered


def rotate_checkpoints(
    output_dir: StrPath,
    save_total_limit: int | None = None,
    best_model_checkpoint: StrPath | None = None,
    use_mtime: bool = False,
    checkpoint_prefix: str = PREFIX_CHECKPOINT_DIR,
    *,
    newest: StrPath | None = None,
    state_name: str | None = None,
) -> None:
    """Delete the oldest checkpoints of a folder beyond `save_total_limit`.

    Works like `transformers.trainer_utils.rotate_checkpoints`, but safe against kills.

    A killed process never leaves a partially deleted checkpoint. The most recent and the best
    checkpoint are never deleted, so that a limit of 1 may keep two.

    Args:
        output_dir: the folder that holds the checkpoints.
        save_total_limit: number to keep; None, 0 or less means all.
        best_model_checkpoint: the one to load at the end.
        use_mtime: as for `sort_checkpoints`.
        checkpoint_prefix: as for `sort_checkpoints`.
        newest: the checkpoint just written, as for `sort_checkpoints`.
        state_name: name of a file that each complete checkpoint contains. Folders without it whose
            step is higher than that of `newest` are not deleted, because a script may be writing to
            them.
    """
    if save_total_limit is None or save_total_limit <= 0:
        return
    checkpoints = sort_checkpoints(output_dir, checkpoint_prefix, use_mtime, newest=newest)
    if newest is not None and state_name is not None:
        checkpoints = _without_unfinished(
            checkpoints, Path(newest).name, checkpoint_prefix, state_name
        )
    if not checkpoints:
        return

    # As in the reference, a best checkpoint in another folder counts too, so one more is kept.
    protected = {checkpoints[-1]}
    if best_model_checkpoint is not None:
        best = _find_same_folder(checkpoints, best_model_checkpoint)
        protected.add(best or str(best_model_checkpoint))

    surplus = len(checkpoints) - max(save_total_limit, len(protected))
    unprotected = [path for path in checkpoints if path not in protected]
    for path in unprotected[: max(surplus, 0)]:
        discard(path)


def _without_unfinished(
    checkpoints: list[str], newest: str, prefix: str, state_name: str
) -> list[str]:
    """Drop the checkpoints that have a higher step than the newest one and no state file."""
    finished: list[str] = []
    for path in checkpoints:
        is_later = _is_later(Path(path).name, newest, prefix)
        if not is_later or os.path.exists(os.path.join(path, state_name)):
            finished.append(path)
    return finished


def _is_later(name: str, newest: str, prefix: str) -> bool:
    """Return whether a checkpoint has a higher step than the newest one; False without steps."""
    step = _step(name, prefix)
    last_step = _step(newest, prefix)
    if step is None or last_step is None:
        return False
    return step > last_step


def _step(name: str, prefix: str) -> int | None:
    """Return the step in the name of a checkpoint; None for another name."""
    match = re.fullmatch(re.escape(prefix) + r"-([0-9]+)", name)
    if match is None:
        return None
    return int(match[1])


def _by_time(folders: list[Path]) -> list[Path]:
    """Sort folders by modification time, unless all times are within a second of each other."""
    if len(folders) < 2:
        return folders
    times = {path: path.stat().st_mtime for path in folders}

    # As in the reference, because some file systems do not record these times.
    if max(times.values()) - min(times.values()) < 1.0:
        _log.warning(
            "The checkpoints in %s have the same times; they are ordered by step.",
            folders[0].parent,
        )
        return folders
    return sorted(folders, key=lambda path: times[path])


def _find_same_folder(paths: list[str], folder: StrPath | None) -> str | None:
    """Return the path that refers to the same folder, which may be relative or end in a slash."""
    if folder is None:
        return None
    real_path = os.path.realpath(folder)
    for path in paths:
        if os.path.realpath(path) == real_path:
            return path
    return None
