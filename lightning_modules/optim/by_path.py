"""Optimizers named by the path of a class, such as `torch.optim.Muon`, with arguments that its
signature knows.
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
    """A function that makes an optimizer of parameter groups, in the place of a class."""


def optimizer_by_path(
    path: str, text: str | None, numbers: dict[str, Any], adam: dict[str, Any]
) -> ClassAndKwargs:
    """Return the class, or an `OptimizerFunction`, and its arguments beside the parameter groups.

    Args:
        path: of a subclass of `torch.optim.Optimizer`, or of a function that makes one of groups
            and arguments.
        text: its own arguments, "k=v,k=v": numbers, true, false, none, tuples such as (0.9,0.99),
            otherwise text.
        numbers: `lr`, and the `weight_decay` of the groups; a class that takes none must not be
            given any.
        adam: `betas` and `eps`, for a class that takes both, with two betas; others have their own.

    Raises:
        ValueError: nothing of this kind has this path, or it does not take the arguments.
    """
    found = resolve(path, "optim")
    is_class = isinstance(found, type)
    if not callable(found) or (is_class and not issubclass(found, Optimizer)):
        raise ValueError(
            f"optim={path!r} is {found!r:.60}, not a subclass of torch.optim.Optimizer, nor a "
            "function."
        )
    closure = inspect.signature(found.step).parameters.get("closure") if is_class else None
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"optim={path!r} needs a closure that computes the loss again, and gets none. Choose "
            "another one."
        )
    signature = inspect.signature(found)
    given = {k: _value(v) for k, v in parse_optimizer_args(text).items()}
    known = list(signature.parameters)[1:]
    needed = {k: value for k, value in numbers.items() if value or k in given}
    if "eps" in known and len(getattr(signature.parameters.get("betas"), "default", ())) == 2:
        given = {**adam, **given}
    try:
        signature.bind([], **needed, **given)
    except TypeError as error:
        raise ValueError(
            f"optim={path!r} with optim_args={text!r}: {error}. lr and weight_decay are set by "
            f"learning_rate and weight_decay ({numbers['weight_decay']:g}); it takes: "
            f"{', '.join(known)}."
        ) from None
    return found if is_class else OptimizerFunction(found), {"lr": numbers["lr"], **given}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.title() if text.lower() in ("true", "false", "none") else text)
    except (ValueError, SyntaxError):
        return text
