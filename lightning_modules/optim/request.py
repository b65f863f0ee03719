"""Describe an optimizer by its name, hyperparameters and optimizer-specific arguments.

The specific arguments are written as one string, "momentum=0.9,nesterov=true" (`optim_args`).
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
"""`all-linear`, a regular expression for whole module names, or a list.

List entries are parts of names or regular expressions.
"""


@dataclass(frozen=True, kw_only=True)
class OptimizerDescription:
    """The fields of `OptimizerConfig`."""

    name: str | OptimizerNames = OptimizerNames.ADAMW_TORCH_FUSED.value
    """An `OptimizerNames`, its value, or the import path of a class, such as "torch.optim.Muon"."""
    learning_rate: float = 5e-5
    """The peak learning rate, which a schedule scales."""
    weight_decay: float = 0.0
    """Weight decay of the parameters in `decay_parameter_names`. Others have none."""
    beta1: float = 0.9
    """Adam's decay of the mean of the gradients."""
    beta2: float = 0.999
    """Adam's decay of the mean of the squared gradients."""
    epsilon: float = 1e-8
    """Constant that Adam adds to the denominator."""
    args: str | None = None
    """Optimizer-specific arguments, such as "momentum=0.9,nesterov=true".

    A `weight_decay` among them has no effect, because the field sets it.
    """
    target_modules: TargetModules | None = None
    """Linear layers whose gradients GaLore and APOLLO project."""
    warmup_steps: float | None = None
    """Warm-up steps of `schedule_free_adamw` and `schedule_free_sgd`. Other optimizers ignore it.
    """

    def __post_init__(self) -> None:
        optimizer_name(self.name)


_TRUE = ("true", "1", "yes", "y", "t", "on")
_FALSE = ("false", "0", "no", "n", "f", "off")


def parse_optimizer_args(optim_args_str: str | None) -> dict[str, str]:
    """Parse "momentum=0.9, betas=(0.9,0.99)" into a dict of strings. Spaces are ignored.

    Raises:
        ValueError: a part is not of the form `name=value`.
    """
    if not optim_args_str:
        return {}

    # Commas within parentheses do not separate arguments.
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
    """Parsed arguments, from which each builder removes those that it uses.

    The remaining ones have no effect and are logged as a warning.

    Args:
        text: as for `parse_optimizer_args`.
    """

    def __init__(self, text: str | None) -> None:
        self._remaining = parse_optimizer_args(text)

    @property
    def left(self) -> list[str]:
        """Return the names of the remaining arguments."""
        return list(self._remaining)

    def take(self, **defaults: object) -> dict[str, Any]:
        """Remove arguments and return their values, converted to the types of the defaults.

        Args:
            defaults: values of arguments that were not passed.

        Raises:
            ValueError: a value cannot be converted. The message names the argument and the value.
        """
        values = dict(defaults)
        for name, default in defaults.items():
            if name in self._remaining:
                values[name] = self._take(name, type(default))
        return values

    def pop_given(self, value_type: type, *names: str) -> dict[str, object]:
        """Remove the named arguments that were passed, and return their values as one type."""
        return {name: self._take(name, value_type) for name in names if name in self._remaining}

    def _take(self, name: str, value_type: type) -> object:
        text = self._remaining.pop(name)
        read, expected = _READERS[value_type]
        try:
            return read(text)
        except ValueError:
            raise ValueError(
                f"The optimizer argument {name}={text!r} (`optim_args`) must be {expected}."
            ) from None


def read_bool(text: str) -> bool:
    """Parse "true", "1", "yes", ... or "false", "0", "no", ..., ignoring case."""
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def read_dtype(text: str) -> torch.dtype:
    """Parse the name of a torch dtype, such as "bfloat16"."""
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
"""For each type of argument, a parser and a description of the expected value."""


ClassAndKwargs = tuple[Any, dict[str, Any]]
"""The class of an optimizer and its arguments, except the learning rate.

An argument "params", "model" or "optimizer_dict" replaces the parameter groups.
"""


@dataclass(frozen=True, kw_only=True)
class OptimizerRequest:
    """Input of the functions that build optimizers."""

    config: OptimizerDescription
    """Name and hyperparameters."""
    arguments: OptimizerArguments
    """Optimizer-specific arguments, from which a builder removes those that it uses."""
    model: nn.Module | None
    """The model, for optimizers that depend on its modules."""

    @property
    def name(self) -> OptimizerNames:
        """Return the optimizer's name."""
        return OptimizerNames(self.config.name)

    @property
    def adam(self) -> dict[str, object]:
        """Return Adam's betas and epsilon under torch's names, which other libraries use too."""
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
