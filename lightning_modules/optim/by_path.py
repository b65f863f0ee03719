"""Optimizers named by the path of a class, such as `torch.optim.Muon`.

Their arguments are checked against the signature of the class.
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
    """A function that makes an optimizer from parameter groups, used like a class."""


def optimizer_by_path(
    path: str, text: str | None, numbers: dict[str, Any], adam: dict[str, Any]
) -> ClassAndKwargs:
    """Return the class, or an `OptimizerFunction`, and its arguments except the parameter groups.

    Args:
        path: the path of a subclass of `torch.optim.Optimizer`, or of a function that makes one
            from groups and arguments.
        text: its own arguments, "k=v,k=v": numbers, true, false, none, tuples such as (0.9,0.99),
            otherwise text.
        numbers: `lr`, and the `weight_decay` of the groups. A `weight_decay` of 0 is not passed,
            as some classes do not accept it.
        adam: `betas` and `eps`, passed if the class accepts both, with two betas; other classes
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
            f"optim={path!r} needs a closure that computes the loss again, which the Trainer does "
            "not pass. Choose another optimizer."
        )

    kwargs: dict[str, Any] = {}
    for name, value_text in parse_optimizer_args(text).items():
        kwargs[name] = _read_value(value_text)
    number_kwargs = {name: value for name, value in numbers.items() if value or name in kwargs}

    # Some classes have three betas.
    signature = inspect.signature(optimizer_class)
    accepted = list(signature.parameters)[1:]
    default_betas = getattr(signature.parameters.get("betas"), "default", ())
    if "eps" in accepted and len(default_betas) == 2:
        kwargs = {**adam, **kwargs}

    try:
        signature.bind([], **number_kwargs, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"optim={path!r} with optim_args={text!r}: {error}. lr and weight_decay are set by "
            f"learning_rate and weight_decay ({numbers['weight_decay']:g}); it takes: "
            f"{', '.join(accepted)}."
        ) from None
    if not is_class:
        optimizer_class = OptimizerFunction(optimizer_class)
    return optimizer_class, {"lr": numbers["lr"], **kwargs}


def _requires_closure(optimizer_class: type[Optimizer]) -> bool:
    """Return whether each step of an optimizer has to compute the loss again, as of LBFGS."""
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
