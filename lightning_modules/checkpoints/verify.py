"""A cheap check that a checkpoint is whole: file ends and tables of contents are read, not the tensors."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from .forms import (
    ADAPTER_FILES,
    INDEX_FILES,
    WEIGHT_FILES,
    adapter_folders,
    has_weights,
    read_index,
)
from .manifest import manifest_problems, read_manifest
from .names import (
    ADAPTER_CONFIG_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
    StrPath,
)

_log = logging.getLogger(__name__)

_STATES = (
    *(OPTIMIZER_NAME, SCHEDULER_NAME, SCALER_NAME, "rng_state*.pth", "data_state_*.pth"),
    *("lightning_state.pt", "lightning_callbacks.pt", "callback_states.pt"),
)
"""The files that training continues from, besides `trainer_state.json`; others may be anything."""


def problems(folder: StrPath, *, training_state: bool = True, lost: bool = True, weights: bool = True) -> list[str]:
    """What is wrong with a checkpoint, one sentence each, naming the file; empty if nothing is.

    Found: a missing folder, no weights, a missing shard, any file of the format that was cut short, and with a manifest
    every file that is missing, and other files that were cut short. Not found: changed bytes inside a file of the right
    length (that would take reading everything). Further files, and weights in another form, are no problem.

    Args:
        folder: the checkpoint.
        training_state: also ask for `trainer_state.json` and check the files that training continues from. False for
            a folder of which only the weights are used.
        lost: also name the files that only the manifest knows of.
        weights: ask for weights in one of the known forms. False where somebody else writes and reads them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return [f"{folder} is not a folder"]
    found = list(_weight_problems(folder, required=weights))
    if training_state:
        found += _training_problems(folder)
    for name, problem in manifest_problems(folder):
        wanted = (training_state or _is_model(name)) and not _are_weights(name)
        # One sentence a file: what its own contents say is more than that its size is wrong.
        if wanted and (lost or (folder / name).is_file()) and not any(said.startswith(f"{name} ") for said in found):
            found.append(f"{name} {problem}")
    return found


def require_intact(folder: StrPath, *, training_state: bool = True, weights: bool = True) -> None:
    """As the check at the start of `Trainer._load_from_checkpoint`, but damaged files are found too.

    Files that only the manifest knows of are named in a warning: somebody may have taken them away on purpose.

    Args:
        folder: the checkpoint.
        training_state: as for `problems`.
        weights: as for `problems`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds no weights or is damaged; the message names each file and what is wrong with it.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"there is no checkpoint {folder}; pass a folder checkpoint-<step> that exists")
    if found := problems(folder, training_state=training_state, lost=False, weights=weights):
        raise ValueError(
            f"{folder} cannot be used as a checkpoint: {'; '.join(found)}. Use an earlier checkpoint-<step> folder, "
            "or copy this one again from where it came."
        )
    if found := problems(folder, training_state=training_state, weights=weights):
        _log.warning("%s is used without some of its files: %s.", folder, "; ".join(found))


def _is_model(name: str) -> bool:
    """Whether a file of a checkpoint belongs to the model, not to the training that goes on from it."""
    training = (OPTIMIZER_NAME_BIN, TRAINING_ARGS_NAME, TRAINER_STATE_NAME)
    return name not in training and not name.endswith((".pt", ".pth", ".ckpt"))


def _are_weights(name: str) -> bool:
    """Whether it is a file of weights or their index; which of them are needed, they say among themselves."""
    return name.endswith((".safetensors", *INDEX_FILES)) or (name.endswith(".bin") and name != TRAINING_ARGS_NAME)


def _weight_problems(folder: Path, *, required: bool) -> Iterator[str]:
    if required and not has_weights(folder):
        expected = ", ".join(WEIGHT_FILES + INDEX_FILES + ADAPTER_FILES)
        yield f"it holds no weights (expected one of {expected})"
    for name in WEIGHT_FILES:
        yield from _file_problems(folder / name)
    for name in INDEX_FILES:
        yield from _shard_problems(folder / name)
    for adapter in adapter_folders(folder):
        for name in (*ADAPTER_FILES, ADAPTER_CONFIG_NAME):
            yield from _file_problems(adapter / name)
    for name in (CONFIG_NAME, GENERATION_CONFIG_NAME):
        yield from _file_problems(folder / name)


def _training_problems(folder: Path) -> Iterator[str]:
    if not (folder / TRAINER_STATE_NAME).is_file():
        yield f"{TRAINER_STATE_NAME} is missing"
    yield from _file_problems(folder / TRAINER_STATE_NAME)
    # Only files of the format: a user's own .bin or .json may be of any kind.
    for name in (OPTIMIZER_NAME_BIN, TRAINING_ARGS_NAME):
        yield from _file_problems(folder / name)
    for path in sorted(path for pattern in _STATES for path in folder.glob(pattern)):
        yield from _file_problems(path)
    for name in _named_in_manifest(folder):
        if name.endswith((".pt", ".pth", ".ckpt")) and not any(fnmatch(name, pattern) for pattern in _STATES):
            yield from _file_problems(folder / name)


def _named_in_manifest(folder: Path) -> list[str]:
    try:
        return sorted(read_manifest(folder) or {})
    except ValueError:  # which is a problem of its own
        return []


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
    """What is wrong with one file, by the kind its name tells; nothing if it does not exist."""
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


def _json_problem(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return f"is not readable as JSON ({error})"
    return None if isinstance(content, dict) else "does not hold a JSON object"


def _safetensors_problem(path: Path, tensors: list[str]) -> str | None:
    from safetensors import SafetensorError, safe_open

    try:
        # Opening reads the header and compares the extent it states with the file's size.
        with safe_open(path, framework="pt") as opened:
            absent = sorted(set(tensors) - set(opened.keys()))
    except (SafetensorError, OSError) as error:
        return f"is damaged ({error})"
    return f"lacks {', '.join(absent)}, which the index says it holds" if absent else None


def _torch_problem(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"\x80\x02":
        return None  # torch's format before 1.6, a bare pickle: it has no table of contents that could be checked
    try:
        # The table of contents is the last thing in the file.
        with zipfile.ZipFile(path):
            return None
    except (zipfile.BadZipFile, OSError) as error:
        return f"is damaged or empty ({error})"
