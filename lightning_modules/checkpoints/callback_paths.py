"""Remove paths outside of a run from the states of Lightning callbacks before these are restored.

`ModelCheckpoint` deletes files that its state lists as written, and returns its best path to be
read. Its own check handles neither `..` nor links, and the state can set its folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..common.local_paths import StrPath

_log = logging.getLogger(__name__)

_WRITTEN = "best_k_models"
_KTH = "kth_best_model_path"
_BEST = "best_model_path"
_LAST = "last_model_path"


def remove_foreign_paths(
    states: Mapping[str, Any],
    callbacks: Iterable[Any],
    checkpoint: StrPath,
    run_dir: StrPath | None = None,
) -> dict[str, Any]:
    """Return the states of callbacks with only the paths of the run; a warning names the others.

    Files that may be deleted have to lie below the folder of their callback. The best path may also
    lie below `run_dir`, or beside the checkpoint: a training resumed into another folder has its
    best model in the previous one.

    Args:
        states: by `state_key`, as checkpoints of Lightning hold them; not changed.
        callbacks: the callbacks to restore.
        checkpoint: path of the checkpoint that holds the states.
        run_dir: the folder of the run, if it has one besides those of the callbacks.
    """
    others = [str(Path(checkpoint).absolute().parent)]
    if run_dir is not None:
        others.append(str(run_dir))
    by_key = {
        callback.state_key: callback for callback in callbacks if hasattr(callback, "state_key")
    }

    checked: dict[str, Any] = {}
    for key, state in states.items():
        checked[key] = _checked(by_key[key], state, others) if key in by_key else state
    return checked


def _checked(callback: Any, state: Any, others: list[str]) -> Any:
    """Return the state of a callback without foreign paths.

    Args:
        callback: has the folder that its paths have to be in.
        state: as it was saved.
        others: further folders of the best path.
    """
    if not isinstance(state, Mapping) or state.keys().isdisjoint((_WRITTEN, _KTH, _BEST, _LAST)):
        return state
    folder = getattr(callback, "dirpath", None)
    own = [] if folder is None else [str(folder)]
    kept = dict(state)
    dropped: list[Any] = []

    # Files that the callback may delete, with their scores.
    if _WRITTEN in state:
        written = state[_WRITTEN] if isinstance(state[_WRITTEN], Mapping) else {}
        kept[_WRITTEN] = {path: score for path, score in written.items() if _lies_below(path, own)}
        dropped += [path for path in written if path not in kept[_WRITTEN]]

    for name in (_BEST, _KTH, _LAST):
        path = state.get(name)
        if not path or _lies_below(path, own):
            continue
        # The best one may be in the folder of an earlier run, but not behind a link in the folder
        # of this one.
        if name == _BEST and _lies_below(path, others) and not _seems_below(path, own):
            continue
        kept[name] = ""
        dropped.append(path)

    if not dropped:
        return state
    paths = ", ".join(dict.fromkeys(map(repr, dropped)))
    _log.warning(
        "%s continues without paths of another run in its state: %s.",
        type(callback).__name__,
        paths,
    )

    # The worst and the best of the remaining ones.
    left = kept.get(_WRITTEN) or {}
    if kept.get(_KTH) not in left:
        kept[_KTH] = ""
        kept.pop("kth_value", None)
        if left:
            worst = max if getattr(callback, "mode", "min") == "min" else min
            kept[_KTH] = worst(left, key=left.__getitem__)
            kept["kth_value"] = left[kept[_KTH]]
    if not kept.get(_BEST):
        kept["best_model_score"] = None
    return kept


def _lies_below(path: Any, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders, with all links resolved."""
    if not isinstance(path, str) or "\0" in path:
        return False
    if "://" in path:  # an address has no links
        return ".." not in path and any(
            path.startswith(f"{folder.rstrip('/')}/") for folder in folders
        )
    target = Path(os.path.realpath(path))
    return any(Path(os.path.realpath(folder)) in target.parents for folder in folders)


def _seems_below(path: Any, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders with links unresolved, so that it looks
    like one of the run.
    """
    return any(Path(folder).absolute() in Path(path).absolute().parents for folder in folders)
