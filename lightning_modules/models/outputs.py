"""Read the loss and the predictions from the outputs of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

CACHES = ("past_key_values", "cache")
"""Outputs of models of `transformers` before 5.24 and since, which are no predictions."""
_ADVICE = (
    "Most models compute one only when they are given `labels`. Otherwise override "
    "`compute_loss`, or pass `compute_loss_func`."
)


def read_loss(
    outputs: Any,
    inputs: Mapping[str, Any] | str | None = None,
    advice: str | Callable[[], str] = _ADVICE,
    *,
    first_of_vector: bool = False,
) -> torch.Tensor:
    """As the reference reads a loss, but also from objects with an attribute `loss`.

    Args:
        outputs: outputs of the model: a mapping with `loss`, a tuple or list that starts with the
            loss, an object with an attribute `loss`, or the loss itself.
        inputs: what the model was given, or a description of it, for the error message.
        advice: what is missing, or what to do, for the same; a function is called for the message.
        first_of_vector: take a tensor with one dimension as the reference does, for a list that
            starts with the loss.

    Returns:
        The loss, as the model made it.

    Raises:
        ValueError: there is no loss in the outputs.
        TypeError: what stands in the place of the loss is not a tensor.
    """
    in_vector = (
        first_of_vector
        and isinstance(outputs, torch.Tensor)
        and outputs.dim() == 1
        and len(outputs) > 0
    )
    loss = outputs[0] if in_vector else find_loss(outputs)
    if loss is None:
        raise ValueError(
            _no_loss_message(outputs, inputs, advice if isinstance(advice, str) else advice())
        )
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"The loss of the model is a {type(loss).__name__} ({loss!r:.80}), not a torch.Tensor."
        )
    return loss


def losses_beside(outputs: Any) -> dict[str, torch.Tensor]:
    """Return the scalars of `loss_dict` in named outputs, and those named `*_loss`."""
    named = _named(outputs) or {}
    beside = {name: value for name, value in named.items() if str(name).endswith("_loss")}
    beside.update(
        {name: value for name, value in (named.get("loss_dict") or {}).items() if name != "loss"}
    )
    return {
        name: value
        for name, value in beside.items()
        if isinstance(value, torch.Tensor) and value.numel() == 1
    }


def split_outputs(outputs: Any, ignore_keys: Sequence[str], *, has_loss: bool) -> Any:
    """Return the predictions: all outputs of a model except the loss and `ignore_keys`, in order.

    Args:
        outputs: see `read_loss`.
        ignore_keys: names to leave out, if outputs have names.
        has_loss: the outputs were computed with labels, so that they hold a loss.
    """
    named = outputs if type(outputs) is dict else _named(outputs)
    if named is not None:
        dropped = {*ignore_keys, "loss"} if has_loss else set(ignore_keys)
        return tuple([value for name, value in named.items() if name not in dropped])
    if not has_loss:
        return outputs
    if isinstance(outputs, torch.Tensor) and outputs.dim() == 0:
        return ()
    return outputs[1:]


def has_loss(outputs: Any) -> bool:
    """Return whether outputs have a loss: a single number in its place, which may hold logits
    instead.
    """
    loss = find_loss(outputs)
    return isinstance(loss, torch.Tensor) and loss.dim() == 0


def predictions_in(outputs: Any, ignore_keys: Sequence[str]) -> Any:
    """As `split_outputs`, for outputs with a loss or without; a single value is returned itself."""
    in_front = isinstance(outputs, (tuple, list, torch.Tensor))
    found = split_outputs(outputs, ignore_keys, has_loss=has_loss(outputs) or not in_front)
    return found[0] if isinstance(found, tuple) and len(found) == 1 else found


def find_loss(outputs: Any) -> Any:
    """Return the value in the place of the loss; None without one."""
    if isinstance(outputs, (dict, Mapping)):
        return outputs.get("loss")
    if isinstance(outputs, torch.Tensor):
        return outputs if outputs.dim() == 0 else None
    if isinstance(outputs, (tuple, list)):
        return outputs[0] if outputs else None
    return getattr(outputs, "loss", None)


def _named(outputs: Any) -> Mapping[str, Any] | None:
    if isinstance(outputs, (dict, Mapping)):  # checking for a dict first is faster
        return outputs
    if isinstance(outputs, (tuple, list, torch.Tensor)):
        return None
    if dataclasses.is_dataclass(outputs):
        values = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    else:
        values = getattr(outputs, "__dict__", None)
    return (
        None
        if values is None
        else {name: value for name, value in values.items() if value is not None}
    )


def _no_loss_message(outputs: Any, inputs: Mapping[str, Any] | str | None, advice: str) -> str:
    given = ""
    if inputs is not None:
        names = inputs if isinstance(inputs, str) else ", ".join(map(str, inputs))
        given = f" It was given: {names}."
    return f"The model returned {_described(outputs)}.{given} {advice}"


def _described(outputs: Any) -> str:
    """Describe outputs without a loss, and where a loss is expected."""
    kind = type(outputs).__name__
    named = _named(outputs)
    if named is not None:
        others = ", ".join(str(name) for name in named if name != "loss")
        if "loss" in named or hasattr(outputs, "loss"):
            return f"loss=None, in a {kind} with {others or 'nothing else'}"
        return f"no `loss`, but a {kind} with {others or 'nothing in it'}"
    if isinstance(outputs, (tuple, list)) and outputs:
        return f"None instead of a loss, as the first of a {kind} of {len(outputs)}"

    shape = f" of shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else ""
    return (
        f"no loss, but a {kind}{shape}. Expected is a mapping with the key `loss`, an object with "
        "the attribute `loss`, or a tuple that starts with the loss"
    )
