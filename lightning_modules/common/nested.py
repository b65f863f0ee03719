"""Nested lists, tuples and mappings of tensors, such as batches, model outputs and states."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch


def find_batch_size(tensors: Any) -> int | None:
    """As `transformers.trainer_pt_utils.find_batch_size`: length of the first tensor or array in
    a nested structure.
    """
    if isinstance(tensors, (torch.Tensor, np.ndarray)):
        return tensors.shape[0] if tensors.ndim else None
    if isinstance(tensors, Mapping):
        tensors = list(tensors.values())
    if isinstance(tensors, (list, tuple)):
        return next((size for part in tensors if (size := find_batch_size(part)) is not None), None)
    return None


def mapping_like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return the items in a mapping of the class of `original`, which has to accept a mapping as
    dict does.
    """
    kind: Any = type(original)
    if isinstance(original, defaultdict):
        return kind(original.default_factory, items)
    made = kind(items)
    # A state dict carries the versions of its modules. Only for its class, as compiled models call
    # this with others.
    if kind is OrderedDict:
        vars(made).update(vars(original))
    return made


def sequence_like(original: Any, parts: Iterable[Any]) -> Any:
    """Return the parts in a list or (named) tuple of the class of `original`."""
    kind: Any = type(original)
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def leaves(value: Any) -> Iterator[Any]:
    """Yield every leaf of nested lists, tuples and mappings."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value


_LEAVES = (torch.Tensor, int, float, str, bool, type(None))


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to every leaf of nested lists, tuples (named ones too) and mappings."""
    if type(value) in _LEAVES:  # faster to check than a mapping
        return function(value)
    if type(value) is tuple:
        return tuple([map_nested(function, part) for part in value])
    if isinstance(value, (list, tuple)):
        return sequence_like(value, [map_nested(function, part) for part in value])
    if isinstance(value, Mapping):
        return mapping_like(value, {key: map_nested(function, part) for key, part in value.items()})
    return function(value)


def to_device(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    """Move a batch to a device: its tensors, however nested, and other objects with a method `to`,
    such as graphs.

    Args:
        batch: any batch.
        device: where to.
        non_blocking: do not wait for the copies; those of tensors in pinned memory are never waited
            for.
    """

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            is_pinned = leaf.device.type == "cpu" and leaf.is_pinned()
            return leaf.to(device, non_blocking=non_blocking or is_pinned)
        if hasattr(leaf, "to"):
            return leaf.to(device)
        return leaf

    return map_nested(moved, batch)


def nested_detach(tensors: Any) -> Any:
    """As `transformers.trainer_pt_utils.nested_detach`."""
    if type(tensors) is torch.Tensor:
        return tensors.detach() if tensors.requires_grad else tensors
    return map_nested(_detached, tensors)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf


def nested_numpify(tensors: Any) -> Any:
    """As `transformers.trainer_pt_utils.nested_numpify`: tensors become arrays; bfloat16,
    unknown to numpy, float32.
    """
    return map_nested(to_numpy, tensors)


def to_numpy(leaf: Any) -> Any:
    """Return a tensor as an array, bfloat16 as float32; return other values unchanged."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach() if leaf.requires_grad else leaf
    leaf = leaf if leaf.is_cpu else leaf.cpu()
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
