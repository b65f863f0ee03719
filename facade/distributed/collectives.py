"""Gather, broadcast and pad values across ranks, and split inputs between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

Value = TypeVar("Value")


def require_tensor(leaf: Any) -> torch.Tensor:
    """Return a leaf that collectives can exchange.

    Raises:
        TypeError: it is not a tensor.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf
    raise TypeError(
        f"There is a {type(leaf).__name__} ({leaf!r:.60}), and processes exchange tensors. Make it "
        "one, or use use_gather_object=True (in the arguments eval_use_gather_object)."
    )


def has_only_tensors(value: Any) -> bool:
    """Return True if all leaves of nested lists, tuples and mappings are tensors."""
    if isinstance(value, Mapping):
        return all(has_only_tensors(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return all(has_only_tensors(part) for part in value)
    return isinstance(value, torch.Tensor)


def all_gather(leaf: Any, every: int = 1) -> torch.Tensor:
    """Concatenate the tensors of all ranks, or of every `every`-th, along their first dimension.

    Raises:
        TypeError: it is no tensor.
    """
    leaf = torch.atleast_1d(require_tensor(leaf)).contiguous()
    parts = [torch.empty_like(leaf) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, leaf)
    return torch.cat(parts[::every])


def broadcast_from_rank_zero(value: Value, processes: int) -> Value:
    """Broadcast a picklable value from rank 0.

    Args:
        value: of this rank.
        processes: the world size; nothing is exchanged if it is 1.
    """
    if processes == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def pad_to_longest(leaf: Any, dim: int, pad_index: int, pad_first: bool) -> torch.Tensor:
    """Pad a tensor along `dim` to the longest of all ranks.

    Raises:
        TypeError: it is no tensor.
    """
    leaf = require_tensor(leaf)
    if not -leaf.dim() <= dim < leaf.dim() or leaf.is_nested:
        return leaf
    length = torch.tensor(leaf.shape[dim], device=leaf.device)
    dist.all_reduce(length, op=dist.ReduceOp.MAX)
    missing = int(length) - leaf.shape[dim]
    if missing == 0:
        return leaf
    shape = list(leaf.shape)
    shape[dim] = missing
    padding = leaf.new_full(shape, pad_index)
    return torch.cat((padding, leaf) if pad_first else (leaf, padding), dim=dim)


def share_of_inputs(inputs: Any, index: int, processes: int, pad: bool) -> Any:
    """Return a rank's contiguous share of a list, tuple, tensor, array or `Dataset`, or of each
    value of a dict.

    Args:
        inputs: values of other types, such as text, are returned unchanged.
        index: the rank.
        processes: the world size; a single rank gets all.
        pad: repeat the last item up to the length of the longest share.

    Raises:
        ValueError: the values of a dict are not equally long.
    """
    if processes == 1:
        return inputs
    if isinstance(inputs, dict):
        lengths = {key: len(value) for key, value in inputs.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"The values of the dict differ in length: {lengths}.")
        return {key: share_of_inputs(value, index, processes, pad) for key, value in inputs.items()}

    # The first ranks get one item more, where the ranks do not divide them.
    each, extra = divmod(len(inputs), processes)
    start = index * each + min(index, extra)
    places = list(range(start, start + each + (index < extra)))
    longest = each + (extra > 0)
    if pad and len(inputs):
        places += [len(inputs) - 1] * (longest - len(places))

    if isinstance(inputs, tuple):
        return tuple(inputs[place] for place in places)
    if isinstance(inputs, list):
        return [inputs[place] for place in places]
    if isinstance(inputs, (torch.Tensor, np.ndarray)):
        return inputs[places]
    if hasattr(inputs, "select"):
        return inputs.select(places)
    return inputs
