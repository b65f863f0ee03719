"""Convert checkpoints between formats, without a model.

A file of Lightning becomes a folder of the documented format, or the other way round; a folder with sharded states of
DeepSpeed becomes one with whole states, without DeepSpeed being installed; parts of processes become whole files, and
whole weights become a part.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.file_names import (
    OPTIMIZER_NAME,
    PREFIX_CHECKPOINT_DIR,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
)
from ..common.local_paths import StrPath, require_local
from ..common.nested import map_nested
from ..common.process_identity import process_token
from ..common.torch_files import load_torch, save_torch
from ..distributed.zero_files import saved_schedule, saved_states
from ..distributed.zero_stage_0 import ReplicatedStates
from ..distributed.zero_states import ZeroStates
from . import disk, manifest, staging
from .folder_io import split_weights
from .forms import adapter_folders, has_model_parts, has_optimizer_parts, has_whole_weights
from .lightning_files import read_states, write_states
from .verify import require_intact
from .weights import read_weights, save_weights

__all__ = ["convert", "file_to_folder", "folder_to_file", "parts_to_folder", "zero_to_folder"]

_WEIGHTS = r"(pytorch_)?model(-[0-9]+-of-[0-9]+)?\.(safetensors|bin)(\.index\.json)?$"
"""Pattern of the files of whole weights."""

_LEFT_OUT = {"latest", "zero_to_fp32.py", "zero_to_torch.py", "_manifest.json", OPTIMIZER_NAME, SCALER_NAME}

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def convert(
    source: StrPath,
    target: StrPath,
    *,
    prefix: str = "model.",
    force: bool = False,
    accumulation: int = 1,
    batches_in_epoch: int | None = None,
    batch_size: int | None = None,
    dtype: str | None = None,
    parts: bool = False,
    max_shard_size: int | str = "5GB",
) -> Path:
    """Convert a file to a folder, a folder to a file, or a folder to one with whole weights, or with parts.

    Returns:
        the folder or file written.

    Raises:
        ValueError: `dtype` or `parts` does not apply to the source.
    """
    saved = saved_states(source) if Path(source).is_dir() else None
    if saved is not None:
        return zero_to_folder(source, target, dtype=dtype, force=force)
    if dtype is not None:
        raise ValueError(f"dtype={dtype!r} is for folders with states of DeepSpeed's ZeRO, which {source} is not")
    if parts or (Path(source).is_dir() and has_model_parts(Path(source)) and Path(target).suffix != ".ckpt"):
        return parts_to_folder(source, target, back=parts, max_shard_size=max_shard_size, force=force)
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
    """Write the folder that a `FolderCheckpointIO` would have written instead of a file.

    It holds the weights, but no `config.json`, since the file does not name the model.

    Args:
        file: as `lightning.Trainer` writes it, of one process or several.
        target: the folder `checkpoint-N`, or its parent.
        prefix: prefix of the names of the model's weights in the file; "model." for a `LossModule`.
        force: replace an existing folder.
        batches_in_epoch: needed for a file from the middle of an epoch that does not hold it.
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
    """Write a file for `lightning.Trainer.fit(ckpt_path=file)` and `load_from_checkpoint`.

    Args:
        folder: a checkpoint of the Trainer API, of the reference, or of `FolderCheckpointIO`.
        target: the file.
        prefix: put before the names of the model's weights.
        force: replace an existing file.
        accumulation: batches of a step, for folders of the reference, which do not hold it.

    Raises:
        FileNotFoundError: there is no such folder.
        FileExistsError: there is something at the target already.
        ValueError: the folder is damaged, holds other things than tensors and plain values, only an adapter, or the
            optimizer in parts.
    """
    folder, final = Path(folder), Path(target)
    require_intact(folder)
    _require_free(final, force)
    if has_optimizer_parts(folder):
        raise ValueError(f"{folder} has parts of the optimizer: first convert it into a folder, and that into a file")
    weights = {f"{prefix}{name}": tensor for name, tensor in read_weights(folder).items()}
    checkpoint = read_states(folder, accumulation=accumulation)
    checkpoint["state_dict"] = {**weights, **checkpoint["state_dict"]}
    _write_file(map_nested(_without_numpy, checkpoint), final)
    return final


def zero_to_folder(folder: StrPath, target: StrPath, *, dtype: str | None = None, force: bool = False) -> Path:
    """Write the folder that a training without DeepSpeed would have written: whole weights, whole states.

    Weights, optimizer and loss scale come from the states of DeepSpeed, all other files are copied. The weights of an
    adapter stay as they are.

    Args:
        folder: a checkpoint, or a model that was saved in parts.
        target: the folder `checkpoint-N`, or its parent; of a model, the folder itself.
        dtype: float32, bfloat16 or float16, for all floating-point weights; by default the precision of the optimizer's
            copies, and float32 for others that were kept in half precision.
        force: replace an existing folder.

    Raises:
        FileExistsError: there is something at the target already.
        ValueError: the folder is damaged, the files of a process lack, or it holds other things than DeepSpeed writes.
    """
    folder = Path(folder)
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r} is none of {', '.join(_DTYPES)}")
    if Path(target).suffix == ".ckpt":
        raise ValueError(f"{target}: first convert {folder} into a folder, and that into a file")
    final, resumable = _new_folder(folder, target, force=force, weights=False)
    saved = saved_states(folder)
    in_parts = saved is not None and saved.processes is not None
    states = ZeroStates(folder) if in_parts else ReplicatedStates(folder)
    with staging.staged_folder(final) as staged:
        _copy_others(folder, staged, but=_LEFT_OUT)
        if not adapter_folders(folder):
            save_weights(torch.nn.Module(), staged, state_dict=_whole_weights(states, dtype))
        if resumable:
            save_torch(states.whole_optimizer(), staged / OPTIMIZER_NAME)
            schedule = saved_schedule(folder)
            if schedule is not None and not (staged / SCHEDULER_NAME).exists():
                save_torch(schedule, staged / SCHEDULER_NAME)
            if scaler := _scaler_state(states):
                save_torch(scaler, staged / SCALER_NAME)
        manifest.write_manifest(staged)
    return final


def parts_to_folder(
    folder: StrPath,
    target: StrPath,
    *,
    back: bool = False,
    max_shard_size: int | str = "5GB",
    force: bool = False,
) -> Path:
    """Write the folder with whole weights, and a whole optimizer, that has parts of processes; or the other way round.

    Args:
        folder: a checkpoint, or a model.
        target: the folder `checkpoint-N`, or its parent; of a model, the folder itself.
        back: make a part of whole weights. The optimizer stays whole; FSDP takes it so.
        max_shard_size: largest size of a file of weights, in bytes or as "5GB": so much of them is in memory.
        force: replace an existing folder.

    Raises:
        FileExistsError: there is something at the target already.
        ValueError: the folder is damaged, or has no such weights.
    """
    from .parts_conversion import parts_from_whole, whole_from_parts

    folder = Path(folder)
    if back and not has_whole_weights(folder):
        raise ValueError(f"parts=True: {folder} has no whole weights to make a part of")
    final, _ = _new_folder(folder, target, force=force)
    with staging.staged_folder(final) as staged:
        _copy_others(folder, staged)
        if back:
            parts_from_whole(folder, staged)
        else:
            whole_from_parts(folder, staged, max_shard_size)
        manifest.write_manifest(staged)
    return final


def _new_folder(folder: Path, target: StrPath, *, force: bool, weights: bool = True) -> tuple[Path, bool]:
    """Return the folder to write, and whether it is a checkpoint; the one to read is intact."""
    final, state = Path(target), folder / TRAINER_STATE_NAME
    resumable = state.is_file()
    require_intact(folder, training_state=resumable, weights=weights)
    if resumable:
        final = _folder_named(final, int(json.loads(state.read_text("utf-8"))["global_step"]))
    _require_free(final, force)
    return final, resumable


def _copy_others(folder: Path, staged: Path, but: Collection[str] = ("_manifest.json",)) -> None:
    """Copy all files except weights and some others: position, generators, schedule, tokenizers."""
    adapters = adapter_folders(folder)
    for path in sorted(folder.iterdir()):
        if path.name in adapters:
            shutil.copytree(path, staged / path.name)
        elif path.is_file() and path.name not in but and not re.match(_WEIGHTS, path.name):
            shutil.copyfile(path, staged / path.name)


def _whole_weights(states: ZeroStates | ReplicatedStates, dtype: str | None) -> dict[str, torch.Tensor]:
    whole: dict[str, torch.Tensor] = {}
    for name in sorted(states.weights, key=lambda name: name in states.tied):
        source = states.tied.get(name)
        whole[name] = _cast(states.weights[name], dtype) if source is None else whole[source]
    return whole


def _cast(tensor: torch.Tensor, dtype: str | None) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.to(_DTYPES[dtype] if dtype else torch.promote_types(tensor.dtype, torch.float32))


def _scaler_state(states: ZeroStates | ReplicatedStates) -> dict[str, Any] | None:
    """Return the state of torch's `GradScaler` that continues DeepSpeed's dynamic scaling; None without it."""
    kind, scaler = states.scaler or ("", {})
    if kind != "DynamicLossScaler":
        return None
    try:
        stable = scaler["cur_iter"] - scaler["last_overflow_iter"] - 1  # steps since the scale has shrunk
        return {
            "scale": float(scaler["cur_scale"]),
            "growth_factor": float(scaler["scale_factor"]),
            "backoff_factor": 1.0 / scaler["scale_factor"],
            "growth_interval": int(scaler["scale_window"]),
            "_growth_tracker": max(stable - 1, 0) % scaler["scale_window"],
        }
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{states.folder} does not say how losses were scaled ({error!r})") from error


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
    """Write under a temporary name, then rename."""
    final.parent.mkdir(parents=True, exist_ok=True)
    beside = final.with_name(f".{final.name}.partial-{process_token()}")
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
