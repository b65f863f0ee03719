"""What processes give to each other, and what each takes of what all have."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def all_gather(leaf: Any) -> Any:
    """A tensor of all processes, joined along its first dimension; other things as a list."""
    if not isinstance(leaf, torch.Tensor):
        everything: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everything, leaf)
        return everything
    leaf = torch.atleast_1d(leaf).contiguous()
    parts = [torch.empty_like(leaf) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, leaf)
    return torch.cat(parts)


def pad_to_longest(leaf: torch.Tensor, dim: int, pad_index: int, pad_first: bool) -> torch.Tensor:
    """A tensor as long along `dim` as the longest of all processes.

    Raises:
        TypeError: it is no tensor.
    """
    if not isinstance(leaf, torch.Tensor):
        raise TypeError(
            f"There is a {type(leaf).__name__} among predictions and labels, and several processes exchange tensors. "
            "Set eval_use_gather_object=True to have everything pickled, or return tensors alone."
        )
    if dim >= leaf.dim():
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
    """A contiguous share of a list, tuple, tensor, or dict of them; with `pad` as long as the longest one."""
    if isinstance(inputs, dict):
        return {key: share_of_inputs(value, index, processes, pad) for key, value in inputs.items()}
    each, extra = divmod(len(inputs), processes)
    start = index * each + min(index, extra)
    share = inputs[start : start + each + (index < extra)]
    longest = each + (extra > 0)
    if not pad or len(share) == longest or not len(inputs):
        return share
    last = inputs[-1:]
    return torch.cat((share, last)) if isinstance(inputs, torch.Tensor) else share + last
