"""Convert checkpoints between parts of processes and whole files, in one process, without a model.

Weights go through memory a file or a tensor at a time; the states of an optimizer go through a file that is mapped into
memory, which the system writes back where memory is short.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from ..common.file_names import MODEL_PARTS_NAME, OPTIMIZER_NAME, OPTIMIZER_PARTS_NAME, SAFE_WEIGHTS_INDEX_NAME
from ..common.torch_files import save_torch
from .forms import has_optimizer_parts
from .sharded_files import describe_model_parts, read_model_parts, read_parts
from .sharded_reading import read_table
from .weights import weights_written_to, whole_files

_LARGE = 1 << 20
"""Bytes of a tensor that goes through a file."""

_STATE, _GROUPS = "optimizer.state.", "optimizer.param_groups."


def whole_from_parts(folder: Path, staged: Path, max_shard_size: int | str) -> None:
    """Write weights as safetensors, and the state of the optimizer if there is one, from the parts of processes.

    Args:
        folder: the checkpoint in parts.
        staged: the folder to write into.
        max_shard_size: largest size of a file, in bytes or as "5GB", and so of the weights in memory at a time.
    """
    sizes = describe_model_parts(folder)
    split = split_torch_state_dict_into_shards(sizes, max_shard_size=max_shard_size)
    with weights_written_to(staged):
        for file, names in split.filename_to_tensors.items():
            save_file(read_model_parts(folder, names), staged / file, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (staged / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=2), encoding="utf-8")
    if has_optimizer_parts(folder):
        with tempfile.TemporaryDirectory(dir=staged.parent, ignore_cleanup_errors=True) as scratch:
            state = _whole_optimizer(folder / OPTIMIZER_PARTS_NAME, Path(scratch))
            save_torch(state, staged / OPTIMIZER_NAME)


def parts_from_whole(folder: Path, staged: Path) -> None:
    """Write the weights of a folder as the part of one process, which any number of processes can read.

    Raises:
        ValueError: they are in a pickled file, which cannot be read tensor by tensor.
    """
    files, aliases = whole_files(folder)
    if files[0].suffix != ".safetensors":
        raise ValueError(f"{files[0]} cannot be read tensor by tensor: save the weights as safetensors first.")
    places: dict[str, tuple[Path, str]] = {}
    described: dict[str, torch.Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                places[name], described[name] = (file, name), opened.get_tensor(name).to("meta")
    for alias, saved in aliases.items():
        if saved in places:
            places[alias], described[alias] = places[saved], described[saved]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        writer = FileSystemWriter(staged / MODEL_PARTS_NAME, thread_count=1)
        save({"model": described}, storage_writer=writer, planner=_ReadingPlanner(places), no_dist=True)


class _ReadingPlanner(DefaultSavePlanner):
    """As torch's planner, but each tensor is read when it is written.

    Args:
        places: file of safetensors, and name in it, of each tensor.
    """

    def __init__(self, places: dict[str, tuple[Path, str]]) -> None:
        super().__init__()
        self.places = places

    def lookup_object(self, index: Any) -> Any:
        """Return a tensor of the state."""
        file, name = self.places[index.fqn.removeprefix("model.")]
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(name)


def _whole_optimizer(path: Path, scratch: Path) -> dict[str, Any]:
    """Return the state of an optimizer with numbers in the place of the names of its parameters.

    Raises:
        ValueError: there are states of parameters that its groups do not name.
    """
    table = read_table(path).state_dict_metadata
    state = {name: _empty(kind, scratch) if hasattr(kind, "size") else None for name, kind in table.items()}
    read_parts(state, path)
    groups: dict[int, dict[str, Any]] = {}
    states: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        if name.startswith(_GROUPS):
            number, _, key = name.removeprefix(_GROUPS).partition(".")
            groups.setdefault(int(number), {})[key] = value
        else:
            parameter, _, key = name.removeprefix(_STATE).rpartition(".")
            states.setdefault(parameter, {})[key] = value
    ordered = [groups[number] for number in sorted(groups)]
    names = [name for group in ordered for name in group["params"]]
    if unknown := states.keys() - set(names):
        raise ValueError(f"{path} has states of {', '.join(sorted(unknown)[:3])}, which no group of parameters names.")
    numbers = {name: number for number, name in enumerate(names)}
    for group in ordered:
        group["params"] = [numbers[name] for name in group["params"]]
    return {"state": {numbers[name]: value for name, value in states.items()}, "param_groups": ordered}


def _empty(kind: Any, scratch: Path) -> torch.Tensor:
    """Return a tensor to be filled, a large one in the memory of a file."""
    dtype, count = kind.properties.dtype, math.prod(kind.size)
    if count * dtype.itemsize < _LARGE:
        return torch.empty(kind.size, dtype=dtype, device="cpu")
    file = scratch / str(len(list(scratch.iterdir())))
    return torch.from_file(str(file), shared=True, size=count, dtype=dtype).view(kind.size)
