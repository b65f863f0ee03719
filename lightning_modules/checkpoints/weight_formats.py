"""Recognise the formats of weights: one file, shards with an index, adapters, shards of ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..common.file_names import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    MODEL_PARTS_NAME,
    OPTIMIZER_PARTS_NAME,
    PREFIX_CHECKPOINT_DIR,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from ..common.local_paths import StrPath

PARTS_TABLE_NAME = ".metadata"
"""Name of the metadata file of `torch.distributed.checkpoint`."""

WEIGHT_FILES = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME)
"""All weights in one file; the first that exists is used."""

INDEX_FILES = (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME)
"""Weights in several files; the first index that exists is used."""

ADAPTER_FILES = (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME)
"""Only the weights of a PEFT adapter."""

DEFAULT_ADAPTER = "default"
"""Name of the adapter that PEFT saves in the folder itself."""

_OTHER_FOLDERS = rf"^\.|^{PREFIX_CHECKPOINT_DIR}-[0-9]+$"


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """Contents of `model.safetensors.index.json`."""

    shards: dict[str, list[str]]
    """Names of the tensors in each shard file, sorted by file."""

    aliases: dict[str, str]
    """For each tied name that was not saved, the name under which its values were saved."""


@dataclass(frozen=True)
class LoadReport:
    """Result of loading weights, as that of `nn.Module.load_state_dict`.

    A tied weight that was loaded under another name does not count as missing.
    """

    missing: tuple[str, ...] = ()
    """Names of weights that the folder does not contain. They are unchanged."""

    unexpected: tuple[str, ...] = ()
    """Names in the folder that the model does not have. They are ignored."""


def first_existing_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Return the first of the files that exists in the folder, or None."""
    for name in names:
        file = folder / name
        if file.is_file():
            return file
    return None


def adapter_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of PEFT adapters by name.

    The default adapter is in the folder itself, others are in subfolders.
    """
    # The folder of a run also contains checkpoints, which are not adapters.
    candidates: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not re.search(_OTHER_FOLDERS, path.name):
            candidates[path.name] = path
    candidates[DEFAULT_ADAPTER] = folder

    adapters: dict[str, Path] = {}
    for name, path in candidates.items():
        if first_existing_file(path, ADAPTER_FILES) is not None:
            adapters[name] = path
    return adapters


def has_weights(folder: Path) -> bool:
    """Return whether the folder contains weights in any format."""
    return has_full_weights(folder) or bool(adapter_folders(folder)) or has_model_parts(folder)


def has_full_weights(folder: Path) -> bool:
    """Return whether the folder contains all weights of a model, in one file or several."""
    return first_existing_file(folder, WEIGHT_FILES + INDEX_FILES) is not None


def has_model_parts(folder: Path) -> bool:
    """Return whether the folder contains a complete `torch.distributed.checkpoint` of the model."""
    return (folder / MODEL_PARTS_NAME / PARTS_TABLE_NAME).is_file()


def has_optimizer_parts(folder: StrPath) -> bool:
    """Return whether a checkpoint contains sharded optimizer states."""
    return Path(folder, OPTIMIZER_PARTS_NAME, PARTS_TABLE_NAME).is_file()


def read_index(path: Path) -> ShardIndex:
    """Read an index file and check it.

    Raises:
        ValueError: it is damaged, or refers to files outside of its folder.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        weight_map: dict[str, object] = dict(content["weight_map"])
        metadata: dict[str, object] = dict(content.get("metadata") or {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a readable index of shards ({error!r})") from error

    # Group the tensors by shard. The suffix of shards follows from the name of the index.
    suffix = f".{path.name.split('.')[1]}"
    shards: dict[str, list[str]] = {}
    for tensor in sorted(weight_map, key=lambda name: str(weight_map[name])):
        file = weight_map[tensor]
        if not isinstance(file, str) or not file.endswith(suffix) or not lies_beside(path, file):
            raise ValueError(
                f"{path} maps {tensor!r} to {file!r}, which is not a shard in the same folder"
            )
        shards.setdefault(file, []).append(tensor)
    return ShardIndex(shards=shards, aliases=only_strings(metadata))


def lies_beside(index: Path, file: str) -> bool:
    """Return whether a file name in an index refers to a file in the same folder.

    A symbolic link may lead to the folder that the index itself links to, as in the Hub's cache.
    """
    if not file or Path(file).name != file or "\\" in file or "\0" in file:
        return False
    folder = (index.parent / file).resolve().parent
    return folder in (index.parent.resolve(), index.resolve().parent)


def only_strings(metadata: Mapping[str, object] | None) -> dict[str, str]:
    """Return the string entries of a file's metadata.

    They include the tied names (`alias: saved name`).
    """
    if metadata is None:
        return {}
    return {name: value for name, value in metadata.items() if isinstance(value, str)}
