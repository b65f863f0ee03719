"""Optimizers by name, with the documented parameter groups: weight decay on everything but biases and norms."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .names import OptimizerNames

__all__ = [
    "BUILDERS",
    "OptimizerConfig",
    "decay_parameter_names",
    "optimizer_class_and_kwargs",
    "parameter_groups",
    "parse_optimizer_args",
]

logger = logging.getLogger(__name__)

# Looked for in the lower case name of a parameter, from the model down: "norm" only as a whole word or after "_".
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")

ClassAndKwargs = tuple[type[Optimizer], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """As the `optim*`, `learning_rate`, `weight_decay` and `adam_*` of `TrainingArguments`, for one optimizer.

    In a LightningModule: `configure_optimizers` returns `config.build(self)`.
    """

    name: str | OptimizerNames = OptimizerNames.ADAMW_TORCH_FUSED
    """Which optimizer, an `OptimizerNames` or its value."""
    learning_rate: float = 5e-5
    """The full learning rate, from which a schedule starts."""
    weight_decay: float = 0.0
    """Decay of the parameters that `decay_parameter_names` names; the others have none."""
    beta1: float = 0.9
    """Adam's decay of the mean of the gradients."""
    beta2: float = 0.999
    """Adam's decay of the mean of the squared gradients."""
    epsilon: float = 1e-8
    """What Adam adds to the root in its denominator."""
    args: str | None = None
    """The optimizer's own arguments, as "momentum=0.9,nesterov=true"; a decay among them is overruled by the field."""

    def __post_init__(self) -> None:
        OptimizerNames(self.name)

    def build(self, model: nn.Module, decay_names: Collection[str] | None = None) -> Optimizer:
        """The optimizer over the trainable parameters of a model.

        Args:
            model: its parameters with `requires_grad` are trained.
            decay_names: parameters that decay, by default `decay_parameter_names(model)`.
        """
        optimizer_class, kwargs = optimizer_class_and_kwargs(self)
        if kwargs.get("weight_decay", self.weight_decay) != self.weight_decay:
            logger.warning(
                "weight_decay=%s among the optimizer arguments has no effect: `weight_decay` (%s) sets it.",
                kwargs["weight_decay"],
                self.weight_decay,
            )
        return optimizer_class(parameter_groups(model, self.weight_decay, decay_names), **kwargs)


def decay_parameter_names(model: nn.Module) -> list[str]:
    """As `Trainer.get_decay_parameter_names`, but one walk over the modules instead of one per level.

    Left out are the parameters of every `nn.LayerNorm` below the model, and those with "bias", "layernorm", "rmsnorm"
    or a part that is "norm" or ends in "_norm" in their name.

    Args:
        model: any module.

    Returns:
        Names in the reference's order: those of the children first. A module that is reached in two ways is listed
        twice, and a parameter that is None is listed too.
    """
    names: list[str] = []
    _collect_names(model, "", names)
    return [name for name in names if not _NO_DECAY.search(name.lower())]


def _collect_names(module: nn.Module, prefix: str, names: list[str]) -> None:
    for child_name, child in module.named_children():
        if not isinstance(child, nn.LayerNorm):
            _collect_names(child, f"{prefix}{child_name}.", names)
    names.extend(prefix + name for name in module._parameters)


def parameter_groups(
    model: nn.Module, weight_decay: float, decay_names: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """The two parameter groups of `Trainer.create_optimizer`: with weight decay, then without.

    Args:
        model: its parameters with `requires_grad` are listed, in the order of `named_parameters`.
        weight_decay: decay of the first group.
        decay_names: names of the parameters in the first group, by default `decay_parameter_names(model)`.

    Returns:
        Two dicts with "params" and "weight_decay"; either list may be empty.
    """
    decaying = frozenset(decay_parameter_names(model) if decay_names is None else decay_names)
    groups = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name not in decaying]["params"].append(parameter)
    return groups


def parse_optimizer_args(text: str | None) -> dict[str, str]:
    """Read "momentum=0.9, nesterov=true" into a dict of strings; spaces do not matter.

    Raises:
        ValueError: when a part is not of the form `name=value`.
    """
    parsed: dict[str, str] = {}
    for part in text.replace(" ", "").split(",") if text else []:
        name, equals, value = part.partition("=")
        if not (name and equals) or "=" in value:
            raise ValueError(
                f"The optimizer arguments (`optim_args`) {text!r} cannot be read at {part!r}: write them as "
                "name=value, separated by commas, such as 'momentum=0.9,nesterov=true'."
            )
        parsed[name] = value
    return parsed


def optimizer_class_and_kwargs(config: OptimizerConfig) -> ClassAndKwargs:
    """As `Trainer.get_optimizer_cls_and_kwargs`, but arguments that the optimizer does not know are named in a warning.

    Args:
        config: which optimizer, and its numbers.

    Returns:
        The class and the keyword arguments it takes beside the parameter groups.

    Raises:
        NotImplementedError: when there is no builder for the name yet.
        ValueError: when `config.args` cannot be read.
    """
    name = OptimizerNames(config.name)
    if name not in BUILDERS:
        raise NotImplementedError(
            f"The optimizer {name.value!r} (`optim`) is not available yet. Available: "
            f"{', '.join(sorted(known.value for known in BUILDERS))}. Or pass an optimizer of your own (`optimizers`)."
        )
    args = parse_optimizer_args(config.args)
    optimizer_class, kwargs = BUILDERS[name](config, args)
    if args:
        logger.warning("The optimizer %r does not use the arguments %s of %r.", name.value, list(args), config.args)
    return optimizer_class, {"lr": config.learning_rate, **kwargs}


# Each builder takes out of `args` what it uses, and returns what goes beside the learning rate.


def _adamw(config: OptimizerConfig, args: dict[str, str]) -> ClassAndKwargs:
    return torch.optim.AdamW, {"betas": (config.beta1, config.beta2), "eps": config.epsilon}


def _adamw_fused(config: OptimizerConfig, args: dict[str, str]) -> ClassAndKwargs:
    optimizer_class, kwargs = _adamw(config, args)
    return optimizer_class, {**kwargs, "fused": True}


def _sgd(config: OptimizerConfig, args: dict[str, str]) -> ClassAndKwargs:
    return torch.optim.SGD, _take(args, floats=("momentum", "dampening", "weight_decay"), flags=("nesterov",))


def _adagrad(config: OptimizerConfig, args: dict[str, str]) -> ClassAndKwargs:
    return torch.optim.Adagrad, _take(args, floats=("lr_decay", "weight_decay", "eps"))


def _rmsprop(config: OptimizerConfig, args: dict[str, str]) -> ClassAndKwargs:
    return torch.optim.RMSprop, _take(args, floats=("momentum", "alpha", "eps", "weight_decay"), flags=("centered",))


Builder = Callable[[OptimizerConfig, dict[str, str]], ClassAndKwargs]

BUILDERS: dict[OptimizerNames, Builder] = {
    OptimizerNames.ADAMW_TORCH: _adamw,
    OptimizerNames.ADAMW_TORCH_FUSED: _adamw_fused,
    OptimizerNames.SGD: _sgd,
    OptimizerNames.ADAGRAD: _adagrad,
    OptimizerNames.RMSPROP: _rmsprop,
}
"""What makes the class and its arguments, for each optimizer that is available."""


def _take(args: dict[str, str], floats: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """Move the named arguments out of `args`, read as numbers and as true or false."""
    kwargs: dict[str, Any] = {name: _read_float(name, args.pop(name)) for name in floats if name in args}
    return kwargs | {name: _read_flag(name, args.pop(name)) for name in flags if name in args}


def _read_float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"The optimizer argument {name}={text!r} (`optim_args`) must be a number.") from None


def _read_flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"The optimizer argument {name}={text!r} (`optim_args`) must be true or false.")
    return text.lower() in _TRUE
