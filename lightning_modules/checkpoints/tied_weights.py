"""Tied weights: tensors that a state dict names more than once, but a safetensors file may hold
only once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..models.inspection import own_attribute


def require_tensors(state_dict: Mapping[str, Any]) -> None:
    """Check that a state dict can be saved.

    Raises:
        TypeError: it holds something that is not a tensor; names it.
    """
    for name, value in state_dict.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the state dict holds a {type(value).__name__} under {name!r}, but only tensors "
                "are saved: leave it out in `state_dict`, or make it a tensor"
            )


def separate_tied_weights(
    state_dict: Mapping[str, Any],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `safetensors.torch.save_model` prepares a state dict, but no kind of sharing is refused.

    Of several names for the very same tensor the first in the state dict stays. Different views of
    the same memory (overlapping slices, a transpose) are all kept, as copies.

    Returns:
        contiguous tensors no two of which share memory, and for each name left out the name that
        stands for it.

    Raises:
        TypeError: the state dict holds something that is not a tensor.
    """
    require_tensors(state_dict)
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[Any, str] = {}
    storages: set[Any] = set()
    for name, value in state_dict.items():
        tensor = value.detach()
        key = tensor_key(tensor)
        if key in names:
            aliases[name] = names[key]
            continue
        if key is None:
            tensors[name] = tensor.contiguous()
            continue

        # The tensor itself if it is contiguous and all of a memory that no other one shares; else a
        # copy.
        names[key] = name
        storage = tensor.untyped_storage()
        place = (tensor.device, storage.data_ptr())
        if tensor.is_contiguous() and storage.nbytes() == tensor.nbytes and place not in storages:
            storages.add(place)
            tensors[name] = tensor
        else:
            tensors[name] = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return tensors, aliases


def required_missing(model: nn.Module, missing: Iterable[str]) -> tuple[str, ...]:
    """Return the missing names that were not loaded through a tied name and that belong in a
    file.
    """
    missing = dict.fromkeys(missing)
    if not missing:  # the state dict of a model that is sharded may be gathered
        return ()
    tensors = {
        name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)
    }
    filled = {tensor_key(tensor) for name, tensor in tensors.items() if name not in missing} - {
        None
    }
    # Models of `transformers` list the names that they do not save, and patterns of those that
    # files may lack.
    left_out: set[str] = set(own_attribute(model, "_keys_to_ignore_on_save") or ())
    left_out.update(name for name, tensor in tensors.items() if tensor_key(tensor) in filled)
    optional = [
        re.compile(pattern)
        for pattern in own_attribute(model, "_keys_to_ignore_on_load_missing") or ()
    ]
    return tuple(
        name
        for name in missing
        if name not in left_out and not any(pattern.search(name) for pattern in optional)
    )


def tensor_key(tensor: Tensor) -> Any:
    """Return a key that is equal for two names of the same tensor; None for a tensor without
    memory.
    """
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:  # a tensor subclass without memory of its own
        return None
    if tensor.is_meta:  # has no memory; state dicts that keep the objects still show ties
        return id(tensor)
    if pointer == 0 or tensor.numel() == 0:
        return None
    return tensor.device, pointer, tensor.dtype, tensor.shape, tensor.stride()
