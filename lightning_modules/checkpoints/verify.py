"""Check that a checkpoint is intact, by checksums or else by the contents of its files."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from ..common.file_names import (
    ADAPTER_CONFIG_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    PREFIX_CHECKPOINT_DIR,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINED_WEIGHTS_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from ..common.local_paths import StrPath
from ..common.torch_files import load_torch
from .manifest import MANIFEST_NAME, Manifest, checksum, read_manifest
from .staging import restore_replaced
from .weight_formats import (
    ADAPTER_FILES,
    INDEX_FILES,
    WEIGHT_FILES,
    adapter_folders,
    has_weights,
    read_index,
)

_log = logging.getLogger(__name__)

_DICT_STATES = (
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCHEDULER_NAME,
    SCALER_NAME,
    "rng_state*.pth",
    "data_state_*.pth",
)
"""Names and patterns of state files whose content is a dict."""

_STATE_FILES = (
    *_DICT_STATES,
    "lightning_state.pt",
    "lightning_callbacks.pt",
    "callback_states.pt",
    "outside_model.pt",
)
"""State files that a resumption reads, besides `trainer_state.json`."""

_STATE_SUFFIXES = (".pt", ".pth", ".ckpt")
"""Suffixes of torch files that do not hold model weights."""

_CHECKSUM_MISMATCH = (
    f"does not match its checksum in {MANIFEST_NAME}: it is damaged or was edited. If you edited "
    f"it on purpose, delete {MANIFEST_NAME} to skip verification"
)

_SELF_CHECKED_SUFFIXES = (".json", ".safetensors", ".bin", *_STATE_SUFFIXES)
"""Suffixes of formats in which truncation can be detected.

Such a file may be smaller than the manifest says, because a user may have replaced it.
"""

_LARGEST_FILE_READ = 64 << 20
"""Bytes. Of a larger torch file without a checksum only the zip directory is read."""


def problems(folder: StrPath, *, training_state: bool = True, weights: bool = True) -> list[str]:
    """Return the problems of a checkpoint, one sentence for each file; empty if it is intact.

    A checkpoint whose process was killed while it replaced it is restored first.

    Finds a missing folder, missing weights or shards, and files that are truncated or not in the
    expected format. With a manifest, all files are read, so that every missing, truncated or
    modified file is found. Without one, as in checkpoints of the reference, modified bytes are
    found in torch files up to 64 MiB, but not in weights. Added files and weights in another format
    are accepted.

    Args:
        folder: the folder of the checkpoint.
        training_state: also require `trainer_state.json` and check the state files. Pass False if
            only the weights are used.
        weights: require weights in a known format. Pass False if the caller stores them elsewhere.
    """
    folder = Path(folder)
    if not folder.exists():
        restore_replaced(folder.parent)
    if not folder.is_dir():
        return [f"{folder} is not a folder"]
    damage, missing = _damaged_and_missing(folder, training_state=training_state, weights=weights)
    return damage + missing


def require_intact(folder: StrPath, *, training_state: bool = True, weights: bool = True) -> None:
    """Raise if a checkpoint is missing or damaged. It is restored first, as by `problems`.

    Only warns of missing files that nothing but the manifest requires, because they may have been
    removed on purpose.

    Args:
        folder: the folder of the checkpoint.
        training_state: as for `problems`.
        weights: as for `problems`.

    Raises:
        FileNotFoundError: the folder does not exist.
        NotADirectoryError: the path is a file.
        ValueError: it has no weights or is damaged. The message describes the problem of each file.
    """
    folder = Path(folder)
    if not folder.exists():
        restore_replaced(folder.parent)
    if not folder.exists():
        raise FileNotFoundError(
            f"the checkpoint {folder} does not exist; pass an existing folder checkpoint-<step>"
        )
    damage, missing = _damaged_and_missing(folder, training_state=training_state, weights=weights)
    if damage:
        # A common mistake is to pass the folder that contains the checkpoints.
        inner = [path.name for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")]
        remedy = "Use an earlier checkpoint."
        if inner:
            newest = max(inner, key=lambda name: (len(name), name))
            remedy = f"Use a checkpoint in it, such as {folder / newest}."
        raise ValueError(
            f"Can't find a valid checkpoint at {str(folder)!r}: {'; '.join(damage)}. {remedy}"
        )
    if missing:
        _log.warning("%s is used without some of its files: %s.", folder, "; ".join(missing))


def _damaged_and_missing(
    folder: Path, *, training_state: bool, weights: bool
) -> tuple[list[str], list[str]]:
    """Return the problems of files, and separately the missing files that only the manifest
    requires.
    """
    damaged: list[str] = []
    missing: list[str] = []

    # Check that required files exist.
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

    # Compare sizes and checksums. A file whose size differs was truncated, or replaced on purpose.
    compared: set[str] = set()
    for name, expected_size in manifest.sizes.items():
        if not training_state and not _belongs_to_model(name):
            continue
        path = folder / name
        if not path.is_file():
            # Missing weights files are found through the index of shards below.
            if name != TRAINER_STATE_NAME and not _is_weights_file(name):
                missing.append(f"{name} is missing, but {MANIFEST_NAME} lists it")
            continue
        size = path.stat().st_size
        if size == expected_size:
            compared.add(name)
            try:
                is_changed = checksum(path) != manifest.checksums[name]
            except OSError:
                is_changed = True
            if is_changed:
                damaged.append(f"{name} {_CHECKSUM_MISMATCH}")
        elif size < expected_size and path.suffix not in _SELF_CHECKED_SUFFIXES:
            damaged.append(f"{name} is truncated: it has {size} of {expected_size} bytes")

    # Collect the files whose contents are known, with the tensors that each must contain. Other
    # files may be the user's.
    tensors_by_file: dict[Path, list[str]] = {}
    for name in (*WEIGHT_FILES, CONFIG_NAME, GENERATION_CONFIG_NAME):
        tensors_by_file[folder / name] = []
    for adapter in adapter_folders(folder).values():
        for name in (*ADAPTER_FILES, ADAPTER_CONFIG_NAME):
            tensors_by_file[adapter / name] = []
    for name in INDEX_FILES:
        if not (folder / name).is_file():
            continue
        try:
            shards = read_index(folder / name).shards
        except ValueError as error:
            damaged.append(str(error))
            continue
        for shard, tensors in shards.items():
            tensors_by_file[folder / shard] = tensors
            if not (folder / shard).is_file():
                damaged.append(f"{shard} is missing, but {name} lists it")
    if training_state:
        for pattern in (
            *_STATE_FILES,
            TRAINER_STATE_NAME,
            TRAINED_WEIGHTS_NAME,
            TRAINING_ARGS_NAME,
        ):
            tensors_by_file.update((path, []) for path in folder.glob(pattern))
        for name in manifest.sizes:
            if name.endswith(_STATE_SUFFIXES):
                tensors_by_file[folder / name] = []

    for path, tensors in tensors_by_file.items():
        if path.relative_to(folder).as_posix() in compared or not path.is_file():
            continue
        if path.suffix == ".json":
            problem = _json_problem(path)
        elif path.suffix == ".safetensors":
            problem = _safetensors_problem(path, tensors)
        else:
            problem = _torch_problem(path)
        if problem is not None:
            damaged.append(f"{path.name} {problem}")
    return damaged, missing


def _belongs_to_model(name: str) -> bool:
    """Return whether a file belongs to the model, not to the training state."""
    training = (OPTIMIZER_NAME_BIN, TRAINED_WEIGHTS_NAME, TRAINING_ARGS_NAME, TRAINER_STATE_NAME)
    return name not in training and not name.endswith(_STATE_SUFFIXES)


def _is_weights_file(name: str) -> bool:
    """Return whether a file holds weights or their index."""
    return _belongs_to_model(name) and name.endswith((".safetensors", ".bin", *INDEX_FILES))


def _json_problem(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        return f"is not readable as JSON ({error})"
    if not isinstance(content, dict):
        return "does not hold a JSON object"
    if path.name != TRAINER_STATE_NAME:
        return None

    # Check the entries that a resumption needs.
    state = cast("dict[str, Any]", content)
    step = state.get("global_step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return f"has an invalid global_step (the number of completed steps): {step!r:.40}"
    for name, types in _STATE_TYPES.items():
        if name not in state:
            continue
        value = state[name]
        if not isinstance(value, types) or isinstance(value, bool):
            return f"has an invalid {name}: {value!r:.40}"
    return None


_NUMBER_OR_NONE = (int, float, type(None))

_STATE_TYPES: dict[str, type | tuple[type, ...]] = {
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
        # Opening reads the header and compares its extent with the size of the file.
        with safe_open(path, framework="pt") as file:
            missing = sorted(set(tensors) - set(file.keys()))
    except (SafetensorError, OSError) as error:
        return f"is damaged ({error})"
    if missing:
        return f"lacks {', '.join(missing)}, which the index lists"
    return None


def _torch_problem(path: Path) -> str | None:
    with path.open("rb") as file:
        # Files in the format before torch 1.6 have no zip directory to check.
        if file.read(2) == b"\x80\x02":
            return None
    reads_in_full = path.stat().st_size <= _LARGEST_FILE_READ and _matches(path, _STATE_FILES)
    damaged: list[str] = []
    try:
        # The zip directory is at the end of the file.
        with zipfile.ZipFile(path) as archive:
            if reads_in_full:
                damaged = _damaged_records(archive)
    except Exception as error:
        # Damage may cause any error: a flipped bit may select a zip feature that is not
        # implemented.
        return f"is damaged or empty ({error})"
    if damaged:
        return f"is damaged ({', '.join(damaged)} does not match its checksum)"

    # Check that a state is a dict, without reading its tensors.
    if _matches(path, _DICT_STATES):
        try:
            state = load_torch(path, mmap=True)
        except ValueError as error:
            return f"cannot be read: {str(error).removeprefix(str(path)).strip()}"
        if not isinstance(state, dict):
            return f"holds a {type(state).__name__}, not a state dict"
    return None


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def _damaged_records(archive: zipfile.ZipFile) -> list[str]:
    """Return the records of a torch file that do not match their CRCs."""
    names = [info.filename for info in archive.infolist() if info.file_size]
    damaged: list[str] = []
    for name in names:
        try:
            archive.read(name)
        except Exception:
            # A damaged zip directory can cause any error.
            damaged.append(name)

    # torch can be configured not to write CRCs; then all records differ.
    if len(damaged) == len(names) > 1:
        return []
    return damaged
