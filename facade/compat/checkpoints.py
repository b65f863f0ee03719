"""Read and clean checkpoint folders, restore random states, and reissue the warnings that saving raised."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...lightning_modules.checkpoints import load_torch, rotate_checkpoints, sort_checkpoints
from ...lightning_modules.checkpoints.forms import read_index
from ...lightning_modules.common.file_names import SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME
from ...lightning_modules.common.local_paths import StrPath

__all__ = [
    "load_sharded_checkpoint",
    "reissue_pt_warnings",
    "remove_dummy_checkpoint",
    "rotate_checkpoints",
    "safe_globals",
    "set_rng_state_for_device",
    "sort_checkpoints",
]

logger = logging.getLogger(__name__)


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


def load_sharded_checkpoint(model: nn.Module, folder: StrPath, strict: bool = True, prefer_safe: bool = True) -> _Keys:
    """As `transformers.trainer_utils.load_sharded_checkpoint`: load weights from the files of an index.

    Args:
        model: loaded in place, one file after the other.
        folder: holds the index.
        strict: refuse a checkpoint with more or fewer names than the model has.
        prefer_safe: with two indexes, take the one of safetensors files.

    Returns:
        The names that are missing, and those that the model does not have.

    Raises:
        ValueError: There is no index, it is damaged, it names a path outside the folder, or a file holds more than
            tensors.
        RuntimeError: Names differ, and `strict` is set; nothing was loaded.
    """
    index = _index(Path(folder), prefer_safe)
    files = {name: file for file, names in read_index(index).shards.items() for name in names}
    own = model.state_dict().keys()
    keys = _Keys([name for name in own if name not in files], [name for name in files if name not in own])
    if strict and (keys.missing_keys or keys.unexpected_keys):
        raise RuntimeError(
            f"The checkpoint {folder} does not fit {type(model).__name__}. Missing: {keys.missing_keys}. Not in the "
            f"model: {keys.unexpected_keys}. Pass strict=False to load what fits."
        )
    for name in dict.fromkeys(files.values()):
        model.load_state_dict(_read(index.parent / name), strict=False)
    return keys


def _index(folder: Path, prefer_safe: bool) -> Path:
    names = [SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME]
    found = [folder / name for name in (names if prefer_safe else names[::-1]) if (folder / name).is_file()]
    if not found:
        raise ValueError(f"There is no index of a checkpoint in several files in {folder}: {' or '.join(names)}.")
    return found[0]


def _read(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    return load_torch(file)


def remove_dummy_checkpoint(is_main_process: bool, output_dir: StrPath, filenames: Iterable[str]) -> None:
    """As `transformers.trainer_pt_utils.remove_dummy_checkpoint`: delete existing files, in the main process."""
    for name in filenames if is_main_process else ():
        Path(output_dir, name).unlink(missing_ok=True)


def safe_globals() -> contextlib.AbstractContextManager[Any]:
    """As `transformers.trainer_pt_utils.safe_globals`: allow `torch.load` to read states of numpy's generator."""
    numpy: Any = np
    core = getattr(np, "_core", None) or numpy.core
    allowed = [core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    return torch.serialization.safe_globals(allowed)


def set_rng_state_for_device(
    device_name: str, device_module: Any, checkpoint_rng_state: dict[str, Any], is_distributed: bool
) -> None:
    """As `transformers.trainer_pt_utils.set_rng_state_for_device`: an error is logged, not raised.

    Args:
        device_name: such as "CUDA".
        device_module: such as `torch.cuda`.
        checkpoint_rng_state: states of a checkpoint by lower-case device name.
        is_distributed: the states of all devices are given.
    """
    try:
        state = checkpoint_rng_state[device_name.lower()]
        (device_module.random.set_rng_state_all if is_distributed else device_module.random.set_rng_state)(state)
    except Exception as error:
        logger.error(
            "The random numbers of %s could not be set back, so the run goes on with others: %s", device_name, error
        )


def reissue_pt_warnings(caught_warnings: Sequence[Any]) -> None:
    """As `transformers.trainer_pt_utils.reissue_pt_warnings`: all but UserWarnings, where there are two or more."""
    for caught in caught_warnings if len(caught_warnings) > 1 else ():
        if caught.category is not UserWarning:
            warnings.warn(caught.message, caught.category, stacklevel=2)
