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
    """There is no checkpoint: a ValueError, as in the reference, and a FileNotFoundError."""


def list_checkpoints(run_dir: StrPath) -> list[Path]:
    """Return all folders `checkpoint-<step>` in a folder, by step, without checking their contents.

    Raises:
        FileNotFoundError: there is no folder `run_dir`.
    """
    return _numbered(run_dir, PREFIX_CHECKPOINT_DIR)


def get_last_checkpoint(folder: StrPath) -> str | None:
    """As `transformers.trainer_utils.get_last_checkpoint`: the one with the highest step, or None
    if there is none.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    found = list_checkpoints(folder)
    return os.path.join(folder, found[-1].name) if found else None


def last_intact_checkpoint(
    folder: StrPath,
    *,
    training_state: bool = True,
    weights: bool = True,
    wanted: Callable[[Path], bool] | None = None,
) -> str | None:
    """As `get_last_checkpoint`, but skips damaged ones, each with a warning that says what is
    wrong.

    Folders whose process was killed while it replaced them get their names back first.

    Args:
        folder: the folder that holds the checkpoints.
        training_state: as for `problems`.
        weights: as for `problems`.
        wanted: selects the checkpoints to consider, by default all.

    Returns:
        the newest intact checkpoint, or None.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    restore_replaced(folder)
    for checkpoint in reversed(list_checkpoints(folder)):
        if wanted is not None and not wanted(checkpoint):
            continue
        found = problems(checkpoint, training_state=training_state, weights=weights)
        if not found:
            return os.path.join(folder, checkpoint.name)
        _log.warning(
            "The checkpoint %s is passed over, because it is damaged: %s.",
            checkpoint,
            "; ".join(found),
        )
    return None


def sort_checkpoints(
    output_dir: StrPath,
    checkpoint_prefix: str = PREFIX_CHECKPOINT_DIR,
    use_mtime: bool = False,
    best_model_checkpoint: StrPath | None = None,
    *,
    newest: StrPath | None = None,
) -> list[str]:
    """As `transformers.trainer_utils.sort_checkpoints`: return the checkpoints in order of
    deletion.

    The reference matches `PREFIX-*`, but here only `PREFIX-<digits>`: a user's `checkpoint-12-keep`
    is never deleted.

    Args:
        output_dir: the folder that holds the checkpoints.
        checkpoint_prefix: prefix of their names, before the step.
        use_mtime: order by time of change instead of by step, unless all times lie within a second
            (as on some network file systems).
        best_model_checkpoint: comes last but one, or last if it is also the most recent.
        newest: the checkpoint just written. Those with a higher step come from another run in the
            same folder, or from the part of this run that a resume from an earlier step gave up,
            and come first. So the same checkpoints are left as in the reference, which orders by
            time; by step alone the checkpoint just written would be the first to be deleted. One
            difference: older ones with lower steps come first by time, here by step.
    """
    found = _numbered(output_dir, checkpoint_prefix) if os.path.isdir(output_dir) else []
    if use_mtime:
        found = _by_time(found)
    if newest is not None:
        limit = _step(Path(newest).name, checkpoint_prefix)
        found.sort(
            key=lambda path: limit is None or (_step(path.name, checkpoint_prefix) or 0) <= limit
        )
    ordered = [str(path) for path in found]
    best = _same_among(ordered, best_model_checkpoint)
    if best is not None and best != ordered[-1]:
        ordered = [path for path in ordered[:-1] if path != best] + [best, ordered[-1]]
    return ordered


def rotate_checkpoints(
    output_dir: StrPath,
    save_total_limit: int | None = None,
    best_model_checkpoint: StrPath | None = None,
    use_mtime: bool = False,
    checkpoint_prefix: str = PREFIX_CHECKPOINT_DIR,
    *,
    newest: StrPath | None = None,
    spare: StrPath | None = None,
) -> bool:
    """As `transformers.trainer_utils.rotate_checkpoints`, but a kill in the middle leaves no half
    checkpoint behind.

    Oldest first, checkpoints are deleted until `save_total_limit` are left. The most recent and the
    best are never deleted, so that with a limit of 1 two may be left.

    Args:
        output_dir: the folder that holds the checkpoints.
        save_total_limit: number to keep; None, 0 or less means all.
        best_model_checkpoint: the one to load at the end.
        use_mtime: as for `sort_checkpoints`.
        checkpoint_prefix: as for `sort_checkpoints`.
        newest: the checkpoint just written, as for `sort_checkpoints`.
        spare: a checkpoint that is not deleted yet, as a power failure may still damage the newer
            ones.

    Returns:
        whether that one is beyond the limit.
    """
    if save_total_limit is None or save_total_limit <= 0:
        return False
    checkpoints = sort_checkpoints(output_dir, checkpoint_prefix, use_mtime, newest=newest)
    if not checkpoints:
        return False
    # As in the reference, a best checkpoint in another folder counts as well, and one more is left.
    protected = {checkpoints[-1]}
    if best_model_checkpoint is not None:
        protected.add(_same_among(checkpoints, best_model_checkpoint) or str(best_model_checkpoint))
    surplus = len(checkpoints) - max(save_total_limit, len(protected))
    doomed = [path for path in checkpoints if path not in protected][: max(surplus, 0)]
    spared = _same_among(doomed, spare)
    for path in doomed:
        if path != spared:
            discard(path)
    return spared is not None


def _step(name: str, prefix: str) -> int | None:
    match = re.fullmatch(re.escape(prefix) + r"-([0-9]+)", name)
    return int(match[1]) if match else None


def _numbered(run_dir: StrPath, prefix: str) -> list[Path]:
    steps = {
        entry.name: _step(entry.name, prefix) for entry in os.scandir(run_dir) if entry.is_dir()
    }
    found = sorted((step, name) for name, step in steps.items() if step is not None)
    return [Path(run_dir, name) for _, name in found]


def _by_time(folders: list[Path]) -> list[Path]:
    times = {path: path.stat().st_mtime for path in folders}
    if len(folders) < 2:
        return folders
    if max(times.values()) - min(times.values()) < 1.0:
        _log.warning(
            "The checkpoints in %s have the same times; they are ordered by step.",
            folders[0].parent,
        )
        return folders
    return sorted(folders, key=lambda path: times[path])


def _same_among(paths: list[str], wanted: StrPath | None) -> str | None:
    """Return the path of the same folder as `wanted`, which may be relative or end in a slash."""
    if wanted is None:
        return None
    target = os.path.realpath(wanted)
    return next((path for path in paths if os.path.realpath(path) == target), None)
