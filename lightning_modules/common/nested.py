"""Traverse nested lists, tuples and mappings, such as batches, model outputs and states."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch


def find_batch_size(tensors: Any) -> int | None:
    """Return the length of the first tensor or array in nested lists, tuples and mappings.

    Works like `transformers.trainer_pt_utils.find_batch_size`.

    Args:
        tensors: a batch, or a part of one.

    Returns:
        The size of its first dimension, or None if there is no such tensor.
    """
    if isinstance(tensors, (torch.Tensor, np.ndarray)):
        if tensors.ndim == 0:
            return None
        return tensors.shape[0]
    if isinstance(tensors, Mapping):
        tensors = list(tensors.values())
    if isinstance(tensors, (list, tuple)):
        for part in tensors:
            size = find_batch_size(part)
            if size is not None:
                return size
    return None


def count_rows(batch: Any) -> int | None:
    """Return the number of rows of a batch.

    This is the length of the first tensor among the fields of the batch. Without tensors, it is the
    length of the first list, because collators keep strings and documents of different lengths in
    lists.

    Args:
        batch: a batch of a loader.

    Returns:
        The number of rows, or None if it is unknown.
    """
    if isinstance(batch, Mapping):
        fields = list(batch.values())
        for field in fields:
            if isinstance(field, (torch.Tensor, np.ndarray)) and field.ndim > 0:
                return len(field)
        for field in fields:
            if isinstance(field, list) and find_batch_size(field) is None:
                return len(field)
    return find_batch_size(batch)


def mapping_like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the same class as `original` with other items.

    The class must accept a mapping, as dict does.
    """
    mapping_class: Any = type(original)
    if isinstance(original, defaultdict):
        return mapping_class(original.default_factory, items)
    mapping = mapping_class(items)

    # Keep the module versions that a state dict has as attributes.
    if mapping_class is OrderedDict:
        vars(mapping).update(vars(original))
    return mapping


def sequence_like(original: object, parts: Iterable[Any]) -> Any:
    """Return a list or (named) tuple of the same class as `original` with other items."""
    sequence_class: Any = type(original)
    if hasattr(sequence_class, "_fields"):
        return sequence_class(*parts)
    return sequence_class(parts)


def leaves(value: object) -> Iterator[Any]:
    """Yield every leaf of nested lists, tuples and mappings."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value


_LEAVES = (torch.Tensor, int, float, str, bool, type(None))


def map_nested(function: Callable[[Any], object], value: object) -> Any:
    """Apply `function` to every leaf of nested lists, tuples (named ones too) and mappings."""
    # Check common leaves first, because checking for a mapping is slower.
    if type(value) in _LEAVES:
        return function(value)
    if isinstance(value, (list, tuple)):
        parts = [map_nested(function, part) for part in value]
        if type(value) is tuple:
            return tuple(parts)
        return sequence_like(value, parts)
    if isinstance(value, Mapping):
        items = {key: map_nested(function, part) for key, part in value.items()}
        return mapping_like(value, items)
    return function(value)


def to_device(batch: object, device: torch.device, non_blocking: bool) -> Any:
    """Move a batch to a device.

    Moves nested tensors, and other objects with a method `to`, such as graphs.

    Args:
        batch: any batch.
        device: the device to move it to.
        non_blocking: copy asynchronously. Tensors in pinned memory are always copied
            asynchronously.
    """

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            is_pinned = leaf.device.type == "cpu" and leaf.is_pinned()
            return leaf.to(device, non_blocking=non_blocking or is_pinned)
        if hasattr(leaf, "to"):
            return leaf.to(device)
        return leaf

    return map_nested(moved, batch)


def nested_detach(tensors: object) -> Any:
    """Detach all tensors in nested lists, tuples and mappings from their graph.

    Works like `transformers.trainer_pt_utils.nested_detach`.

    Args:
        tensors: tensors, or a structure of them; other values stay as they are.

    Returns:
        The same structure.
    """
    return map_nested(_detached, tensors)


def _detached(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
        return leaf.detach()
    return leaf


def nested_numpify(tensors: object) -> Any:
    """Convert all tensors in nested lists, tuples and mappings to arrays, on the CPU.

    Works like `transformers.trainer_pt_utils.nested_numpify`. NumPy has no bfloat16, which becomes
    float32.

    Args:
        tensors: tensors, or a structure of them; other values stay as they are.

    Returns:
        The same structure.
    """
    return map_nested(to_numpy, tensors)


def to_numpy(leaf: object) -> Any:
    """Convert a tensor to an array, bfloat16 to float32. Other values are returned unchanged."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensor: torch.Tensor = leaf
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.numpy()
