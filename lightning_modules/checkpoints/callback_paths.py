"""Remove paths outside of the run from the states of Lightning callbacks, before restoring them.

`ModelCheckpoint` deletes files that its state lists as written, and returns its best path to be
read. Its own check handles neither `..` nor links, and the state can set its folder.
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
"""Entry with the scores of the files that the callback has written, by path."""

_WORST = "kth_best_model_path"
_BEST = "best_model_path"
_LAST = "last_model_path"


def remove_foreign_paths(
    states: Mapping[str, object],
    callbacks: Iterable[object],
    checkpoint: StrPath,
    run_dir: StrPath | None = None,
) -> dict[str, object]:
    """Return the states of callbacks without foreign paths, which are named in a warning.

    Files that a callback may delete have to be in its folder. The best path may also be in
    `run_dir` or next to the checkpoint: if a training resumes into another folder, its best model
    is in the previous one.

    Args:
        states: by `state_key`, as checkpoints of Lightning hold them; not changed.
        callbacks: the callbacks to restore.
        checkpoint: path of the checkpoint that holds the states.
        run_dir: the folder of the run, if it has one besides those of the callbacks.
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
            checked[key] = _checked(callback, cast("Mapping[str, Any]", state), best_folders)
    return checked


def _checked(
    callback: object, state: Mapping[str, Any], best_folders: Sequence[str]
) -> Mapping[str, Any]:
    """Return the state of a callback without foreign paths.

    Args:
        callback: has the folder that its paths have to be in.
        state: as it was saved.
        best_folders: further folders of the best path.
    """
    if state.keys().isdisjoint((_SCORES, _WORST, _BEST, _LAST)):
        return state
    own_folders: list[str] = []
    folder: object = getattr(callback, "dirpath", None)
    if folder is not None:
        own_folders.append(str(folder))
    checked = dict(state)

    # Files that the callback may delete: it continues without any, if some are foreign.
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

    # The best path may be in the folder of an earlier run, but must not leave the folder of this
    # run through a link.
    best: object = state.get(_BEST)
    is_behind_link = _seems_below(best, own_folders) and not _lies_below(best, own_folders)
    is_foreign = is_behind_link or not _lies_below(best, [*own_folders, *best_folders])
    if best and is_foreign:
        foreign.append(best)
        checked |= {_BEST: "", "best_model_score": None}

    if not foreign:
        return state
    _log.warning(
        "%s continues without paths of another run in its state: %s.",
        type(callback).__name__,
        ", ".join(dict.fromkeys(map(repr, foreign))),
    )
    return checked


def _lies_below(path: object, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders, with all links resolved."""
    if not isinstance(path, str) or "\0" in path:
        return False
    # An address has no links.
    if "://" in path:
        if ".." in path:
            return False
        return any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
    parents = Path(os.path.realpath(path)).parents
    return any(Path(os.path.realpath(folder)) in parents for folder in folders)


def _seems_below(path: object, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders while links are not resolved."""
    if not isinstance(path, str):
        return False
    parents = Path(path).absolute().parents
    return any(Path(folder).absolute() in parents for folder in folders)
