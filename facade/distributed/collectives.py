"""Gather, broadcast and pad values across ranks, and split inputs between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

Value = TypeVar("Value")


def require_tensor(leaf: object) -> torch.Tensor:
    """Return a leaf that collectives can exchange.

    Raises:
        TypeError: it is not a tensor.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf
    raise TypeError(
        f"Processes exchange tensors, but this is a {type(leaf).__name__}: {leaf!r:.60}. Convert "
        "it to a tensor, or pass use_gather_object=True (the argument eval_use_gather_object)."
    )


def has_only_tensors(value: object) -> bool:
    """Return True if all leaves of nested lists, tuples and mappings are tensors."""
    if isinstance(value, Mapping):
        return all(has_only_tensors(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return all(has_only_tensors(part) for part in value)
    return isinstance(value, torch.Tensor)


def all_gather(leaf: object, every: int = 1) -> torch.Tensor:
    """Concatenate the tensors of all ranks, or of every n-th rank, along the first dimension.

    Args:
        leaf: tensor of this rank, with the same shape on all ranks.
        every: use only every n-th rank; 2 skips ranks 1, 3, ...

    Raises:
        TypeError: it is not a tensor.
    """
    tensor = torch.atleast_1d(require_tensor(leaf)).contiguous()
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    # All ranks must take part in the collective, even those that are skipped.
    dist.all_gather(tensors, tensor)
    return torch.cat(tensors[::every])


def broadcast_from_rank_zero(value: Value, processes: int) -> Value:
    """Broadcast a picklable value from rank 0.

    Args:
        value: the value of this rank.
        processes: the world size; nothing is exchanged if it is 1.
    """
    if processes == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def pad_to_longest(leaf: object, dim: int, pad_index: int, pad_first: bool) -> torch.Tensor:
    """Pad a tensor along `dim` to the longest of all ranks.

    Args:
        leaf: tensor of this rank. One that lacks the dimension is returned unchanged.
        dim: the dimension, from the end if negative.
        pad_index: value of the padding.
        pad_first: pad at the start of the dimension.

    Raises:
        TypeError: it is not a tensor.
    """
    tensor = require_tensor(leaf)
    if not -tensor.dim() <= dim < tensor.dim() or tensor.is_nested:
        return tensor

    # All ranks must call the collective, even the one with the longest tensor.
    longest = _largest_of_all(tensor.shape[dim], tensor.device)
    return _padded_to(tensor, longest, dim, pad_index, pad_first)


def pad_rows(leaf: object, samples: int | None) -> torch.Tensor:
    """Pad a result whose rows are not samples to the largest number of rows of all ranks.

    For example, the router logits of a mixture of experts have a row for each token.

    Args:
        leaf: tensor of this rank.
        samples: samples of the batch; a result of as many rows in all ranks is unchanged.

    Raises:
        TypeError: it is not a tensor.
    """
    tensor = require_tensor(leaf)
    if tensor.dim() == 0 or tensor.is_nested:
        return tensor
    other_rows = tensor.shape[0]
    if other_rows == samples:
        other_rows = 0
    longest = max(_largest_of_all(other_rows, tensor.device), tensor.shape[0])
    return _padded_to(tensor, longest, dim=0, pad_index=-100, pad_first=False)


def _largest_of_all(number: int, device: torch.device) -> int:
    largest = torch.tensor(number, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def _padded_to(
    tensor: torch.Tensor, length: int, dim: int, pad_index: int, pad_first: bool
) -> torch.Tensor:
    """Pad a tensor along a dimension to a length."""
    padding_length = length - tensor.shape[dim]
    if padding_length == 0:
        return tensor

    shape = list(tensor.shape)
    shape[dim] = padding_length
    padding = tensor.new_full(shape, pad_index)
    if pad_first:
        return torch.cat((padding, tensor), dim=dim)
    return torch.cat((tensor, padding), dim=dim)


def share_of_inputs(inputs: Any, index: int, processes: int, pad: bool) -> Any:
    """Return the contiguous share of data, or of each value of a dict, for a rank.

    Args:
        inputs: list, tuple, tensor, array or `Dataset`. Values of other types, such as text, are
            returned unchanged.
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
            raise ValueError(f"The values of the dict must be equally long, but have {lengths}.")
        shares: dict[Any, Any] = {}
        for key, value in inputs.items():
            shares[key] = share_of_inputs(value, index, processes, pad)
        return shares

    # The first ranks get one item more, if the items cannot be divided evenly.
    items_per_rank, remainder = divmod(len(inputs), processes)
    start = index * items_per_rank + min(index, remainder)
    end = start + items_per_rank + (index < remainder)
    indices = list(range(start, end))

    # The last item is repeated, on ranks without items too.
    longest_share = items_per_rank + (remainder > 0)
    if pad and len(inputs):
        indices += [len(inputs) - 1] * (longest_share - len(indices))

    if isinstance(inputs, tuple):
        return tuple(inputs[item_index] for item_index in indices)
    if isinstance(inputs, list):
        return [inputs[item_index] for item_index in indices]
    if isinstance(inputs, (torch.Tensor, np.ndarray)):
        return inputs[indices]

    # A `datasets.Dataset`.
    if hasattr(inputs, "select"):
        return inputs.select(indices)
    return inputs
