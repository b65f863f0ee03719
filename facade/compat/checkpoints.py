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
    """As `transformers.trainer_utils.load_sharded_checkpoint`: load weights from the files of an
    index.

    Args:
        model: loaded in place, one file after the other.
        folder: holds the index.
        strict: refuse a checkpoint with more or fewer names than the model has.
        prefer_safe: with two indexes, take the one of safetensors files.

    Returns:
        The names that are missing, and those that the model does not have.

    Raises:
        ValueError: There is no index, it is damaged, it names a path outside the folder, or a file
            holds more than tensors.
        RuntimeError: Names differ, and `strict` is set; nothing was loaded.
    """
    index = _index(Path(folder), prefer_safe)
    files = {name: file for file, names in read_index(index).shards.items() for name in names}
    own = model.state_dict().keys()
    keys = _Keys(
        [name for name in own if name not in files], [name for name in files if name not in own]
    )
    if strict and (keys.missing_keys or keys.unexpected_keys):
        differs = f"Missing: {keys.missing_keys}. Not in the model: {keys.unexpected_keys}"
        raise RuntimeError(
            f"The checkpoint {folder} does not fit {type(model).__name__}. {differs}."
        )
    for name in dict.fromkeys(files.values()):
        model.load_state_dict(_read(index.parent / name), strict=False)
    return keys


def _index(folder: Path, prefer_safe: bool) -> Path:
    names = [SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME]
    found = [
        folder / name
        for name in (names if prefer_safe else names[::-1])
        if (folder / name).is_file()
    ]
    if not found:
        raise ValueError(
            f"There is no index of a checkpoint in several files in {folder}: {' or '.join(names)}."
        )
    return found[0]


def _read(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    return load_torch(file)
