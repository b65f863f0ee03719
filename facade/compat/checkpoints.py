"""Load the weights of a checkpoint in several files into a model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ...lightning_modules.checkpoints import load_torch
from ...lightning_modules.checkpoints.weight_formats import read_index
from ...lightning_modules.common.file_names import SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME
from ...lightning_modules.common.local_paths import StrPath


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


def load_sharded_checkpoint(
    model: nn.Module, folder: StrPath, strict: bool = True, prefer_safe: bool = True
) -> _Keys:
    """Load weights from the files that an index lists.

    Args:
        model: Loaded in place, one file after the other.
        folder: The folder of the index.
        strict: Refuse a checkpoint with more or fewer names than the model.
        prefer_safe: With two indexes, use that of safetensors files.

    Returns:
        The names that are missing, and those that the model does not have.

    Raises:
        ValueError: The index is missing or damaged, it names a path outside the folder, or a file
            holds more than tensors.
        RuntimeError: Names differ, and `strict` is set; nothing was loaded.
    """
    index = _index(Path(folder), prefer_safe)
    shards = read_index(index).shards
    saved_names: dict[str, str] = {}
    for file, names in shards.items():
        saved_names |= dict.fromkeys(names, file)

    # Compare the names before anything is loaded.
    model_names = model.state_dict().keys()
    missing = [name for name in model_names if name not in saved_names]
    unexpected = [name for name in saved_names if name not in model_names]
    if strict and (missing or unexpected):
        raise RuntimeError(
            f"The checkpoint {folder} does not fit {type(model).__name__}. Missing: {missing}. Not "
            f"in the model: {unexpected}."
        )

    for file in shards:
        model.load_state_dict(_read(index.parent / file), strict=False)
    return _Keys(missing, unexpected)


def _index(folder: Path, prefer_safe: bool) -> Path:
    names = [SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME]
    if not prefer_safe:
        names.reverse()
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(
        f"{folder} has no index of a checkpoint in several files: {' or '.join(names)}."
    )


def _read(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    return load_torch(file)
