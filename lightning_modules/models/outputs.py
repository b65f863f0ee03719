"""Read the loss and the predictions from the outputs of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

CACHES = ("past_key_values", "cache")
"""Names of the cache in outputs, which is not a prediction. transformers renamed it in 5.24."""
_ADVICE = (
    "Most models compute one only when they are given `labels`. Otherwise override "
    "`compute_loss`, or pass `compute_loss_func`."
)


def read_loss(
    outputs: Any,
    inputs: Mapping[str, object] | str | None = None,
    advice: str | Callable[[], str] = _ADVICE,
    *,
    first_of_vector: bool = False,
) -> torch.Tensor:
    """Return the loss in the outputs of a model.

    Works like the reference, which does not accept objects with an attribute `loss`.

    Args:
        outputs: the outputs of the model: a mapping with `loss`, a tuple or list that starts with
            the loss, an object with an attribute `loss`, or the loss itself.
        inputs: the inputs of the model, or a description of them, for the error message.
        advice: advice for the error message, or a function that returns it.
        first_of_vector: treat a one-dimensional tensor as a list that starts with the loss, as the
            reference does.

    Raises:
        ValueError: the outputs have no loss.
        TypeError: the loss is not a tensor.
    """
    loss = find_loss(outputs)
    is_vector = isinstance(outputs, torch.Tensor) and outputs.dim() == 1 and len(outputs) > 0
    if first_of_vector and is_vector:
        loss = outputs[0]
    if loss is None:
        if not isinstance(advice, str):
            advice = advice()
        raise ValueError(_no_loss_message(outputs, inputs, advice))
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"The loss of the model is a {type(loss).__name__} ({loss!r:.80}): it has to be a "
            "torch.Tensor."
        )
    return loss


def additional_losses(outputs: object) -> dict[str, torch.Tensor]:
    """Return additional losses by name: scalar outputs named `*_loss`, and those in `loss_dict`."""
    named = _named_outputs(outputs) or {}
    candidates: dict[str, Any] = {}
    for name, value in named.items():
        if str(name).endswith("_loss"):
            candidates[name] = value
    candidates.update(named.get("loss_dict") or {})
    candidates.pop("loss", None)

    losses: dict[str, torch.Tensor] = {}
    for name, value in candidates.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            losses[name] = value
    return losses


def split_outputs(outputs: Any, ignore_keys: Sequence[str], *, has_loss: bool) -> object:
    """Return the predictions: all outputs of a model except the loss and `ignore_keys`, in order.

    Args:
        outputs: the outputs of the model, see `read_loss`.
        ignore_keys: names of outputs to drop, if they have names.
        has_loss: whether the outputs contain a loss.
    """
    named = _named_outputs(outputs)
    if named is not None:
        dropped = set(ignore_keys)
        if has_loss:
            dropped.add("loss")
        return tuple([value for name, value in named.items() if name not in dropped])
    if not has_loss:
        return outputs
    if isinstance(outputs, torch.Tensor) and outputs.dim() == 0:
        return ()
    return outputs[1:]


def has_loss(outputs: object) -> bool:
    """Return whether outputs contain a loss, which must be a scalar.

    A model without a loss may return logits in the position of the loss.
    """
    loss = find_loss(outputs)
    return isinstance(loss, torch.Tensor) and loss.dim() == 0


def predictions_in(outputs: object, ignore_keys: Sequence[str]) -> Any:
    """Return the predictions in outputs, which may have no loss. A single one is not in a tuple."""
    # In a tuple, a list or a tensor, the position of the loss may hold something else.
    has_positions = isinstance(outputs, (tuple, list, torch.Tensor))
    predictions = split_outputs(
        outputs, ignore_keys, has_loss=has_loss(outputs) or not has_positions
    )
    if isinstance(predictions, tuple) and len(predictions) == 1:
        return predictions[0]
    return predictions


def find_loss(outputs: object) -> Any:
    """Return the value in the position of the loss, or None."""
    if isinstance(outputs, (dict, Mapping)):
        return outputs.get("loss")
    if isinstance(outputs, torch.Tensor):
        if outputs.dim() == 0:
            return outputs
        return None
    if isinstance(outputs, (tuple, list)):
        if outputs:
            return outputs[0]
        return None
    return getattr(outputs, "loss", None)


def _named_outputs(outputs: object) -> Mapping[str, Any] | None:
    """Return outputs by name: the entries of a mapping, or the fields of an object.

    Fields that are None are omitted. Returns None for outputs without names.
    """
    # Checking for `dict` first is faster than checking for Mapping.
    if isinstance(outputs, (dict, Mapping)):
        return outputs
    if isinstance(outputs, (tuple, list, torch.Tensor)):
        return None

    if dataclasses.is_dataclass(outputs):
        values = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    else:
        values = getattr(outputs, "__dict__", None)
    if values is None:
        return None
    return {name: value for name, value in values.items() if value is not None}


def _no_loss_message(
    outputs: object, inputs: Mapping[str, object] | str | None, advice: str
) -> str:
    """Return the error message for outputs without a loss."""
    inputs_text = ""
    if isinstance(inputs, str):
        inputs_text = f" It was given: {inputs}."
    elif inputs is not None:
        inputs_text = f" It was given: {', '.join(map(str, inputs))}."
    return f"The model returned {_describe(outputs)}.{inputs_text} {advice}"


def _describe(outputs: object) -> str:
    """Describe outputs without a loss, and where a loss is expected."""
    kind = type(outputs).__name__
    named = _named_outputs(outputs)
    if named is not None:
        others = ", ".join(str(name) for name in named if name != "loss")
        if "loss" in named or hasattr(outputs, "loss"):
            return f"loss=None, in a {kind} with {others or 'nothing else'}"
        return f"no `loss`, but a {kind} with {others or 'nothing in it'}"
    if isinstance(outputs, (tuple, list)) and outputs:
        return f"None instead of a loss, as the first of a {kind} of {len(outputs)}"

    shape = ""
    if isinstance(outputs, torch.Tensor):
        shape = f" of shape {tuple(outputs.shape)}"
    return (
        f"no loss, but a {kind}{shape}. Expected is a mapping with the key `loss`, an object with "
        "the attribute `loss`, or a tuple that starts with the loss"
    )
