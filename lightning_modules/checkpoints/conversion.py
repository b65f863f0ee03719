"""Convert checkpoints between formats, in one process, without a model.

Converts a Lightning checkpoint file to a folder of the documented format and back, a DeepSpeed ZeRO
checkpoint to full weights and optimizer states (DeepSpeed need not be installed), and a sharded
checkpoint to full weights, one weights file at a time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ..common.file_names import (
    MODEL_PARTS_NAME,
    OPTIMIZER_NAME,
    OPTIMIZER_PARTS_NAME,
    PREFIX_CHECKPOINT_DIR,
    SAFE_WEIGHTS_INDEX_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
)
from ..common.local_paths import StrPath, require_local
from ..common.nested import map_nested
from ..common.process_identity import process_token
from ..common.torch_files import load_torch, save_torch
from ..distributed.zero_files import saved_schedule, saved_states
from ..distributed.zero_states import ZeroStates
from . import disk, manifest, staging
from .folder_io import split_weights
from .lightning_files import read_states, write_states
from .sharded_files import describe_model_parts, read_model_parts, read_parts
from .sharded_reading import read_table
from .verify import require_intact
from .weight_formats import adapter_folders, has_model_parts, has_optimizer_parts
from .weights import read_weights, save_weights, weights_written_to

__all__ = ["convert"]

_WEIGHTS_FILES = r"(pytorch_)?model(-[0-9]+-of-[0-9]+)?\.(safetensors|bin)(\.index\.json)?$"
"""Pattern of the names of full (not sharded) weights files."""

_DEEPSPEED_FILES = ("latest", "zero_to_fp32.py", "zero_to_torch.py", OPTIMIZER_NAME, SCALER_NAME)
"""Files of DeepSpeed and files that are converted from its states. They are not copied."""

_OTHER_FOLDERS = (
    rf"{MODEL_PARTS_NAME}|{OPTIMIZER_PARTS_NAME}|global_step.*|{PREFIX_CHECKPOINT_DIR}-[0-9]+"
    r"|runs|\..*"
)
"""Pattern of folders that are not copied: shards, and other folders in an `output_dir`."""

_LARGEST_FILE = "5GB"
"""Maximum size of a weights file written from shards. It limits the weights held in memory."""

_STATE_PREFIX = "optimizer.state."
_GROUP_PREFIX = "optimizer.param_groups."


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
    """Convert a checkpoint to another format.

    A Lightning file is converted to a folder. A folder is converted to a Lightning file or, if it
    is sharded, to a folder with full weights.

    Args:
        source: a Lightning file, or a folder: a checkpoint of any library, or a sharded model. A
            file does not name the model, so the folder made from it has no `config.json`. From a
            DeepSpeed checkpoint, weights, optimizer and loss scale are converted, and adapter
            weights are copied.
        target: the folder `checkpoint-N` or its parent; for a model, the folder itself; or a file
            `*.ckpt` for `lightning.Trainer.fit(ckpt_path=file)` and `load_from_checkpoint`.
        prefix: prefix of the names of the model's weights in a Lightning file; "model." for a
            `LossModule`.
        force: replace an existing file or folder.
        accumulation: batches per optimizer step, for folders of transformers, which do not record
            it.
        batches_in_epoch: batches per epoch, for a file from the middle of an epoch that does not
            record it.
        batch_size: samples per batch and process, for a file that does not record it.

    Returns:
        The folder or file that was written.

    Raises:
        FileNotFoundError: the source does not exist.
        FileExistsError: the target exists.
        ValueError: the source is damaged, is not in a supported format or lacks data that the
            target needs, or the target is named after another step.
    """
    source = Path(source)
    target = Path(target)
    is_folder = source.is_dir()
    if is_folder and saved_states(source) is not None:
        return _convert_zero(source, target, force)
    if is_folder and has_model_parts(source) and target.suffix != ".ckpt":
        return _convert_shards(source, target, force)
    if is_folder:
        return _folder_to_file(source, target, prefix, accumulation, force)

    state_entries: dict[str, object] = {"batches_in_epoch": batches_in_epoch}
    if batch_size is not None:
        state_entries["train_batch_size"] = batch_size
    return _file_to_folder(source, target, prefix, state_entries, force)


def _file_to_folder(
    file: Path, target: Path, prefix: str, state_entries: Mapping[str, object], force: bool
) -> Path:
    """Write the folder that `FolderCheckpointIO` would have written instead of a file."""
    content = load_torch(file)
    if not isinstance(content, dict):
        raise ValueError(
            f"{file} is not a checkpoint of lightning.Trainer: it holds a {type(content).__name__}"
        )
    checkpoint = cast("dict[str, Any]", content)
    if not {"state_dict", "global_step", "loops"} <= checkpoint.keys():
        entries = ", ".join(map(str, checkpoint))[:100]
        raise ValueError(
            f"{file} is not a checkpoint of lightning.Trainer: it holds only {entries}"
        )

    model_weights, other_weights = split_weights(checkpoint["state_dict"], prefix)
    final = _folder_named(target, int(checkpoint["global_step"]))
    with _new_folder(final, force) as staged:
        # Pass a plain module, because the file does not record the class of the model.
        save_weights(torch.nn.Module(), staged, state_dict=model_weights)
        write_states(checkpoint, staged, other_weights, **state_entries)
    return final


def _folder_to_file(folder: Path, final: Path, prefix: str, accumulation: int, force: bool) -> Path:
    """Write the file that Lightning would have written instead of a folder."""
    require_intact(folder)
    _prepare_target(final, force)
    if has_optimizer_parts(folder):
        raise ValueError(
            f"{folder} has a sharded optimizer: convert it to a folder first, then that folder to "
            "a file"
        )
    weights = {f"{prefix}{name}": tensor for name, tensor in read_weights(folder).items()}
    checkpoint = read_states(folder, accumulation=accumulation)
    checkpoint["state_dict"] = {**weights, **checkpoint["state_dict"]}

    # Write to a temporary name, so that a killed process leaves no incomplete file.
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.partial-{process_token()}")
    try:
        save_torch(map_nested(_without_numpy, checkpoint), temporary)
        disk.sync_path(temporary)
        os.replace(temporary, final)
    finally:
        disk.delete(temporary)
    disk.sync_path(final.parent)
    return final


def _convert_zero(folder: Path, target: Path, force: bool) -> Path:
    """Write the full weights and states that a training without DeepSpeed would have written."""
    if target.suffix == ".ckpt":
        raise ValueError(
            f"target={str(target)!r}: convert {folder} to a folder first, then that folder to a "
            "file"
        )
    final = _folder_for(folder, target, weights=False)

    states = ZeroStates(folder)
    with _new_folder(final, force) as staged:
        _copy_other_files(folder, staged, except_names=_DEEPSPEED_FILES)

        # Weights of adapters are among the copied files.
        if not adapter_folders(folder):
            save_weights(torch.nn.Module(), staged, state_dict=_full_weights(states))
        if _is_checkpoint(folder):
            _convert_zero_states(folder, states, staged)
    return final


def _convert_zero_states(folder: Path, states: ZeroStates, staged: Path) -> None:
    """Write optimizer, schedule and loss scale.

    Args:
        folder: the checkpoint of DeepSpeed.
        states: the states of that folder.
        staged: the folder to write into.
    """
    save_torch(states.full_optimizer(), staged / OPTIMIZER_NAME)
    # The file of a schedule that DeepSpeed did not step has been copied.
    schedule = saved_schedule(folder)
    if schedule is not None and not (staged / SCHEDULER_NAME).exists():
        save_torch(schedule, staged / SCHEDULER_NAME)
    scaler = _scaler_state(states)
    if scaler is not None:
        save_torch(scaler, staged / SCALER_NAME)


def _convert_shards(folder: Path, target: Path, force: bool) -> Path:
    """Write full weights and optimizer states from a sharded checkpoint."""
    final = _folder_for(folder, target)
    with _new_folder(final, force) as staged:
        _copy_other_files(folder, staged)
        _write_full_weights(folder, staged)
        if has_optimizer_parts(folder):
            save_torch(_read_full_optimizer(folder / OPTIMIZER_PARTS_NAME), staged / OPTIMIZER_NAME)
    return final


# --- the folder to write


@contextmanager
def _new_folder(final: Path, force: bool) -> Generator[Path]:
    """Yield an empty folder that gets a manifest and its final name when the block succeeds."""
    _prepare_target(final, force)
    with staging.staged_folder(final) as staged:
        yield staged
        manifest.write_manifest(staged)


def _prepare_target(final: Path, force: bool) -> None:
    """Check that the target may be written, and remove what killed conversions have left there."""
    require_local(final, "target")
    if os.path.lexists(final) and not force:
        raise FileExistsError(f"{final} exists; pass --force (force=True) to replace it")
    staging.remove_leftovers(final.parent)


def _is_checkpoint(folder: Path) -> bool:
    return (folder / TRAINER_STATE_NAME).is_file()


def _folder_for(folder: Path, target: Path, *, weights: bool = True) -> Path:
    """Check that the source folder is intact and return the folder to write."""
    is_checkpoint = _is_checkpoint(folder)
    require_intact(folder, training_state=is_checkpoint, weights=weights)
    if not is_checkpoint:
        return target
    state = json.loads((folder / TRAINER_STATE_NAME).read_text("utf-8"))
    return _folder_named(target, int(state["global_step"]))


def _folder_named(target: Path, step: int) -> Path:
    name = f"{PREFIX_CHECKPOINT_DIR}-{step}"
    if not re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+", target.name):
        return target / name
    if target.name != name:
        raise ValueError(
            f"target={str(target)!r} does not match the checkpoint, which is of step {step}. Name "
            f"it {name}."
        )
    return target


def _copy_other_files(folder: Path, staged: Path, except_names: Collection[str] = ()) -> None:
    """Copy all files and folders except weights, such as RNG states, schedule and chat templates.

    Args:
        folder: the folder to read.
        staged: the folder to write into.
        except_names: names of other files that are not copied.
    """
    adapters = adapter_folders(folder)
    # The new folder gets a new manifest.
    left_out = {*except_names, manifest.MANIFEST_NAME}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            is_other = re.fullmatch(_OTHER_FOLDERS, path.name) is not None
            if path.name in adapters or not is_other:
                shutil.copytree(path, staged / path.name)
            continue
        has_weights = re.match(_WEIGHTS_FILES, path.name) is not None
        if path.is_file() and not has_weights and path.name not in left_out:
            shutil.copyfile(path, staged / path.name)


# --- files of Lightning


def _without_numpy(leaf: object) -> object:
    """Convert NumPy arrays to tensors and NumPy scalars to Python numbers, as Lightning expects."""
    if isinstance(leaf, np.generic):
        return cast("object", leaf.item())
    if isinstance(leaf, np.ndarray):
        return torch.tensor(leaf, device="cpu")
    return leaf


# --- states of DeepSpeed


def _full_weights(states: ZeroStates) -> dict[str, torch.Tensor]:
    """Return the weights in the precision of the optimizer, which is at least float32."""
    full_weights: dict[str, torch.Tensor] = {}
    # Tied weights come last and reuse the tensor that was cast under the other name.
    for name in sorted(states.weights, key=lambda name: name in states.tied):
        source = states.tied.get(name)
        if source is not None:
            full_weights[name] = full_weights[source]
            continue
        weight = states.weights[name]
        if weight.is_floating_point():
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        full_weights[name] = weight
    return full_weights


def _scaler_state(states: ZeroStates) -> dict[str, Any] | None:
    """Convert the state of DeepSpeed's dynamic loss scaler to one of torch's `GradScaler`.

    Returns None if the checkpoint has no dynamic loss scaler.
    """
    kind, scaler = states.scaler or ("", {})
    if kind != "DynamicLossScaler":
        return None
    try:
        # Steps since the last overflow.
        steps_since_overflow = scaler["cur_iter"] - scaler["last_overflow_iter"] - 1
        return {
            "scale": float(scaler["cur_scale"]),
            "growth_factor": float(scaler["scale_factor"]),
            "backoff_factor": 1.0 / scaler["scale_factor"],
            "growth_interval": int(scaler["scale_window"]),
            "_growth_tracker": max(steps_since_overflow - 1, 0) % scaler["scale_window"],
        }
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(
            f"{states.folder} is damaged: the state of its loss scaler is incomplete ({error!r})"
        ) from error


# --- parts of processes


def _write_full_weights(folder: Path, staged: Path) -> None:
    """Write sharded weights as safetensors files."""
    sizes = describe_model_parts(folder)
    split = split_torch_state_dict_into_shards(sizes, max_shard_size=_LARGEST_FILE)
    with weights_written_to(staged):
        for file, names in split.filename_to_tensors.items():
            weights = read_model_parts(folder, names)
            save_file(weights, staged / file, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2)
        (staged / SAFE_WEIGHTS_INDEX_NAME).write_text(text, encoding="utf-8")


def _read_full_optimizer(path: Path) -> dict[str, Any]:
    """Read a sharded optimizer state, and replace the names of parameters by their numbers.

    Args:
        path: the folder of the optimizer's shards.

    Raises:
        ValueError: it holds states of parameters that are in no parameter group.
    """
    state: dict[str, Any] = {}
    for name, entry in read_table(path).state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            state[name] = torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu")
        else:
            state[name] = None
    read_parts(state, path, all_ranks=False)

    # The shards have one entry for each value of a group and of a parameter.
    groups: dict[int, dict[str, Any]] = {}
    states: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        if name.startswith(_GROUP_PREFIX):
            number, _, key = name.removeprefix(_GROUP_PREFIX).partition(".")
            groups.setdefault(int(number), {})[key] = value
        else:
            parameter, _, key = name.removeprefix(_STATE_PREFIX).rpartition(".")
            states.setdefault(parameter, {})[key] = value

    ordered = [groups[number] for number in sorted(groups)]
    names: list[str] = []
    for group in ordered:
        names.extend(group["params"])
    unknown = states.keys() - set(names)
    if unknown:
        raise ValueError(
            f"{path} has states of parameters that are in no parameter group: "
            f"{', '.join(sorted(unknown)[:3])}."
        )

    # torch numbers the parameters consecutively over all groups.
    numbers = {name: number for number, name in enumerate(names)}
    for group in ordered:
        group["params"] = [numbers[name] for name in group["params"]]
    by_number = {numbers[name]: value for name, value in states.items()}
    return {"state": by_number, "param_groups": ordered}
