"""A checkpoint file of Lightning becomes a folder of the documented format, or the other way round, without a model."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.file_names import PREFIX_CHECKPOINT_DIR
from ..common.local_paths import StrPath, require_local
from ..common.nested import map_nested
from ..common.process_identity import owner_token
from ..common.torch_files import load_torch, save_torch
from . import disk, manifest, staging
from .folder_io import split_weights
from .lightning_files import read_states, write_states
from .verify import require_intact
from .weights import read_weights, save_weights

__all__ = ["convert", "file_to_folder", "folder_to_file"]


def convert(
    source: StrPath,
    target: StrPath,
    *,
    prefix: str = "model.",
    force: bool = False,
    accumulation: int = 1,
    batches_in_epoch: int | None = None,
    batch_size: int | None = None,
) -> Path:
    """Convert a file to a folder or a folder to a file, as `source` is.

    Returns:
        the folder or file written.
    """
    if Path(source).is_dir():
        return folder_to_file(source, target, prefix=prefix, force=force, accumulation=accumulation)
    return file_to_folder(
        source, target, prefix=prefix, force=force, batches_in_epoch=batches_in_epoch, batch_size=batch_size
    )


def file_to_folder(
    file: StrPath,
    target: StrPath,
    *,
    prefix: str = "model.",
    force: bool = False,
    batches_in_epoch: int | None = None,
    batch_size: int | None = None,
) -> Path:
    """Write the folder that a `FolderCheckpointIO` would have written in the place of a file.

    It holds the weights, but no `config.json`: the file does not tell what model they are of.

    Args:
        file: as `lightning.Trainer` writes it, of one process or several.
        target: the folder `checkpoint-N`, or the one in which it is made.
        prefix: what the names of the model's weights begin with in the file; those of a `LossModule` with "model.".
        force: replace a folder that is there.
        batches_in_epoch: tells the position of a file from the middle of an epoch that does not tell it.
        batch_size: samples of a batch in one process, likewise.

    Raises:
        FileNotFoundError: there is no such file.
        FileExistsError: there is something at the target already.
        ValueError: the file is no checkpoint of Lightning, is damaged or holds other things than tensors and plain
            values, none of its weights begins with the prefix, or the target is named after another step.
    """
    checkpoint = _lightning_checkpoint(file)
    own, others = split_weights(checkpoint["state_dict"], prefix)
    final = _folder_named(Path(target), int(checkpoint["global_step"]))
    _require_free(final, force)
    known = {"batches_in_epoch": batches_in_epoch} | ({} if batch_size is None else {"train_batch_size": batch_size})
    with staging.staged_folder(final) as folder:
        save_weights(torch.nn.Module(), folder, state_dict=own)
        write_states(checkpoint, folder, others, **known)
        manifest.write_manifest(folder)
    return final


def folder_to_file(
    folder: StrPath, target: StrPath, *, prefix: str = "model.", force: bool = False, accumulation: int = 1
) -> Path:
    """Write a file that `lightning.Trainer.fit(ckpt_path=file)` goes on from, and `load_from_checkpoint` reads.

    Args:
        folder: a checkpoint of the Trainer API, of the reference, or of `FolderCheckpointIO`.
        target: the file.
        prefix: put before the names of the model's weights.
        force: replace a file that is there.
        accumulation: batches of a step, for folders of the reference, which do not tell it.

    Raises:
        FileNotFoundError: there is no such folder.
        FileExistsError: there is something at the target already.
        ValueError: the folder is damaged, holds other things than tensors and plain values, or only an adapter.
    """
    folder, final = Path(folder), Path(target)
    require_intact(folder)
    if final.is_dir():
        raise FileExistsError(f"{final} is a folder; pass the name of the file to write, such as {final / 'last.ckpt'}")
    _require_free(final, force)
    weights = {f"{prefix}{name}": tensor for name, tensor in read_weights(folder).items()}
    checkpoint = read_states(folder, accumulation=accumulation)
    checkpoint["state_dict"] = {**weights, **checkpoint["state_dict"]}
    _write_file(map_nested(_without_numpy, checkpoint), final)
    return final


def _lightning_checkpoint(file: StrPath) -> dict[str, Any]:
    checkpoint = load_torch(file)
    if not isinstance(checkpoint, dict) or not {"state_dict", "global_step", "loops"} <= checkpoint.keys():
        found = ", ".join(map(str, checkpoint))[:100] if isinstance(checkpoint, dict) else type(checkpoint).__name__
        raise ValueError(f"{file} is no checkpoint of lightning.Trainer: it holds {found}")
    return checkpoint


def _folder_named(target: Path, step: int) -> Path:
    name = f"{PREFIX_CHECKPOINT_DIR}-{step}"
    if not re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+", target.name):
        return target / name
    if target.name != name:
        raise ValueError(f"{target} is named after another step: the checkpoint is of step {step}, so call it {name}")
    return target


def _require_free(final: Path, force: bool) -> None:
    require_local(final, "target")
    if os.path.lexists(final) and not force:
        raise FileExistsError(f"{final} is there already; pass --force (force=True) to replace it")


def _write_file(checkpoint: dict[str, Any], final: Path) -> None:
    """Write beside the name, then rename."""
    final.parent.mkdir(parents=True, exist_ok=True)
    beside = final.with_name(f".{final.name}.partial-{owner_token()}")
    try:
        save_torch(checkpoint, beside)
        disk.sync_path(beside)
        os.replace(beside, final)
    finally:
        disk.delete(beside)
    disk.sync_path(final.parent)


def _without_numpy(leaf: Any) -> Any:
    """Return an array as a tensor and a number of NumPy as Python's: Lightning reads no others."""
    if isinstance(leaf, np.generic):
        return leaf.item()
    return torch.from_numpy(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf
