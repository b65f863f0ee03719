"""Check models and prepare batches for sharding sequences over ranks.

Positions are numbered and labels are shifted before sequences are sharded, because the next token
may be on another rank.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from ..models.pretrained import is_pretrained
from ..models.wrappers import base_of_adapter

IGNORED = -100
"""Label of positions that are not targets."""


def model_problems(model: nn.Module, *, head_shards: int = 1) -> list[str]:
    """Return the reasons why a model cannot be trained on sharded sequences; empty if it can.

    Args:
        model: the model to train.
        head_shards: number of ranks over which attention heads are sharded.
    """
    base = base_of_adapter(model)
    kind = type(base).__name__
    config = getattr(base, "config", None)
    text_config = config
    # A multimodal configuration contains one for the text model.
    if config is not None and hasattr(config, "get_text_config"):
        text_config = config.get_text_config()

    problems: list[str] = []
    # Only `scaled_dot_product_attention` is replaced, see `replaced_attention`.
    attention = getattr(config, "_attn_implementation", None)
    if attention not in (None, "sdpa"):
        problems.append(
            f"{kind} has attn_implementation={attention!r}. Load it with attn_implementation='sdpa'"
        )
    if getattr(config, "is_encoder_decoder", False):
        problems.append(f"{kind} has an encoder, but only causal attention is supported")
    unsupported = _unsupported_attention(text_config)
    if unsupported:
        problems.append(
            f"{kind} has layers with {', '.join(unsupported)}, but only full causal attention is "
            "supported"
        )
    heads = getattr(text_config, "num_attention_heads", None)
    if isinstance(heads, int) and heads % head_shards:
        problems.append(
            f"{kind} has {heads} attention heads, which {head_shards} processes cannot share evenly"
        )
    return problems + _missing_parameters(base, kind)


def _unsupported_attention(config: object) -> list[str]:
    """Return the attention types of a configuration other than full attention."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return sorted(set(kinds) - {"full_attention"})
    window = getattr(config, "sliding_window", None)
    if window is None:
        return []
    return [f"sliding_window={window}"]


def _missing_parameters(model: nn.Module, kind: str) -> list[str]:
    """Return problems for missing parameters of `forward`, without which a shard would be treated
    as the full sequence.
    """
    parameters = inspect.signature(model.forward).parameters
    # Models of other libraries may ignore their **kwargs.
    has_kwargs = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if has_kwargs and is_pretrained(model):
        return []

    problems: list[str] = []
    if "position_ids" not in parameters:
        problems.append(
            f"{kind}.forward has no parameter 'position_ids', the position of each token in the "
            "full sequence"
        )
    if "shift_labels" not in parameters:
        problems.append(
            f"{kind}.forward has no parameter 'shift_labels', the label of each next token; "
            "shifting labels in the model is wrong at the ends of shards"
        )
    return problems


def prepare_inputs(
    inputs: Mapping[str, Any], *, size: int, full_mask: bool = False
) -> dict[str, Any]:
    """Prepare the inputs of a model for sharding. The original inputs are not modified.

    Labels are shifted, positions are numbered, and sequences are padded on the right to a multiple
    of twice `size`. Padding is ignored in the loss, and no token attends to it because attention is
    causal.

    Args:
        inputs: keyword arguments of a causal language model, of shape (batch, sequence, ...).
        size: number of ranks that share a sequence.
        full_mask: add an attention mask of ones, which models of transformers would otherwise
            infer.

    Returns:
        New inputs. The tensors named by `split_names` may be resized in place.

    Raises:
        ValueError: an input is missing or cannot be split. The message names it and the reason.
    """
    ready = dict(inputs)
    shape = _shape(ready)
    length = shape[1]

    # Attention is causal, so no token attends to right padding, and the mask can be dropped.
    unmasked = _right_padding(ready.pop("attention_mask", None), shape)
    labels = _shifted_labels(ready, shape)
    if unmasked is not None and bool(labels[~unmasked].ne(IGNORED).any()):
        raise _input_error("labels must be -100 where attention_mask is 0")
    ready["shift_labels"] = labels
    ready["position_ids"] = _positions(ready, unmasked, shape)

    # Copy or pad, because the tensors are resized in place later. Pad to a multiple of twice the
    # size, because in a ring each rank gets a chunk of the beginning and one of the end, which
    # balances the work of causal attention.
    padding_length = -length % (2 * size)
    for name, tensor in ready.items():
        if not _is_split(tensor, length):
            continue
        if padding_length == 0:
            ready[name] = tensor.clone()
            continue
        padding = [0, 0] * (tensor.ndim - 2) + [0, padding_length]
        is_label = name in ("labels", "shift_labels")
        ready[name] = pad(tensor, padding, value=IGNORED if is_label else 0)
    if full_mask:
        ready["attention_mask"] = torch.ones_like(ready["position_ids"])
    return ready


def split_names(inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of inputs whose second dimension is the sequence.

    Args:
        inputs: the result of `prepare_inputs`.
    """
    length = inputs["shift_labels"].shape[1]
    return [name for name, tensor in inputs.items() if _is_split(tensor, length)]


def _is_split(value: object, length: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim >= 2 and value.shape[1] == length


def _shape(inputs: Mapping[str, object]) -> tuple[int, int]:
    """Return the batch size and the sequence length."""
    for name in ("input_ids", "inputs_embeds"):
        tensor = inputs.get(name)
        if isinstance(tensor, torch.Tensor) and tensor.ndim >= 2:
            return tensor.shape[0], tensor.shape[1]
    present = ", ".join(inputs) or "nothing"
    raise _input_error(f"the batch needs input_ids of shape (batch, positions), but has: {present}")


def _right_padding(mask: torch.Tensor | None, shape: tuple[int, int]) -> torch.Tensor | None:
    """Return the mask as bool, True for tokens. Raise unless it only masks right padding."""
    if mask is None:
        return None
    if tuple(mask.shape) != shape:
        raise _input_error(
            f"attention_mask of shape {tuple(mask.shape)} cannot be split; leave it out"
        )
    unmasked = mask.bool()

    # A position is unmasked after a masked one.
    if bool((unmasked[:, 1:] > unmasked[:, :-1]).any()):
        raise _input_error(
            "attention_mask masks positions before others. Pad on the right (padding_side='right')"
        )
    return unmasked


def _shifted_labels(inputs: Mapping[str, Any], shape: tuple[int, int]) -> torch.Tensor:
    """Return the labels, shifted so that each position has the label of the next token."""
    shifted = inputs.get("shift_labels")
    labels = inputs.get("labels")
    if shifted is None and labels is None:
        raise _input_error(
            "the batch needs labels or shift_labels, because only causal language models are "
            "supported"
        )

    name = "labels" if shifted is None else "shift_labels"
    if tuple(inputs[name].shape) != shape:
        label_shape = tuple(inputs[name].shape)
        raise _input_error(
            f"{name} of shape {label_shape} should have the shape of the input, {shape}"
        )
    if shifted is None:
        # The last position has no next token.
        return pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
    return shifted


def _positions(
    inputs: Mapping[str, Any], unmasked: torch.Tensor | None, shape: tuple[int, int]
) -> torch.Tensor:
    """Return the position ids."""
    positions = inputs.get("position_ids")
    if positions is None:
        return torch.arange(shape[1], device=inputs["shift_labels"].device).expand(shape)
    if positions.ndim != 2 or positions.shape[1] != shape[1]:
        raise _input_error(
            f"position_ids of shape {tuple(positions.shape)} should have the shape of the input, "
            f"{shape}"
        )

    # Position ids of padding are ignored.
    positions = positions.expand(shape)
    jumps = positions.diff(dim=1).ne(1)
    if unmasked is not None:
        jumps &= unmasked[:, 1:]
    if bool(jumps.any()):
        raise _input_error(
            "position_ids restart or skip numbers. Give each sequence a separate row"
        )
    return positions


def _input_error(why: str) -> ValueError:
    return ValueError(
        f"parallelism_config: cp_size or sp_size above 1 splits sequences over processes: {why}."
    )
