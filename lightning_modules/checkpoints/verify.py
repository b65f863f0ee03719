"""Check that a checkpoint is intact: by checksums, or by the contents of files without one."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator, Sequence
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
from .manifest import MANIFEST_NAME, Manifest, is_changed, read_manifest
from .weight_formats import (
    ADAPTER_FILES,
    INDEX_FILES,
    WEIGHT_FILES,
    adapter_folders,
    has_weights,
    read_index,
)

_log = logging.getLogger(__name__)

_TABLES = (
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCHEDULER_NAME,
    SCALER_NAME,
    "rng_state*.pth",
    "data_state_*.pth",
)
"""States that are dicts."""

_STATES = (*_TABLES, "lightning_state.pt", "lightning_callbacks.pt", "callback_states.pt")
"""Files from which training resumes, besides `trainer_state.json`; others may be anything."""

_CHANGED = (
    f"has other contents than were written, as its checksum in {MANIFEST_NAME} differs: it is "
    f"damaged or was changed. If that was on purpose, remove {MANIFEST_NAME}, and nothing is "
    "compared"
)

_REVEAL_TRUNCATION = (".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Suffixes of formats that tell whether a file is whole: a user may have replaced it by a
smaller one.
"""

# bytes; only the zip directory is read of a larger file of torch without a checksum
_READ_IN_FULL = 64 << 20


def problems(folder: StrPath, *, training_state: bool = True, weights: bool = True) -> list[str]:
    """Return the problems of a checkpoint, one sentence each, naming the file; empty if it is
    intact.

    Found: a missing folder, no weights, a missing shard, any file of the format that is truncated
    or holds something else, and with a manifest every file that is missing, truncated, or changed
    in any byte: all are read. Without one, as in checkpoints of the reference, changed bytes are
    found in files of torch up to 64 MiB, not in weights. Further files, and weights in another
    form, are no problem.

    Args:
        folder: the checkpoint.
        training_state: also require `trainer_state.json` and check the files from which training
            resumes. False for a folder of which only the weights are used.
        weights: require weights in one of the known forms. False if the caller stores them itself.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return [f"{folder} is not a folder"]
    damage, missing = _damaged_and_missing(folder, training_state=training_state, weights=weights)
    return damage + missing


def require_intact(folder: StrPath, *, training_state: bool = True, weights: bool = True) -> None:
    """As the check at the start of `Trainer._load_from_checkpoint`, but damaged files are found
    too.

    Files that only the manifest lists are named in a warning: they may have been removed on
    purpose.

    Args:
        folder: the checkpoint.
        training_state: as for `problems`.
        weights: as for `problems`.

    Raises:
        FileNotFoundError: there is no such folder.
        NotADirectoryError: it is a file.
        ValueError: it holds no weights or is damaged; the message names each file and what is wrong
            with it.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(
            f"there is no checkpoint {folder}; pass a folder checkpoint-<step> that exists"
        )
    damage, missing = _damaged_and_missing(folder, training_state=training_state, weights=weights)
    if damage:
        raise ValueError(
            f"{folder} cannot be used as a checkpoint: {'; '.join(damage)}. Use an earlier one."
        )
    if missing:
        _log.warning("%s is used without some of its files: %s.", folder, "; ".join(missing))


def _damaged_and_missing(
    folder: Path, *, training_state: bool, weights: bool
) -> tuple[list[str], list[str]]:
    """Return the problems of files that exist or are required, and the files that only the
    manifest lists.
    """
    damaged: list[str] = []
    missing: list[str] = []
    if weights and not has_weights(folder):
        expected = ", ".join(WEIGHT_FILES + INDEX_FILES + ADAPTER_FILES)
        damaged.append(f"it holds no weights (expected one of {expected})")
    if training_state and not (folder / TRAINER_STATE_NAME).is_file():
        damaged.append(f"{TRAINER_STATE_NAME} is missing")
    manifest = Manifest({}, {})
    try:
        manifest = read_manifest(folder) or manifest
    except ValueError as error:
        damaged.append(str(error))

    # By size and checksum. A file of another size was cut short, or replaced on purpose.
    compared: set[str] = set()
    for name, size in manifest.sizes.items():
        path = folder / name
        if not training_state and not _is_model(name):
            continue
        if not path.is_file():
            # The index of shards tells which files of weights are needed.
            if name != TRAINER_STATE_NAME and not _are_weights(name):
                missing.append(f"{name} is missing, though {MANIFEST_NAME} names it")
            continue
        found = path.stat().st_size
        if found == size and name in manifest.checksums:
            compared.add(name)
            if is_changed(folder, name, manifest):
                damaged.append(f"{name} {_CHANGED}")
        elif found < size and path.suffix not in _REVEAL_TRUNCATION:
            damaged.append(f"{name} is cut short: it has {found} bytes of {size}")

    # By contents, where there is no checksum.
    for path in _files_of_model(folder):
        if path.relative_to(folder).as_posix() not in compared:
            damaged += _problems_of(path)
    for name in INDEX_FILES:
        damaged += _shard_problems(folder / name, compared)
    if training_state:
        for path in _files_of_training(folder, manifest):
            if path.name not in compared:
                damaged += _problems_of(path)
    return damaged, missing


def _is_model(name: str) -> bool:
    """Return whether a file of a checkpoint belongs to the model, not to the training state."""
    training = (OPTIMIZER_NAME_BIN, TRAINED_WEIGHTS_NAME, TRAINING_ARGS_NAME, TRAINER_STATE_NAME)
    return name not in training and not name.endswith((".pt", ".pth", ".ckpt"))


def _are_weights(name: str) -> bool:
    """Return whether a file holds weights or their index."""
    others = (OPTIMIZER_NAME_BIN, TRAINED_WEIGHTS_NAME, TRAINING_ARGS_NAME)
    return name.endswith((".safetensors", *INDEX_FILES)) or (
        name.endswith(".bin") and name not in others
    )


def _files_of_model(folder: Path) -> Iterator[Path]:
    """Yield the files of weights, except shards, and of configurations, whether they exist or
    not.
    """
    for name in (*WEIGHT_FILES, CONFIG_NAME, GENERATION_CONFIG_NAME):
        yield folder / name
    for adapter in adapter_folders(folder).values():
        for name in (*ADAPTER_FILES, ADAPTER_CONFIG_NAME):
            yield adapter / name


def _files_of_training(folder: Path, manifest: Manifest) -> set[Path]:
    """Return the files of the training state; a user's own .bin or .json may be of any kind."""
    names = {TRAINER_STATE_NAME, TRAINED_WEIGHTS_NAME, TRAINING_ARGS_NAME}
    for pattern in _STATES:
        names.update(path.name for path in folder.glob(pattern))
    names.update(name for name in manifest.sizes if name.endswith((".pt", ".pth", ".ckpt")))
    return {folder / name for name in sorted(names)}


def _shard_problems(index_file: Path, compared: set[str]) -> Iterator[str]:
    """Yield the problems of an index, if it exists, and of the shards that it names.

    Args:
        index_file: the index.
        compared: the files that need not be read.
    """
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
        elif name not in compared:
            yield from _problems_of(shard, tensors)


def _problems_of(path: Path, tensors: Sequence[str] = ()) -> Iterator[str]:
    """Yield the problem of the contents of a file, by its suffix; nothing if it does not exist.

    Args:
        path: the file.
        tensors: names that a file of safetensors has to hold.
    """
    if not path.is_file():
        return
    if path.suffix == ".json":
        problem = _json_problem(path)
    elif path.suffix == ".safetensors":
        problem = _safetensors_problem(path, tensors)
    else:
        problem = _torch_problem(path)
    if problem is not None:
        yield f"{path.name} {problem}"


def _json_problem(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        return f"is not readable as JSON ({error})"
    if not isinstance(content, dict):
        return "does not hold a JSON object"
    if path.name != TRAINER_STATE_NAME:
        return None

    # Entries from which no training could resume.
    step = content.get("global_step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return (
            f"has the global_step {step!r:.40}, which has to be the number of steps that are done"
        )
    for name, kinds in _KINDS.items():
        value = content.get(name)
        if name in content and (not isinstance(value, kinds) or isinstance(value, bool)):
            return f"has an invalid {name}: {value!r:.40}"
    return None


_NUMBER_OR_NONE = (int, float, type(None))

_KINDS: dict[str, Any] = {
    "max_steps": int,
    "num_train_epochs": int,
    "num_input_tokens_seen": int,
    "epoch": _NUMBER_OR_NONE,
    "total_flos": (int, float),
    "log_history": list,
    "stateful_callbacks": (dict, type(None)),
    "logging_steps": _NUMBER_OR_NONE,
    "eval_steps": _NUMBER_OR_NONE,
    "save_steps": _NUMBER_OR_NONE,
    "train_batch_size": (int, type(None)),
}
"""Types of the entries of `trainer_state.json`."""


def _safetensors_problem(path: Path, tensors: Sequence[str]) -> str | None:
    try:
        # Opening reads the header and compares the extent it states with the file's size.
        with safe_open(path, framework="pt") as opened:
            absent = sorted(set(tensors) - set(opened.keys()))
    except (SafetensorError, OSError) as error:
        return f"is damaged ({error})"
    return f"lacks {', '.join(absent)}, which the index says it holds" if absent else None


def _torch_problem(path: Path) -> str | None:
    with path.open("rb") as file:
        # The format before torch 1.6 has no zip directory to check.
        if file.read(2) == b"\x80\x02":
            return None
    is_state = any(fnmatch(path.name, pattern) for pattern in _STATES)
    try:
        # The zip directory is at the end of the file.
        with zipfile.ZipFile(path) as opened:
            small = path.stat().st_size <= _READ_IN_FULL
            damaged = _damaged_records(opened) if is_state and small else []
    except Exception as error:  # a flipped bit may stand for a feature that is not implemented
        return f"is damaged or empty ({error})"
    if damaged:
        return f"is damaged ({', '.join(damaged)} differs from its checksum)"

    # A state is a dict; its tensors are not read.
    if any(fnmatch(path.name, pattern) for pattern in _TABLES):
        try:
            found = load_torch(path, mmap=True)
        except ValueError as error:
            return f"cannot be read: {str(error).removeprefix(str(path)).strip()}"
        if not isinstance(found, dict):
            return f"holds a {type(found).__name__}, not the dict of a state"
    return None


def _damaged_records(opened: zipfile.ZipFile) -> list[str]:
    """Return the records of a file of torch that differ from the CRCs in it."""
    names = [info.filename for info in opened.infolist() if info.file_size]
    damaged: list[str] = []
    for name in names:
        try:
            opened.read(name)
        except Exception:  # a damaged zip directory can lead to any error
            damaged.append(name)
    # torch can be told to write no CRCs: then all differ.
    if len(damaged) == len(names) > 1:
        return []
    return damaged
