"""Check that a checkpoint is intact: by checksums, or by the contents of files without one."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..common.file_names import (
    ADAPTER_CONFIG_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINED_WEIGHTS_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from ..common.local_paths import StrPath
from ..common.torch_files import load_torch
from .forms import ADAPTER_FILES, INDEX_FILES, WEIGHT_FILES, adapter_folders, has_weights, read_index
from .manifest import MANIFEST_NAME, Manifest, is_changed, missing_or_cut_short, of_written_size, read_manifest

_log = logging.getLogger(__name__)

_TABLES = (OPTIMIZER_NAME, OPTIMIZER_NAME_BIN, SCHEDULER_NAME, SCALER_NAME, "rng_state*.pth", "data_state_*.pth")
"""States that are dicts."""

_STATES = (*_TABLES, "lightning_state.pt", "lightning_callbacks.pt", "callback_states.pt")
"""Files from which training resumes, besides `trainer_state.json`; others may be anything."""

_CHANGED = (
    f"has other contents than were written, as its checksum in {MANIFEST_NAME} differs: it is damaged or was changed. "
    f"If that was on purpose, remove {MANIFEST_NAME}, and nothing is compared"
)

_READ_IN_FULL = 64 << 20  # bytes; only the zip directory is read of a larger file of torch without a checksum


def problems(folder: StrPath, *, training_state: bool = True, weights: bool = True) -> list[str]:
    """Return the problems of a checkpoint, one sentence each, naming the file; empty if it is intact.

    Found: a missing folder, no weights, a missing shard, any file of the format that is truncated or holds something
    else, and with a manifest every file that is missing, truncated, or changed in any byte: all are read. Without one,
    as in checkpoints of the reference, changed bytes are found in files of torch up to 64 MiB, not in weights. Further
    files, and weights in another form, are no problem.

    Args:
        folder: the checkpoint.
        training_state: also require `trainer_state.json` and check the files from which training resumes. False for a
            folder of which only the weights are used.
        weights: require weights in one of the known forms. False if the caller stores them itself.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return [f"{folder} is not a folder"]
    damage, missing = _damage_and_loss(folder, training_state=training_state, weights=weights)
    return damage + missing


def require_intact(folder: StrPath, *, training_state: bool = True, weights: bool = True) -> None:
    """As the check at the start of `Trainer._load_from_checkpoint`, but damaged files are found too.

    Files that only the manifest lists are named in a warning: they may have been removed on purpose.

    Args:
        folder: the checkpoint.
        training_state: as for `problems`.
        weights: as for `problems`.

    Raises:
        FileNotFoundError: there is no such folder.
        NotADirectoryError: it is a file.
        ValueError: it holds no weights or is damaged; the message names each file and what is wrong with it.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"there is no checkpoint {folder}; pass a folder checkpoint-<step> that exists")
    damage, missing = _damage_and_loss(folder, training_state=training_state, weights=weights)
    if damage:
        raise ValueError(f"{folder} cannot be used as a checkpoint: {'; '.join(damage)}. Use an earlier one.")
    if missing:
        _log.warning("%s is used without some of its files: %s.", folder, "; ".join(missing))


def _damage_and_loss(folder: Path, *, training_state: bool, weights: bool) -> tuple[list[str], list[str]]:
    """Return the problems of files that exist or are required, and the files that only the manifest lists."""
    damage, missing, manifest = list(_weight_problems(folder, required=weights)), [], Manifest({}, {})
    try:
        manifest = read_manifest(folder) or manifest
    except ValueError as error:
        damage.append(str(error))
    compared = of_written_size(folder, manifest)
    if training_state:
        damage += _training_problems(folder, manifest, compared)
    for name, problem in missing_or_cut_short(folder, manifest):
        if not (training_state or _is_model(name)) or _are_weights(name) or _is_named(name, damage):
            continue  # a problem of its contents says more than a wrong size
        (damage if (folder / name).is_file() else missing).append(f"{name} {problem}")
    for name in compared:
        if (training_state or _is_model(name)) and not _is_named(name, damage) and is_changed(folder, name, manifest):
            damage.append(f"{name} {_CHANGED}")
    return damage, missing


def _is_named(name: str, said: list[str]) -> bool:
    return any(one.startswith(f"{name} ") for one in said)


def _is_model(name: str) -> bool:
    """Return whether a file of a checkpoint belongs to the model, not to the training state."""
    training = (OPTIMIZER_NAME_BIN, TRAINED_WEIGHTS_NAME, TRAINING_ARGS_NAME, TRAINER_STATE_NAME)
    return name not in training and not name.endswith((".pt", ".pth", ".ckpt"))


def _are_weights(name: str) -> bool:
    """Return whether a file holds weights or their index; the index says which are needed."""
    others = (OPTIMIZER_NAME_BIN, TRAINED_WEIGHTS_NAME, TRAINING_ARGS_NAME)
    return name.endswith((".safetensors", *INDEX_FILES)) or (name.endswith(".bin") and name not in others)


def _weight_problems(folder: Path, *, required: bool) -> Iterator[str]:
    if required and not has_weights(folder):
        expected = ", ".join(WEIGHT_FILES + INDEX_FILES + ADAPTER_FILES)
        yield f"it holds no weights (expected one of {expected})"
    for name in (*WEIGHT_FILES, CONFIG_NAME, GENERATION_CONFIG_NAME):
        yield from _file_problems(folder / name)
    for name in INDEX_FILES:
        yield from _shard_problems(folder / name)
    for adapter in adapter_folders(folder).values():
        for name in (*ADAPTER_FILES, ADAPTER_CONFIG_NAME):
            yield from _file_problems(adapter / name)


def _training_problems(folder: Path, manifest: Manifest, compared: list[str]) -> Iterator[str]:
    """Yield the problems of states.

    Args:
        folder: the checkpoint.
        manifest: its list of files.
        compared: the files whose checksums are compared anyway.
    """
    state = folder / TRAINER_STATE_NAME
    if state.is_file():
        yield from list(_file_problems(state)) or _trainer_state_problems(state)
    else:
        yield f"{state.name} is missing"
    states = sorted(path for pattern in _STATES for path in folder.glob(pattern))
    for path in states:
        records = () if path.name in compared else _record_problems(path)
        yield from list(_file_problems(path)) or list(records) or list(_table_problems(path))
    # Only files of the format: a user's own .bin or .json may be of any kind.
    further = (name for name in manifest.sizes if name.endswith((".pt", ".pth", ".ckpt")))
    for path in (folder / name for name in (TRAINED_WEIGHTS_NAME, TRAINING_ARGS_NAME, *further)):
        if path not in states:
            yield from _file_problems(path)


def _shard_problems(index_file: Path) -> Iterator[str]:
    if not index_file.is_file():
        return
    try:
        index = read_index(index_file)
    except ValueError as error:
        yield str(error)
        return
    for name, tensors in index.shards.items():
        shard = index_file.parent / name
        if not shard.is_file():
            yield f"{name} is missing, though {index_file.name} names it"
        else:
            yield from _file_problems(shard, tensors)


def _file_problems(path: Path, tensors: list[str] | None = None) -> Iterator[str]:
    """Yield the problem of one file, by the kind of its suffix; nothing if it does not exist."""
    if not path.is_file():
        return
    if path.suffix == ".json":
        problem = _json_problem(path)
    elif path.suffix == ".safetensors":
        problem = _safetensors_problem(path, tensors or [])
    else:
        problem = _torch_problem(path)
    if problem:
        yield f"{path.name} {problem}"


def _trainer_state_problems(path: Path) -> Iterator[str]:
    """Yield entries of a readable `trainer_state.json` from which a training cannot resume."""
    state = json.loads(path.read_text(encoding="utf-8"))
    step = state.get("global_step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        yield f"{path.name} has the global_step {step!r:.40}, which has to be the number of steps that are done"
        return
    for name, kinds in _KINDS.items():
        if name in state and (not isinstance(state[name], kinds) or isinstance(state[name], bool)):
            yield f"{path.name} has the {name} {state[name]!r:.40}, which no training writes"
            return


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("max_steps", "num_train_epochs", "num_input_tokens_seen"), int),
    **{"epoch": (int, float, type(None)), "total_flos": (int, float)},
    **{"log_history": list, "stateful_callbacks": (dict, type(None))},
    **dict.fromkeys(("logging_steps", "eval_steps", "save_steps"), (int, float, type(None))),
    "train_batch_size": (int, type(None)),
}
"""Types of the entries of `trainer_state.json`."""


def _record_problems(path: Path) -> Iterator[str]:
    """Compare the records of a file of torch with the CRCs in it."""
    if path.stat().st_size > _READ_IN_FULL or _is_bare_pickle(path):
        return
    with zipfile.ZipFile(path) as opened:
        names = [info.filename for info in opened.infolist() if info.file_size]
        damaged = [name for name in names if not _is_whole(opened, name)]
    if damaged and (len(damaged) < len(names) or len(names) == 1):  # torch can be told to write none
        yield f"{path.name} is damaged ({', '.join(damaged)} differs from its checksum)"


def _is_whole(opened: zipfile.ZipFile, name: str) -> bool:
    try:
        opened.read(name)
    except Exception:  # a damaged zip directory can lead to any error
        return False
    return True


def _table_problems(path: Path) -> Iterator[str]:
    """Check that a file of torch holds a dict, without reading its tensors."""
    if not any(fnmatch(path.name, pattern) for pattern in _TABLES) or _is_bare_pickle(path):
        return
    try:
        found = load_torch(path, mmap=True)
    except ValueError as error:
        yield f"{path.name} cannot be read: {str(error).removeprefix(str(path)).strip()}"
        return
    if not isinstance(found, dict):
        yield f"{path.name} holds a {type(found).__name__}, not the dict of a state"


def _json_problem(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        return f"is not readable as JSON ({error})"
    return None if isinstance(content, dict) else "does not hold a JSON object"


def _safetensors_problem(path: Path, tensors: list[str]) -> str | None:
    try:
        # Opening reads the header and compares the extent it states with the file's size.
        with safe_open(path, framework="pt") as opened:
            absent = sorted(set(tensors) - set(opened.keys()))
    except (SafetensorError, OSError) as error:
        return f"is damaged ({error})"
    return f"lacks {', '.join(absent)}, which the index says it holds" if absent else None


def _torch_problem(path: Path) -> str | None:
    if _is_bare_pickle(path):
        return None  # has no zip directory to check
    try:
        # The zip directory is at the end of the file.
        with zipfile.ZipFile(path):
            return None
    except Exception as error:  # a flipped bit may stand for a feature that is not implemented
        return f"is damaged or empty ({error})"


def _is_bare_pickle(path: Path) -> bool:
    """Return whether a file has torch's format before 1.6."""
    with path.open("rb") as file:
        return file.read(2) == b"\x80\x02"
