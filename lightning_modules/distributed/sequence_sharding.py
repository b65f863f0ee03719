"""Check models and prepare batches for sharding sequences over processes.

Before sequences are sharded, labels are shifted, as the next token may be in another process, and positions numbered.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from ..models.inspection import base_of_adapter, is_pretrained

IGNORED = -100
"""Label of positions that are no targets."""

_WITH_LENGTH = ("input_ids", "inputs_embeds")
_FILL = {"labels": IGNORED, "shift_labels": IGNORED}


def model_faults(model: nn.Module, *, heads_over: int = 1) -> list[str]:
    """Return the reasons why a model cannot be trained on sharded sequences; none if no obstacle is found.

    Args:
        model: the model to train.
        heads_over: processes over which the heads of attention are sharded.
    """
    base = base_of_adapter(model)
    config, kind = getattr(base, "config", None), type(base).__name__
    text = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    attention = getattr(config, "_attn_implementation", None)
    faults = []
    if attention not in (None, "sdpa"):
        faults.append(f"{kind} has attn_implementation={attention!r}. Load it with attn_implementation='sdpa'")
    if getattr(config, "is_encoder_decoder", False):
        faults.append(f"{kind} has an encoder, and only causal attention is split")
    if others := _other_layers(text):
        faults.append(f"{kind} has layers with {', '.join(others)}, and only full causal attention is split")
    heads = getattr(text, "num_attention_heads", None)
    if isinstance(heads, int) and heads % heads_over:
        faults.append(f"{kind} has {heads} heads of attention, which cannot be shared by {heads_over} processes")
    return faults + _missing_parameters(base, kind)


def _other_layers(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return sorted(set(kinds) - {"full_attention"})
    window = getattr(config, "sliding_window", None)
    return [] if window is None else [f"sliding_window={window}"]


def _missing_parameters(model: Any, kind: str) -> list[str]:
    """Return the parameters without which a model would treat a shard as the whole sequence."""
    parameters = inspect.signature(model.forward).parameters
    # Other models may drop their **kwargs.
    takes_all = is_pretrained(model) and any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    why = {
        "position_ids": "where in the whole sequence each token is",
        "shift_labels": "the next tokens, of which some are in other processes; labels shifted in the model are wrong",
    }
    return [
        f"{kind}.forward has no parameter {name!r}: {reason}"
        for name, reason in why.items()
        if name not in parameters and not takes_all
    ]


def ready_to_split(inputs: Mapping[str, Any], *, size: int, whole_mask: bool = False) -> dict[str, Any]:
    """Return the inputs of a model ready to be sharded; the given ones are not changed.

    Labels are shifted, positions numbered, and sequences padded on the right to a multiple of twice `size`, with
    positions that are no targets; attention is causal, so that no token sees the padding.

    Args:
        inputs: keyword arguments of a causal language model, of shape (batch, positions, ...).
        size: how many processes share a sequence.
        whole_mask: give an attention mask that hides nothing: models of transformers guess one if there is none.

    Returns:
        New inputs; tensors that can be resized are those of `split_names`.

    Raises:
        ValueError: names the input that is missing, or cannot be split, and says why.
    """
    ready = dict(inputs)
    rows, length = _shape(ready)
    shown = _right_padding(ready.pop("attention_mask", None), rows, length)
    ready["shift_labels"] = _shifted(ready, (rows, length))
    if shown is not None and bool(ready["shift_labels"].where(~shown, IGNORED).ne(IGNORED).any()):
        raise _refusal("labels at positions that attention_mask hides have to be -100, as those of padding are")
    ready["position_ids"] = _positions(ready, shown, (rows, length))
    more = -length % (2 * size)
    for name, tensor in ready.items():
        if _is_split(tensor, length):
            room = [0, 0] * (tensor.ndim - 2) + [0, more]
            ready[name] = pad(tensor, room, value=_FILL.get(name, 0)) if more else tensor.clone()
    if whole_mask:
        ready["attention_mask"] = torch.ones_like(ready["position_ids"])
    return ready


def split_names(inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of inputs whose second dimension is the positions, after `ready_to_split`."""
    length = inputs["shift_labels"].shape[1]
    return [name for name, tensor in inputs.items() if _is_split(tensor, length)]


def _is_split(tensor: Any, length: int) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.ndim >= 2 and tensor.shape[1] == length


def _shape(inputs: Mapping[str, Any]) -> tuple[int, int]:
    for name in _WITH_LENGTH:
        if isinstance(tensor := inputs.get(name), torch.Tensor) and tensor.ndim >= 2:
            return tensor.shape[0], tensor.shape[1]
    raise _refusal(f"the batch needs input_ids of shape (batch, positions), and has: {', '.join(inputs) or 'nothing'}")


def _right_padding(mask: Any, rows: int, length: int) -> torch.Tensor | None:
    """Return the mask, True for tokens, if it hides only padding on the right, which no token sees."""
    if mask is None:
        return None
    if tuple(mask.shape) != (rows, length):
        raise _refusal(f"attention_mask of shape {tuple(mask.shape)} cannot be split; leave it out")
    shown = mask.bool()
    if bool((shown[:, 1:] > shown[:, :-1]).any()):
        raise _refusal("attention_mask hides positions before others. Pad on the right (padding_side='right')")
    return shown


def _shifted(inputs: Mapping[str, Any], shape: tuple[int, int]) -> torch.Tensor:
    """Return the label of the next token for each position."""
    for name in ("shift_labels", "labels"):
        labels = inputs.get(name)
        if labels is not None:
            if tuple(labels.shape) != shape:
                raise _refusal(f"{name} of shape {tuple(labels.shape)} should have the shape of the input, {shape}")
            return labels if name == "shift_labels" else pad(labels[:, 1:], (0, 1), value=IGNORED)
    raise _refusal("the batch needs labels, or shift_labels; it is causal language models that are trained in parts")


def _positions(inputs: Mapping[str, Any], shown: torch.Tensor | None, shape: tuple[int, int]) -> torch.Tensor:
    given = inputs.get("position_ids")
    if given is None:
        return torch.arange(shape[1], device=inputs["shift_labels"].device).expand(shape)
    if given.ndim != 2 or given.shape[1] != shape[1]:
        raise _refusal(f"position_ids of shape {tuple(given.shape)} should have the shape of the input, {shape}")
    given = given.expand(shape)
    jumps = given.diff(dim=1).ne(1)
    if bool((jumps if shown is None else jumps & shown[:, 1:]).any()):
        raise _refusal("position_ids begin anew, or skip some. Give each sequence a row of its own")
    return given


def _refusal(why: str) -> ValueError:
    return ValueError(f"parallelism_config: cp_size or sp_size above 1 splits sequences over processes: {why}.")
