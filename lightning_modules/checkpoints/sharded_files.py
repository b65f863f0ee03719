"""Sharded checkpoints of models and optimizers in the format of `torch.distributed.checkpoint`.

Any number of processes can read them; `accelerate` uses the same names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from ..common.file_names import (
    MODEL_PARTS_NAME,
    OPTIMIZER_NAME_BIN,
    OPTIMIZER_PARTS_NAME,
    TRAINED_WEIGHTS_NAME,
)
from ..common.local_paths import StrPath
from ..common.nested import leaves, map_nested
from ..distributed.tensor_parallel import step_context
from .adapters import is_of_base, peft_names
from .manifest import record_checksums
from .sharded_reading import PlainPlanner, PlainReader, read_table, require_same_kinds
from .weight_formats import LoadReport

_log = logging.getLogger(__name__)

_MODEL = "model."
"""Begins the names of weights in the table."""

_SECOND_NAMES = "second_names"
"""Names under which weights are there once more."""

_EXTRA_STATE = "_extra_state"
"""Suffix of the names of the extra states of modules."""


_groups: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Groups of all processes for the threads that write, by the default group and the name of what
is written.
"""


def save_model_parts(model: nn.Module, folder: StrPath, files: Any = None) -> None:
    """Write this process's shards of a model; collective.

    Args:
        model: sharded.
        folder: the checkpoint.
        files: `CheckpointFiles`, which may take copies, and what lets a thread write them; None
            writes at once.

    Raises:
        OSError: the disk of some process refused.
    """
    weights = get_model_state_dict(model)
    state: dict[str, Any] = {"model": weights}

    # For the reference, a model of PEFT is there under the names of PEFT too.
    names = peft_names(model, weights)
    if names:
        again = {name: weights[own] for name, own in names.items()}
        state = {"model": {**weights, **again}, _SECOND_NAMES: dict.fromkeys(names, 0)}
    _write(state, Path(folder, MODEL_PARTS_NAME), files)


def load_model_parts(model: nn.Module, folder: StrPath, *, together: bool) -> LoadReport:
    """Load into a model what `save_model_parts` wrote, or `accelerate`: of a PEFT model the active
    adapter alone.

    Args:
        model: sharded or whole.
        folder: the checkpoint.
        together: all processes call this; otherwise each reads by itself.

    Raises:
        ValueError: it cannot be read, or a tensor has another shape than the model's.
    """
    path = Path(folder, MODEL_PARTS_NAME)
    own = get_model_state_dict(model)
    written: set[str] = set()
    for name in read_table(path).state_dict_metadata:
        if name.startswith(_MODEL):
            written.add(name.removeprefix(_MODEL))

    # Each weight under its own name, or under that of PEFT.
    by_peft = {own_name: name for name, own_name in peft_names(model, own).items()}
    places: dict[str, str] = {}
    for name in own:
        place = name if name in written else by_peft.get(name)
        if place in written:
            places[name] = place

    before = {place: own[name] for name, place in places.items()}
    read = {"model": dict(before)}
    _read(read, path, together)
    require_same_kinds(before, read["model"], path)
    found = {name: read["model"][place] for name, place in places.items()}
    set_model_state_dict(model, found, options=StateDictOptions(strict=False))

    # Under the names of PEFT there is the active adapter alone, without the frozen base.
    missing = [name for name in own if name not in places]
    if any(name != place for name, place in places.items()):
        missing = [name for name in missing if not is_of_base(model, name)]
        trained = (
            get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))
            if missing
            else {}
        )
        frozen = [name for name in missing if name not in trained]
        if frozen:
            _log.warning(
                "%s holds the active adapter alone; %s keep what they had.",
                path,
                ", ".join(frozen),
            )
        missing = [name for name in missing if name in trained]
    unexpected = written - own.keys() - set(by_peft.values())
    return LoadReport(tuple(missing), tuple(sorted(unexpected)))


def save_optimizer_parts(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: StrPath, files: Any = None
) -> None:
    """Write this process's shards of the states of an optimizer; see `save_model_parts`."""
    _write(
        {"optimizer": get_optimizer_state_dict(model, optimizer)},
        Path(folder, OPTIMIZER_PARTS_NAME),
        files,
    )


def gather_states_by_name(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, Any]]:
    """Gather trained weights and the states of an optimizer as `accelerate` reads them; collective.

    Args:
        model: sharded by version 2 of FSDP.
        optimizer: of its parameters.

    Returns:
        The content of each file by its name, in host memory; empty ones on other ranks than the
        first.
    """
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    trained = dataclasses.replace(whole, ignore_frozen_params=True)
    return {
        TRAINED_WEIGHTS_NAME: get_model_state_dict(model, options=trained),
        OPTIMIZER_NAME_BIN: get_optimizer_state_dict(model, optimizer, options=whole),
    }


def load_optimizer_parts(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: StrPath, *, together: bool
) -> None:
    """Load into an optimizer, before its first step, what `save_optimizer_parts` wrote."""
    path = Path(folder, OPTIMIZER_PARTS_NAME)
    with step_context(model)():  # torch creates the states of an optimizer by a step
        own = get_optimizer_state_dict(model, optimizer)
        read = {"optimizer": map_nested(lambda leaf: leaf, own)}
        _read(read, path, together)
        require_same_kinds(own, read["optimizer"], path)
        set_optimizer_state_dict(model, optimizer, read["optimizer"])


def describe_model_parts(folder: StrPath) -> dict[str, torch.Tensor]:
    """Return an empty tensor without memory for each weight in a folder, by their names.

    Raises:
        ValueError: there are other values.
    """
    path = Path(folder, MODEL_PARTS_NAME)
    table: dict[str, Any] = read_table(path).state_dict_metadata
    second: set[str] = set()
    for name in table:
        if name.startswith(_SECOND_NAMES):
            second.add(name.removeprefix(f"{_SECOND_NAMES}."))

    described: dict[str, torch.Tensor] = {}
    others: list[str] = []
    for key, kind in table.items():
        name = key.removeprefix(_MODEL)
        if name == key or name in second:
            continue
        if hasattr(kind, "size"):
            described[name] = torch.empty(kind.size, dtype=kind.properties.dtype, device="meta")
        elif not name.endswith(_EXTRA_STATE):
            others.append(name)
    if others:
        raise ValueError(
            f"{path} holds no tensors as {', '.join(others)}: these are no weights of a model."
        )
    return described


def read_model_parts(folder: StrPath, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return weights in a folder by their names, whole, in the memory of this process.

    Args:
        folder: the checkpoint.
        names: of the weights; None for all.
    """
    described = describe_model_parts(folder)
    wanted = described.keys() if names is None else names
    state = {name: torch.empty_like(described[name], device="cpu") for name in wanted}
    read_parts({"model": state}, Path(folder, MODEL_PARTS_NAME))
    return state


def read_parts(state: dict[str, Any], path: Path) -> None:
    """Fill a nested dict with what a folder of parts holds under its names, in this process
    alone.
    """
    _read(state, path, together=False)


class _ChecksumWriter(FileSystemWriter):
    """As torch's, but a process has noted the checksums of its files before the others hear that
    it has written.
    """

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write the files of this process."""
        written = super().write_data(plan, planner)
        written.wait()
        path = Path(self.path)
        record_checksums(path, path.glob(f"__{dist.get_rank() if dist.is_initialized() else 0}_*"))
        return written

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return what `_write` has copied."""
        return state_dict


def _write(state: dict[str, Any], path: Path, files: Any) -> None:
    if files is None or files.parts is None:
        with _plain_errors(path):
            save(state, storage_writer=_ChecksumWriter(path))
        return
    # a `ShardedTensor`, of version 1 of FSDP
    if any(hasattr(leaf, "local_shards") for leaf in leaves(state)):
        copied = BlockingAsyncStager().stage(state)
    else:
        copied = files.parts.of(state)
        files.parts.wait()
    files.part_writers.append(partial(_begin_to_write, copied, path))


def _begin_to_write(state: dict[str, Any], path: Path) -> Callable[[], None]:
    """Let a thread of torch write copies, and return what waits until all processes have written
    theirs.
    """
    groups = _groups.setdefault(dist.group.WORLD, {})
    if path.name not in groups:
        groups[path.name] = dist.new_group(backend="gloo")
    writer = _ChecksumWriter(path, per_thread_copy_ahead=0)
    writing: Any = async_save(state, storage_writer=writer, process_group=groups[path.name])

    def wait() -> None:
        with _plain_errors(path):
            writing.result()

    return wait


def _read(state: dict[str, Any], path: Path, together: bool) -> None:
    with _plain_errors(path), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="torch.distributed is disabled", category=UserWarning
        )
        load(
            state,
            checkpoint_id=path,
            storage_reader=PlainReader(path),
            planner=PlainPlanner(),
            no_dist=not together,
        )


@contextlib.contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Raise the error of one process instead of one that lists those of all."""
    try:
        yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()), None)
        cause = error if first is None else first[0]
        if isinstance(cause, OSError):
            raise cause from error
        raise ValueError(f"{path} cannot be read or written: {cause}") from error
