"""Resolve optimizers that are named by an import path, such as `torch.optim.Muon`.

Arguments are checked against the signature of the class.
"""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

from torch.optim import Optimizer

from ..common.class_paths import resolve
from .request import ClassAndKwargs, parse_optimizer_args


class OptimizerFunction(functools.partial[Any]):
    """Wrapper of a function that builds an optimizer from parameter groups."""


def optimizer_by_path(
    path: str, text: str | None, hyperparameters: dict[str, Any], adam: dict[str, Any]
) -> ClassAndKwargs:
    """Return the class, or an `OptimizerFunction`, and its arguments except the parameter groups.

    Args:
        path: import path of a subclass of `torch.optim.Optimizer`, or of a function that builds an
            optimizer from parameter groups and arguments.
        text: arguments as "k=v,k=v". Values are parsed as numbers, true, false, none and tuples
            such as (0.9,0.99), otherwise as strings.
        numbers: `lr` and the `weight_decay` of the groups. A `weight_decay` of 0 is not passed,
            because some classes do not accept it.
        adam: `betas` and `eps`, passed to classes that accept `eps` and two betas. Other classes
            keep their defaults.

    Raises:
        ValueError: the class or function does not exist, or does not accept the arguments.
    """
    optimizer_class = resolve(path, "optim")
    is_class = isinstance(optimizer_class, type)
    if not callable(optimizer_class) or (is_class and not issubclass(optimizer_class, Optimizer)):
        raise ValueError(
            f"optim={path!r} is {optimizer_class!r:.60}, not a subclass of torch.optim.Optimizer, "
            "nor a function. Pass the path of one."
        )
    if is_class and _requires_closure(optimizer_class):
        raise ValueError(
            f"optim={path!r} needs a closure that recomputes the loss, which the Trainer does not "
            "pass. Choose another optimizer."
        )

    kwargs: dict[str, Any] = {}
    for name, value_text in parse_optimizer_args(text).items():
        kwargs[name] = _read_value(value_text)
    group_kwargs = {
        name: value for name, value in hyperparameters.items() if value or name in kwargs
    }

    # Pass betas and eps only to classes with two betas; some have three.
    signature = inspect.signature(optimizer_class)
    accepted = list(signature.parameters)[1:]
    default_betas = getattr(signature.parameters.get("betas"), "default", ())
    if "eps" in accepted and len(default_betas) == 2:
        kwargs = {**adam, **kwargs}

    try:
        signature.bind([], **group_kwargs, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"optim={path!r} with optim_args={text!r}: {error}. lr and weight_decay are set by "
            f"learning_rate and weight_decay ({hyperparameters['weight_decay']:g}); it accepts: "
            f"{', '.join(accepted)}."
        ) from None
    if not is_class:
        optimizer_class = OptimizerFunction(optimizer_class)
    return optimizer_class, {"lr": hyperparameters["lr"], **kwargs}


def _requires_closure(optimizer_class: type[Optimizer]) -> bool:
    """Return whether an optimizer such as LBFGS requires a closure that recomputes the loss."""
    closure = inspect.signature(optimizer_class.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _read_value(text: str) -> object:
    literal = text
    if text.lower() in ("true", "false", "none"):
        literal = text.title()
    try:
        return ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return text
