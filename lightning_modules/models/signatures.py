"""Inspect which arguments a model's `forward` and overridden functions accept."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn


def accepts_loss_kwargs(model: nn.Module) -> bool:
    """Return whether `forward` accepts `num_items_in_batch`.

    A model may declare it in an attribute `accepts_loss_kwargs`. Otherwise it does if its signature
    has the parameter or accepts any keyword arguments.
    """
    declared = getattr(model, "accepts_loss_kwargs", None)
    if declared is not None:
        return declared
    parameters = inspect.signature(model.forward).parameters
    if "num_items_in_batch" in parameters:
        return True
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def signature_columns(model: nn.Module, label_names: Sequence[str]) -> list[str]:
    """Return the columns of a dataset that a model uses.

    These are the parameters of `model.forward`, and the names that collators convert to labels.
    """
    parameters = inspect.signature(model.forward).parameters
    # Use the keys of a dict as an ordered set.
    return list(dict.fromkeys([*parameters, "label", "label_ids", *label_names]))


def find_labels(model_class: type) -> list[str]:
    """Return the arguments of a model's `forward` that are labels.

    Works like `transformers.utils.find_labels`.

    Args:
        model_class: the class of the model.

    Returns:
        Their names, in the order of the signature.
    """
    names = inspect.signature(model_class.forward).parameters
    # The labels of extractive question answering are the start and end of the answer.
    spans: set[str] = set()
    if "QuestionAnswering" in model_class.__name__:
        spans = {"start_positions", "end_positions"}
    return [name for name in names if "label" in name or name in spans]


def can_return_loss(model_class: type) -> bool:
    """Return whether a model computes its loss without labels.

    Works like `transformers.utils.can_return_loss`: its `forward` has an argument `return_loss`
    that is True by default.

    Args:
        model_class: the class of the model.
    """
    parameter = inspect.signature(model_class.forward).parameters.get("return_loss")
    return parameter is not None and parameter.default is True


def accepted_arguments(function: object, **arguments: object) -> dict[str, Any]:
    """Return the arguments that a function accepts.

    This allows calling overrides with an older signature that lacks some of the arguments.
    """
    names = _parameter_names(getattr(function, "__func__", function))
    if names is None or names.issuperset(arguments):
        return arguments
    return {name: value for name, value in arguments.items() if name in names}


def takes_by_position(function: object, count: int) -> bool:
    """Return whether a function or bound method accepts this many positional arguments.

    An override may use other parameter names.
    """
    most = _most_by_position(getattr(function, "__func__", function))
    if most is None:
        return True
    # Do not count `self`.
    if hasattr(function, "__func__"):
        most -= 1
    return most >= count


@functools.lru_cache(maxsize=64)
def _most_by_position(function: Any) -> int | None:
    """Return the maximum number of positional arguments; None if it is unlimited.

    Cached, because every epoch and every log call it.
    """
    parameters = inspect.signature(function).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in by_position for kind in kinds)


@functools.lru_cache(maxsize=64)
def _parameter_names(function: Any) -> frozenset[str] | None:
    """Return the names of the parameters; None if the function accepts any keyword argument.

    Cached, because every step calls it.
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)
