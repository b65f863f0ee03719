"""Sharded checkpoints of models and optimizers in the format of `torch.distributed.checkpoint`.

They can be loaded with any world size. `accelerate` uses the same names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Callable, Collection, Generator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ..common.collectives import gloo_group
from ..common.file_names import (
    MODEL_PARTS_NAME,
    OPTIMIZER_NAME_BIN,
    OPTIMIZER_PARTS_NAME,
    TRAINED_WEIGHTS_NAME,
)
from ..common.local_paths import StrPath
from ..common.nested import map_nested
from ..common.torch_checkpoint import (
    FolderWriter,
    copy_to_host,
    read_folder,
    start_writing_folder,
    write_folder,
)
from ..distributed.tensor_parallel import step_context
from .adapters import is_base_weight, peft_names
from .manifest import record_checksums
from .sharded_reading import PlainPlanner, PlainReader, read_table, require_same_kinds
from .weight_formats import LoadReport

_log = logging.getLogger(__name__)

_MODEL = "model."
"""Prefix of weight names in the metadata."""

_SECOND_NAMES = "second_names"
"""Key of the names under which weights are stored a second time."""

_EXTRA_STATE = "_extra_state"
"""Suffix of the names of the extra states of modules."""


_groups: weakref.WeakKeyDictionary[Any, dict[str, dist.ProcessGroup]] = weakref.WeakKeyDictionary()
"""Process groups for writer threads, by the default group and the folder's name.

Each folder has a separate group, because collectives of two threads on the same group could be
mismatched.
"""


PartWriters = list[Callable[[], Callable[[], object]]]
"""Functions that start to write shards, see `writing.CheckpointFiles.part_writers`."""


def save_model_parts(model: nn.Module, folder: StrPath, later: PartWriters | None = None) -> None:
    """Write this rank's shards of a model. Must be called on all ranks.

    Args:
        model: the sharded model.
        folder: the folder of the checkpoint.
        later: receives a function that starts a thread to write copies of the shards. None writes
            immediately.

    Raises:
        OSError: the disk of some process refused.
    """
    weights = get_model_state_dict(model)
    state: dict[str, Any] = {"model": weights}

    # Store weights of a PEFT model twice, because the reference expects PEFT's names.
    names = peft_names(model, weights)
    if names:
        renamed = {name: weights[own_name] for name, own_name in names.items()}
        state = {"model": weights | renamed, _SECOND_NAMES: dict.fromkeys(names, 0)}
    _write(state, Path(folder, MODEL_PARTS_NAME), later)


def load_model_parts(model: nn.Module, folder: StrPath, *, all_ranks: bool) -> LoadReport:
    """Load the shards of a model that `save_model_parts` or `accelerate` wrote.

    For a PEFT model, `accelerate` writes only the active adapter.

    Args:
        model: a sharded model, or one that is not sharded.
        folder: the folder of the checkpoint.
        all_ranks: whether all ranks call this. Otherwise this process reads independently.

    Raises:
        ValueError: the shards cannot be read, or a tensor's shape differs from the model's.
    """
    path = Path(folder, MODEL_PARTS_NAME)
    weights = get_model_state_dict(model)
    stored_in_folder: set[str] = set()
    for name in read_table(path).state_dict_metadata:
        if name.startswith(_MODEL):
            stored_in_folder.add(name.removeprefix(_MODEL))

    # Each weight is stored under its name in the model or PEFT's name.
    peft_name_of = {own_name: name for name, own_name in peft_names(model, weights).items()}
    stored_names: dict[str, str] = {}
    for name in weights:
        stored_name = name if name in stored_in_folder else peft_name_of.get(name)
        if stored_name in stored_in_folder:
            stored_names[name] = stored_name

    # Read into the weights in place. Then load the weights of which the state dict has copies.
    before = {stored_name: weights[name] for name, stored_name in stored_names.items()}
    state: dict[str, dict[str, Any]] = {"model": dict(before)}
    read_parts(state, path, all_ranks=all_ranks)
    loaded_values = state["model"]
    require_same_kinds(before, loaded_values, path)
    values = {name: loaded_values[stored_name] for name, stored_name in stored_names.items()}
    set_model_state_dict(model, values, options=StateDictOptions(strict=False))

    missing = [name for name in weights if name not in stored_names]
    has_peft_names = any(name != stored_name for name, stored_name in stored_names.items())
    if has_peft_names:
        missing = _missing_of_active_adapter(model, missing, path)
    unexpected = stored_in_folder - weights.keys() - set(peft_name_of.values())
    return LoadReport(tuple(missing), tuple(sorted(unexpected)))


def _missing_of_active_adapter(model: nn.Module, missing: list[str], path: Path) -> list[str]:
    """Return the missing trained weights of a checkpoint that holds only the active adapter.

    Warns of missing frozen weights, except those of the base model.
    """
    missing = [name for name in missing if not is_base_weight(model, name)]
    if not missing:
        return []
    trained = get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))
    frozen = [name for name in missing if name not in trained]
    if frozen:
        _log.warning(
            "%s contains only the active adapter; %s keep their present values.",
            path,
            ", ".join(frozen),
        )
    return [name for name in missing if name in trained]


def save_optimizer_parts(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: StrPath,
    later: PartWriters | None = None,
) -> None:
    """Write this rank's shards of an optimizer's states; see `save_model_parts`."""
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    _write(state, Path(folder, OPTIMIZER_PARTS_NAME), later)


def gather_states_by_name(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, Any]]:
    """Gather the trained weights and optimizer states in the form that `accelerate` reads.

    Must be called on all ranks.

    Args:
        model: sharded by version 2 of FSDP.
        optimizer: the optimizer of the model.

    Returns:
        The contents of each file by name, on the CPU. Empty except on rank 0.
    """
    full_options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    trained = dataclasses.replace(full_options, ignore_frozen_params=True)
    return {
        TRAINED_WEIGHTS_NAME: get_model_state_dict(model, options=trained),
        OPTIMIZER_NAME_BIN: get_optimizer_state_dict(model, optimizer, options=full_options),
    }


def load_optimizer_parts(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: StrPath, *, all_ranks: bool
) -> None:
    """Load the states that `save_optimizer_parts` wrote, before the first step of the optimizer."""
    path = Path(folder, OPTIMIZER_PARTS_NAME)
    # torch takes an optimizer step to create missing states.
    with step_context(model)():
        before = get_optimizer_state_dict(model, optimizer)
        # Put the same tensors in new dicts, so that loaded values can be compared with the old
        # ones.
        state = {"optimizer": map_nested(lambda leaf: leaf, before)}
        read_parts(state, path, all_ranks=all_ranks)
        require_same_kinds(before, state["optimizer"], path)
        set_optimizer_state_dict(model, optimizer, state["optimizer"])


def describe_model_parts(folder: StrPath) -> dict[str, torch.Tensor]:
    """Return a meta tensor for each weight in a sharded checkpoint, by name.

    Raises:
        ValueError: the folder holds values that are not tensors.
    """
    path = Path(folder, MODEL_PARTS_NAME)
    table = read_table(path).state_dict_metadata
    second_names: set[str] = set()
    for key in table:
        if key.startswith(_SECOND_NAMES):
            second_names.add(key.removeprefix(f"{_SECOND_NAMES}."))

    described: dict[str, torch.Tensor] = {}
    other_names: list[str] = []
    for key, entry in table.items():
        name = key.removeprefix(_MODEL)
        # Skip other entries and second names of weights.
        if name == key or name in second_names:
            continue
        if isinstance(entry, TensorStorageMetadata):
            described[name] = torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        elif not name.endswith(_EXTRA_STATE):
            other_names.append(name)
    if other_names:
        raise ValueError(
            f"{path} is not a model: its entries {', '.join(other_names)} are not tensors. Pass a "
            "folder with the weights of a model."
        )
    return described


def read_model_parts(
    folder: StrPath, names: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """Read full weights from a sharded checkpoint into the memory of this process.

    Args:
        folder: the folder of the checkpoint.
        names: the names of the weights to read. None reads all.
    """
    described = describe_model_parts(folder)
    if names is None:
        names = described.keys()
    state = {name: torch.empty_like(described[name], device="cpu") for name in names}
    read_parts({"model": state}, Path(folder, MODEL_PARTS_NAME), all_ranks=False)
    return state


def read_parts(state: dict[str, Any], path: Path, *, all_ranks: bool) -> None:
    """Fill a nested dict with the values of a sharded checkpoint.

    Args:
        state: the values to read, by name. Tensors are filled in place.
        path: the folder of shards.
        all_ranks: whether all ranks call this. Otherwise this process reads independently.

    Raises:
        OSError: the disk of some process refused.
        ValueError: the folder cannot be read.
    """
    # Flattening leaves out tensors of which this rank has no shard. torch then misses their names,
    # and mistakes the folder for one of torch 2.3.
    planner = PlainPlanner(flatten_sharded_tensors=False)
    with _plain_errors(path):
        read_folder(state, PlainReader(path), planner, all_ranks=all_ranks)


class _ChecksumWriter(FolderWriter):
    """torch's writer, but each rank records the checksums of its files before it reports success.

    The checksums are therefore complete when the saving rank writes the manifest.
    """

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write the files of this rank."""
        stored_in_folder = super().write_data(plan, planner)
        stored_in_folder.wait()
        rank = 0
        if dist.is_initialized():
            rank = dist.get_rank()
        record_checksums(self.folder, self.folder.glob(f"__{rank}_*"))
        return stored_in_folder

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the state unchanged, because `_write` has copied it."""
        return state_dict


def _write(state: dict[str, Any], path: Path, later: PartWriters | None) -> None:
    if later is None:
        with _plain_errors(path):
            write_folder(state, _ChecksumWriter(path))
    else:
        later.append(partial(_start_writing, copy_to_host(state), path))


def _start_writing(state: dict[str, Any], path: Path) -> Callable[[], None]:
    """Start to write copies in a thread of torch.

    Returns:
        A function that waits until all ranks have written theirs.
    """
    groups = _groups.setdefault(dist.group.WORLD, {})
    if path.name not in groups:
        groups[path.name] = gloo_group()
    # The copies are on the CPU already, so nothing is copied ahead of writing.
    writer = _ChecksumWriter(path, per_thread_copy_ahead=0)
    wait_for_torch = start_writing_folder(state, writer, groups[path.name])

    def wait() -> None:
        with _plain_errors(path):
            wait_for_torch()

    return wait


@contextlib.contextmanager
def _plain_errors(path: Path) -> Generator[None]:
    """Raise the error of one rank instead of an error that lists those of all ranks."""
    try:
        yield
    except CheckpointException as error:
        cause: BaseException = error
        for first_cause, _ in error.failures.values():
            cause = first_cause
            break
        if isinstance(cause, OSError):
            raise cause from error
        raise ValueError(f"{path} cannot be read or written: {cause}") from error
