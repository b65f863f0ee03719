"""Handle tied weights: several names in a state dict, only one in a safetensors file."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..models.wrappers import own_attribute


class StateDictOwner(Protocol):
    """A module, or a `FullModel`, which presents a sharded module as an unsharded one."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the tensors by name."""
        ...


def require_tensors(state_dict: Mapping[str, object]) -> None:
    """Check that a state dict can be saved.

    Raises:
        TypeError: an entry is not a tensor. The message names it.
    """
    for name, value in state_dict.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the state dict holds a {type(value).__name__} under {name!r}, but only tensors "
                "are saved: leave it out of `state_dict`, or make it a tensor"
            )


def separate_tied_weights(
    state_dict: Mapping[str, Any],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Prepare a state dict for safetensors, which rejects tensors that share memory.

    If several names refer to the same tensor, only the first is kept. Different views of the same
    memory (overlapping slices, a transpose) are copied.

    Returns:
        Contiguous tensors that do not share memory, and for each removed name the name under which
        its tensor is kept.

    Raises:
        TypeError: an entry is not a tensor.
    """
    require_tensors(state_dict)
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[Hashable, str] = {}
    storages: set[Hashable] = set()
    for name, value in state_dict.items():
        tensor = value.detach()
        key = tensor_key(tensor)
        if key in names:
            aliases[name] = names[key]
            continue
        if key is None:
            tensors[name] = tensor.contiguous()
            continue

        # Keep the tensor if it is contiguous and is the only one in its storage; otherwise copy it.
        names[key] = name
        storage = tensor.untyped_storage()
        storage_key = (tensor.device, storage.data_ptr())
        fills_storage = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
        if fills_storage and storage_key not in storages:
            storages.add(storage_key)
            tensors[name] = tensor
        else:
            tensors[name] = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return tensors, aliases


def required_missing(model: StateDictOwner, missing: Iterable[str]) -> tuple[str, ...]:
    """Return the missing names that a file should contain."""
    missing = dict.fromkeys(missing)
    # Return early, because `state_dict()` of a sharded model may gather the weights.
    if not missing:
        return ()
    keys: dict[str, Hashable] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            keys[name] = tensor_key(value)

    # Skip tensors that were loaded under another name. Tensors without memory have no key.
    loaded = {key for name, key in keys.items() if name not in missing and key is not None}
    not_required = {name for name, key in keys.items() if key in loaded}

    # Skip names that models of `transformers` declare as not saved or optional.
    not_required.update(own_attribute(model, "_keys_to_ignore_on_save") or ())
    patterns: Iterable[str] = own_attribute(model, "_keys_to_ignore_on_load_missing") or ()
    optional = [re.compile(pattern) for pattern in patterns]

    required: list[str] = []
    for name in missing:
        is_optional = any(pattern.search(name) for pattern in optional)
        if name not in not_required and not is_optional:
            required.append(name)
    return tuple(required)


def tensor_key(tensor: Tensor) -> Hashable:
    """Return a key that is equal for all names of the same tensor.

    Returns None for a tensor without memory.
    """
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:
        # A tensor subclass without a storage of its own.
        return None
    if tensor.is_meta:
        # A meta tensor has no memory either, but tied ones are the same object.
        return id(tensor)
    if pointer == 0 or tensor.numel() == 0:
        return None
    return tensor.device, pointer, tensor.dtype, tensor.shape, tensor.stride()
