"""Sharded checkpoints of models and optimizers in the format of `torch.distributed.checkpoint`.

Any number of processes can read them; `accelerate` uses the same names.
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
from .adapters import is_of_base, peft_names
from .manifest import record_checksums
from .sharded_reading import PlainPlanner, PlainReader, read_table, require_same_kinds
from .weight_formats import LoadReport

_log = logging.getLogger(__name__)

_MODEL = "model."
"""Prefix of the names of weights in the table."""

_SECOND_NAMES = "second_names"
"""Entry with the additional names under which weights are stored a second time."""

_EXTRA_STATE = "_extra_state"
"""Suffix of the names of the extra states of modules."""


_groups: weakref.WeakKeyDictionary[Any, dict[str, dist.ProcessGroup]] = weakref.WeakKeyDictionary()
"""Process groups for the threads that write, by the default group and the name of the folder.

Collectives of two threads on one group may be mismatched, so each folder has its own.
"""


PartWriters = list[Callable[[], Callable[[], object]]]
"""Functions that start to write parts, see `writing.CheckpointFiles.part_writers`."""


def save_model_parts(model: nn.Module, folder: StrPath, later: PartWriters | None = None) -> None:
    """Write this process's shards of a model. All processes must call this.

    Args:
        model: a model that is sharded over the processes.
        folder: the folder of the checkpoint.
        later: receives a function that lets a thread write copies of the parts; None writes at
            once.

    Raises:
        OSError: the disk of some process refused.
    """
    weights = get_model_state_dict(model)
    state: dict[str, Any] = {"model": weights}

    # The reference reads weights of a PEFT model under PEFT's names, so they are stored twice.
    names = peft_names(model, weights)
    if names:
        renamed = {name: weights[own_name] for name, own_name in names.items()}
        state = {"model": weights | renamed, _SECOND_NAMES: dict.fromkeys(names, 0)}
    _write(state, Path(folder, MODEL_PARTS_NAME), later)


def load_model_parts(model: nn.Module, folder: StrPath, *, all_ranks: bool) -> LoadReport:
    """Load into a model the weights that `save_model_parts` or `accelerate` wrote.

    `accelerate` writes only the active adapter of a PEFT model.

    Args:
        model: sharded or whole.
        folder: the folder of the checkpoint.
        all_ranks: whether all processes call this; otherwise each process reads on its own.

    Raises:
        ValueError: it cannot be read, or a tensor has another shape than the model's.
    """
    path = Path(folder, MODEL_PARTS_NAME)
    weights = get_model_state_dict(model)
    written: set[str] = set()
    for name in read_table(path).state_dict_metadata:
        if name.startswith(_MODEL):
            written.add(name.removeprefix(_MODEL))

    # Each weight is stored under its own name, or under PEFT's.
    peft_name_of = {own_name: name for name, own_name in peft_names(model, weights).items()}
    stored_names: dict[str, str] = {}
    for name in weights:
        stored_name = name if name in written else peft_name_of.get(name)
        if stored_name in written:
            stored_names[name] = stored_name

    # Read into the weights in place, and set those for which the state dict has copies.
    before = {stored_name: weights[name] for name, stored_name in stored_names.items()}
    state: dict[str, dict[str, Any]] = {"model": dict(before)}
    read_parts(state, path, all_ranks=all_ranks)
    read = state["model"]
    require_same_kinds(before, read, path)
    values = {name: read[stored_name] for name, stored_name in stored_names.items()}
    set_model_state_dict(model, values, options=StateDictOptions(strict=False))

    missing = [name for name in weights if name not in stored_names]
    has_peft_names = any(name != stored_name for name, stored_name in stored_names.items())
    if has_peft_names:
        missing = _missing_of_active_adapter(model, missing, path)
    unexpected = written - weights.keys() - set(peft_name_of.values())
    return LoadReport(tuple(missing), tuple(sorted(unexpected)))


def _missing_of_active_adapter(model: nn.Module, missing: list[str], path: Path) -> list[str]:
    """Return the missing trained weights of a folder that holds only the active adapter.

    Missing frozen weights are named in a warning, except those of the base model.
    """
    missing = [name for name in missing if not is_of_base(model, name)]
    if not missing:
        return []
    trained = get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))
    frozen = [name for name in missing if name not in trained]
    if frozen:
        _log.warning(
            "%s holds the active adapter alone; %s keep their present values.",
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
    """Write this process's shards of the states of an optimizer; see `save_model_parts`."""
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    _write(state, Path(folder, OPTIMIZER_PARTS_NAME), later)


def gather_states_by_name(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, Any]]:
    """Gather trained weights and the states of an optimizer as `accelerate` reads them.

    All processes must call this.

    Args:
        model: sharded by version 2 of FSDP.
        optimizer: the optimizer of its parameters.

    Returns:
        The content of each file by its name, in host memory; empty except on rank 0.
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
    """Load the states that `save_optimizer_parts` wrote into an optimizer before its first step."""
    path = Path(folder, OPTIMIZER_PARTS_NAME)
    # torch creates missing states of an optimizer by taking a step.
    with step_context(model)():
        before = get_optimizer_state_dict(model, optimizer)
        # The same tensors in new dicts, so that replaced values can be compared with the old ones.
        state = {"optimizer": map_nested(lambda leaf: leaf, before)}
        read_parts(state, path, all_ranks=all_ranks)
        require_same_kinds(before, state["optimizer"], path)
        set_optimizer_state_dict(model, optimizer, state["optimizer"])


def describe_model_parts(folder: StrPath) -> dict[str, torch.Tensor]:
    """Return an empty tensor without memory for each weight in a folder, by their names.

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
        # Skip entries that are not weights, and second names of weights.
        if name == key or name in second_names:
            continue
        if isinstance(entry, TensorStorageMetadata):
            described[name] = torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        elif not name.endswith(_EXTRA_STATE):
            other_names.append(name)
    if other_names:
        raise ValueError(
            f"{path} holds values that are not tensors as {', '.join(other_names)}, so it is not a "
            "model. Pass a folder with the weights of a model."
        )
    return described


def read_model_parts(
    folder: StrPath, names: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """Return weights in a folder by their names, whole, in the memory of this process.

    Args:
        folder: the folder of the checkpoint.
        names: the names of the weights; None for all.
    """
    described = describe_model_parts(folder)
    if names is None:
        names = described.keys()
    state = {name: torch.empty_like(described[name], device="cpu") for name in names}
    read_parts({"model": state}, Path(folder, MODEL_PARTS_NAME), all_ranks=False)
    return state


def read_parts(state: dict[str, Any], path: Path, *, all_ranks: bool) -> None:
    """Fill a nested dict with the values of a folder of parts.

    Args:
        state: names of the values, as in the folder; tensors are filled in place.
        path: the folder of parts.
        all_ranks: whether all processes call this; otherwise this process reads alone.

    Raises:
        OSError: the disk of some process refused.
        ValueError: the folder cannot be read.
    """
    with _plain_errors(path):
        read_folder(state, PlainReader(path), PlainPlanner(), all_ranks=all_ranks)


class _ChecksumWriter(FolderWriter):
    """Writer of torch whose process records the checksums of its files before it reports success.

    So the checksums are complete when the saving process writes the manifest.
    """

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write the files of this process."""
        written = super().write_data(plan, planner)
        written.wait()
        rank = 0
        if dist.is_initialized():
            rank = dist.get_rank()
        record_checksums(self.folder, self.folder.glob(f"__{rank}_*"))
        return written

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the state, which `_write` has copied."""
        return state_dict


def _write(state: dict[str, Any], path: Path, later: PartWriters | None) -> None:
    if later is None:
        with _plain_errors(path):
            write_folder(state, _ChecksumWriter(path))
    else:
        later.append(partial(_start_writing, copy_to_host(state), path))


def _start_writing(state: dict[str, Any], path: Path) -> Callable[[], None]:
    """Let a thread of torch write copies.

    Returns:
        A function that waits until all processes have written theirs.
    """
    groups = _groups.setdefault(dist.group.WORLD, {})
    if path.name not in groups:
        groups[path.name] = gloo_group()
    # The copies are in main memory, so none has to be fetched from a device ahead of writing.
    writer = _ChecksumWriter(path, per_thread_copy_ahead=0)
    wait_for_torch = start_writing_folder(state, writer, groups[path.name])

    def wait() -> None:
        with _plain_errors(path):
            wait_for_torch()

    return wait


@contextlib.contextmanager
def _plain_errors(path: Path) -> Generator[None]:
    """Raise the error of one process instead of an error that lists those of all."""
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
