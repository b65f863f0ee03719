"""Description of an optimizer by name, with its numbers and its own arguments.

The last are written as one text, "momentum=0.9,nesterov=true" (`optim_args`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..common.enums import OptimizerNames, optimizer_name

TargetModules = str | list[str]
"""`all-linear`, a regular expression for whole names of modules, or a list.

The entries of a list are parts of names, or such expressions.
"""


@dataclass(frozen=True, kw_only=True)
class OptimizerDescription:
    """The fields of `OptimizerConfig`."""

    name: str | OptimizerNames = OptimizerNames.ADAMW_TORCH_FUSED
    """An `OptimizerNames` or its value; or the path of a class, such as "torch.optim.Muon"."""
    learning_rate: float = 5e-5
    """The full learning rate, from which a schedule starts."""
    weight_decay: float = 0.0
    """Decay of the parameters that `decay_parameter_names` names; the others have none."""
    beta1: float = 0.9
    """Adam's decay of the mean of the gradients."""
    beta2: float = 0.999
    """Adam's decay of the mean of the squared gradients."""
    epsilon: float = 1e-8
    """Constant that Adam adds to the root in its denominator."""
    args: str | None = None
    """The optimizer's own arguments, as "momentum=0.9,nesterov=true".

    A `weight_decay` among them has no effect; the field sets it.
    """
    target_modules: TargetModules | None = None
    """Linear layers whose gradients GaLore and APOLLO project."""
    warmup_steps: float | None = None
    """Steps of the warm-up of `schedule_free_adamw` and `schedule_free_sgd`; not for others."""

    def __post_init__(self) -> None:
        optimizer_name(self.name)


_TRUE = ("true", "1", "yes", "y", "t", "on")
_FALSE = ("false", "0", "no", "n", "f", "off")


def parse_optimizer_args(optim_args_str: str | None) -> dict[str, str]:
    """Read "momentum=0.9, betas=(0.9,0.99)" into a dict of strings; spaces do not matter.

    Raises:
        ValueError: a part is not of the form `name=value`.
    """
    if not optim_args_str:
        return {}

    # Commas within parentheses are part of a value.
    parsed: dict[str, str] = {}
    for part in re.split(r",(?![^(]*\))", optim_args_str.replace(" ", "")):
        name, equals, value = part.partition("=")
        if not (name and equals) or "=" in value:
            raise ValueError(
                f"The optimizer arguments (`optim_args`) {optim_args_str!r} cannot be read at "
                f"{part!r}: write them as name=value, separated by commas, such as "
                "'momentum=0.9,nesterov=true'."
            )
        parsed[name] = value
    return parsed


class OptimizerArguments:
    """Parsed arguments, from which each builder takes those that it knows.

    The others have no effect; a warning names them.

    Args:
        text: as for `parse_optimizer_args`.
    """

    def __init__(self, text: str | None) -> None:
        self._left = parse_optimizer_args(text)

    @property
    def left(self) -> list[str]:
        """Return the names that were not taken."""
        return list(self._left)

    def take(self, **defaults: object) -> dict[str, Any]:
        """Return the values of arguments by name, each of the type of its default.

        Args:
            defaults: values of arguments that the text does not have.

        Raises:
            ValueError: a text cannot be read as its type; names the argument and the text.
        """
        values = dict(defaults)
        for name, default in defaults.items():
            if name in self._left:
                values[name] = self._take(name, type(default))
        return values

    def pop_given(self, kind: type, *names: str) -> dict[str, object]:
        """Return the values, of one type, of those named arguments that the text has."""
        return {name: self._take(name, kind) for name in names if name in self._left}

    def _take(self, name: str, kind: type) -> object:
        text = self._left.pop(name)
        read, expected = _READERS[kind]
        try:
            return read(text)
        except ValueError:
            raise ValueError(
                f"The optimizer argument {name}={text!r} (`optim_args`) must be {expected}."
            ) from None


def read_bool(text: str) -> bool:
    """Read "true", "1", "yes", ... or "false", "0", "no", ... in upper or lower case."""
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def read_dtype(text: str) -> torch.dtype:
    """Read "bfloat16" or another name of a dtype in `torch`."""
    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(text)
    return dtype


_READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    float: (float, "a number"),
    int: (int, "a whole number"),
    bool: (read_bool, "true or false"),
    str: (str, "text"),
    torch.dtype: (read_dtype, "the name of a torch dtype, such as 'bfloat16'"),
}
"""By the type of an argument: a function that reads its text, and what is expected."""


ClassAndKwargs = tuple[Any, dict[str, Any]]
"""The class of an optimizer, and its arguments except the learning rate.

"params", "model" or "optimizer_dict" among them replaces the usual parameter groups.
"""


@dataclass(frozen=True, kw_only=True)
class OptimizerRequest:
    """A request for an optimizer by name."""

    config: OptimizerDescription
    """Its name and its numbers."""
    arguments: OptimizerArguments
    """Its own arguments, from which a builder takes those that it knows."""
    model: nn.Module | None
    """The model, for optimizers that depend on its modules."""

    @property
    def name(self) -> OptimizerNames:
        """Return the optimizer's name."""
        return OptimizerNames(self.config.name)

    @property
    def adam(self) -> dict[str, object]:
        """Return betas and epsilon of Adam under torch's names, which other libraries use too."""
        return {"betas": (self.config.beta1, self.config.beta2), "eps": self.config.epsilon}

    def require_model(self) -> nn.Module:
        """Return the model.

        Raises:
            ValueError: no model was passed.
        """
        if self.model is None:
            name = optimizer_name(self.config.name)
            raise ValueError(f"optim={name!r} depends on the model's modules: pass `model` too.")
        return self.model


Builder = Callable[[OptimizerRequest], ClassAndKwargs]
