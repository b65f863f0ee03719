"""Remove paths outside of the run from states of Lightning callbacks before they are restored.

`ModelCheckpoint` deletes the files that its state lists, and its best path is loaded later. Its own
check does not handle `..` or symbolic links, and its state can change its folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..common.local_paths import StrPath

_log = logging.getLogger(__name__)

_SCORES = "best_k_models"
"""Key of the scores of written files, by path."""

_WORST = "kth_best_model_path"
_BEST = "best_model_path"
_LAST = "last_model_path"


def remove_foreign_paths(
    states: Mapping[str, object],
    callbacks: Iterable[object],
    checkpoint: StrPath,
    run_dir: StrPath | None = None,
) -> dict[str, object]:
    """Return the states of callbacks without foreign paths, and warn of each removed path.

    Files that a callback may delete must be in its folder. The best path may also be in `run_dir`
    or next to the checkpoint, because a training that resumes into another folder has its best
    model in the previous one.

    Args:
        states: the states by `state_key`, as in a Lightning checkpoint. Not modified.
        callbacks: the callbacks to restore.
        checkpoint: path of the checkpoint that holds the states.
        run_dir: the folder of the run, if it differs from those of the callbacks.
    """
    best_folders = [str(Path(checkpoint).absolute().parent)]
    if run_dir is not None:
        best_folders.append(str(run_dir))

    checked = dict(states)
    for callback in callbacks:
        key: str | None = getattr(callback, "state_key", None)
        if key is None or key not in states:
            continue
        state = states[key]
        if isinstance(state, Mapping):
            checked[key] = _without_foreign_paths(
                callback, cast("Mapping[str, Any]", state), best_folders
            )
    return checked


def _without_foreign_paths(
    callback: object, state: Mapping[str, Any], best_folders: Sequence[str]
) -> Mapping[str, Any]:
    """Return the state of a callback without foreign paths.

    Args:
        callback: its `dirpath` is the folder that its paths must be in.
        state: the saved state.
        best_folders: other folders that the best path may be in.
    """
    if state.keys().isdisjoint((_SCORES, _WORST, _BEST, _LAST)):
        return state
    own_folders: list[str] = []
    folder: object = getattr(callback, "dirpath", None)
    if folder is not None:
        own_folders.append(str(folder))
    checked = dict(state)

    # Files that the callback may delete. If one of them is foreign, all are removed.
    scores: object = state.get(_SCORES)
    deletable: list[object] = [state.get(_WORST), state.get(_LAST)]
    if isinstance(scores, Mapping):
        deletable += list(cast("Mapping[object, Any]", scores))
    elif scores is not None:
        deletable.append(scores)
    foreign = [path for path in deletable if path and not _lies_below(path, own_folders)]
    if foreign:
        checked |= {_SCORES: {}, _WORST: "", _LAST: ""}
        checked.pop("kth_value", None)

    # The best path may be in the folder of an earlier run, but a symbolic link in the folder of
    # this run must not lead outside.
    best: object = state.get(_BEST)
    is_behind_link = _seems_below(best, own_folders) and not _lies_below(best, own_folders)
    is_foreign = is_behind_link or not _lies_below(best, [*own_folders, *best_folders])
    if best and is_foreign:
        foreign.append(best)
        checked |= {_BEST: "", "best_model_score": None}

    if not foreign:
        return state
    _log.warning(
        "The state of %s contains paths outside of this run, which were removed: %s.",
        type(callback).__name__,
        ", ".join(dict.fromkeys(map(repr, foreign))),
    )
    return checked


def _lies_below(path: object, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders after resolving symbolic links."""
    if not isinstance(path, str) or "\0" in path:
        return False
    # URLs have no symbolic links.
    if "://" in path:
        if ".." in path:
            return False
        return any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
    parents = Path(os.path.realpath(path)).parents
    return any(Path(os.path.realpath(folder)) in parents for folder in folders)


def _seems_below(path: object, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders without resolving symbolic links."""
    if not isinstance(path, str):
        return False
    parents = Path(path).absolute().parents
    return any(Path(folder).absolute() in parents for folder in folders)
