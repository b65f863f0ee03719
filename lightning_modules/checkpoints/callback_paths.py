"""Remove paths outside of a run from the states of Lightning callbacks before these are restored.

`ModelCheckpoint` deletes files that its state lists as written, and returns its best path to be read. Its own check
handles neither `..` nor links, and the state can set its folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..common.local_paths import StrPath

_log = logging.getLogger(__name__)

_WRITTEN, _KTH, _BEST = "best_k_models", "kth_best_model_path", "best_model_path"
_PATHS = (_BEST, _KTH, "last_model_path")


def without_foreign_paths(
    states: Mapping[str, Any], callbacks: Iterable[Any], checkpoint: StrPath, run_dir: StrPath | None = None
) -> dict[str, Any]:
    """Return the states of callbacks with only the paths of the run; a warning names the others.

    Files that may be deleted have to lie below the folder of their callback. The best path may also lie below
    `run_dir`, or beside the checkpoint: a training resumed into another folder has its best model in the previous one.

    Args:
        states: by `state_key`, as checkpoints of Lightning hold them; not changed.
        callbacks: the callbacks to restore.
        checkpoint: path of the checkpoint that holds the states.
        run_dir: the folder of the run, if it has one besides those of the callbacks.
    """
    others = [str(Path(checkpoint).absolute().parent), *([] if run_dir is None else [str(run_dir)])]
    by_key = {one.state_key: one for one in callbacks if hasattr(one, "state_key")}
    return {key: _checked(by_key[key], state, others) if key in by_key else state for key, state in states.items()}


def _checked(callback: Any, state: Any, others: list[str]) -> Any:
    if not isinstance(state, Mapping) or not any(name in state for name in (_WRITTEN, *_PATHS)):
        return state
    folder = getattr(callback, "dirpath", None)
    own = [] if folder is None else [str(folder)]
    kept, dropped = dict(state), []
    if _WRITTEN in state:
        written = state[_WRITTEN] if isinstance(state[_WRITTEN], Mapping) else {}
        kept[_WRITTEN] = {path: score for path, score in written.items() if _lies_below(path, own)}
        dropped += [path for path in written if path not in kept[_WRITTEN]]
    for name in _PATHS:
        path = state.get(name)
        elsewhere = name == _BEST and _lies_below(path, others) and not _seems_below(path, own)
        if path and not _lies_below(path, own) and not elsewhere:
            kept[name] = ""
            dropped.append(path)
    if not dropped:
        return state
    paths = ", ".join(dict.fromkeys(map(repr, dropped)))
    _log.warning("%s goes on without paths of another run in its state: %s.", type(callback).__name__, paths)
    return _with_scores_of_the_rest(kept, worst=max if getattr(callback, "mode", "min") == "min" else min)


def _with_scores_of_the_rest(state: dict[str, Any], worst: Callable[..., Any]) -> dict[str, Any]:
    """Update the worst and the best path of the state to the remaining ones."""
    left = state.get(_WRITTEN) or {}
    if state.get(_KTH) not in left:
        state.pop("kth_value", None)
        state[_KTH] = worst(left, key=left.__getitem__) if left else ""
        state |= {"kth_value": left[state[_KTH]]} if left else {}
    if not state.get(_BEST):
        state["best_model_score"] = None
    return state


def _lies_below(path: Any, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders, with all links resolved."""
    if not isinstance(path, str) or "\0" in path:
        return False
    if "://" in path:  # an address has no links
        return ".." not in path and any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
    target = Path(os.path.realpath(path))
    return any(Path(os.path.realpath(folder)) in target.parents for folder in folders)


def _seems_below(path: Any, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of the folders with links unresolved, so that it looks like one of the run."""
    return any(Path(folder).absolute() in Path(path).absolute().parents for folder in folders)
