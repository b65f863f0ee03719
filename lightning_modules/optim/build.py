"""Builds an optimizer from its name: its class, its arguments, and the object for a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..common.enums import MUON, OptimizerNames, optimizer_name
from ..internals.compiler import build_optimizers_without_compiler, step_without_compiler
from ..internals.torch_names import mark_as_stepped
from . import libraries, low_rank, muon
from .adafactor import Adafactor
from .by_path import OptimizerFunction, optimizer_by_path
from .groups import parameter_groups, save_group_state_by_index
from .request import (
    Builder,
    ClassAndKwargs,
    OptimizerArguments,
    OptimizerDescription,
    OptimizerRequest,
)

logger = logging.getLogger(__name__)


def _adamw(request: OptimizerRequest) -> ClassAndKwargs:
    return torch.optim.AdamW, request.adam


def _fused_adamw(request: OptimizerRequest) -> ClassAndKwargs:
    return torch.optim.AdamW, {**request.adam, "fused": True}


def _adafactor(request: OptimizerRequest) -> ClassAndKwargs:
    # The learning rate and the schedule are those of the arguments, not Adafactor's own.
    return Adafactor, {"scale_parameter": False, "relative_step": False}


def _sgd(request: OptimizerRequest) -> ClassAndKwargs:
    kwargs = request.arguments.pop_given(float, "momentum", "dampening", "weight_decay")
    kwargs |= request.arguments.pop_given(bool, "nesterov")
    return torch.optim.SGD, kwargs


def _adagrad(request: OptimizerRequest) -> ClassAndKwargs:
    kwargs = request.arguments.pop_given(float, "lr_decay", "eps", "weight_decay")
    return torch.optim.Adagrad, kwargs


def _rmsprop(request: OptimizerRequest) -> ClassAndKwargs:
    kwargs = request.arguments.pop_given(float, "momentum", "alpha", "eps", "weight_decay")
    kwargs |= request.arguments.pop_given(bool, "centered")
    return torch.optim.RMSprop, kwargs


_BUILDERS_BY_PART: dict[str, Builder] = {
    "bnb": libraries.build_bitsandbytes,
    "8bit": libraries.build_bitsandbytes,
    "paged": libraries.build_bitsandbytes,
    "ademamix": libraries.build_bitsandbytes,
    "lion": libraries.build_bitsandbytes,
    "rmsprop": libraries.build_bitsandbytes,
    "galore": low_rank.build_galore,
    "apollo": low_rank.build_apollo,
    "lomo": libraries.build_lomo,
    "schedule_free": libraries.build_schedule_free,
    "torch_4bit": libraries.build_torchao,
    "torch_8bit": libraries.build_torchao,
}
"""Builders of all optimizers with a part in their name; the last part that matches applies."""

_BUILDERS_BY_NAME: dict[OptimizerNames, Builder] = {
    OptimizerNames.ADAMW_TORCH: _adamw,
    OptimizerNames.ADAMW_TORCH_FUSED: _fused_adamw,
    OptimizerNames.ADAFACTOR: _adafactor,
    OptimizerNames.SGD: _sgd,
    OptimizerNames.ADAGRAD: _adagrad,
    OptimizerNames.RMSPROP: _rmsprop,
    OptimizerNames.ADAMW_TORCH_XLA: libraries.build_xla,
    OptimizerNames.ADAMW_TORCH_NPU_FUSED: libraries.build_npu,
    OptimizerNames.ADAMW_APEX_FUSED: libraries.build_apex,
    OptimizerNames.ADAMW_ANYPRECISION: libraries.build_any_precision,
    OptimizerNames.GROKADAMW: libraries.build_grokadamw,
    OptimizerNames.STABLE_ADAMW: libraries.build_stable_adamw,
}
"""Builders of single optimizers, which take precedence over those of a part of the name."""


def _all_builders() -> dict[OptimizerNames, Builder]:
    builders: dict[OptimizerNames, Builder] = {}
    for part, builder in _BUILDERS_BY_PART.items():
        for name in OptimizerNames:
            if part in name.value:
                builders[name] = builder
    return builders | _BUILDERS_BY_NAME


BUILDERS = _all_builders()
"""Functions that return the class and its arguments for each optimizer."""


def optimizer_class_and_kwargs(
    config: OptimizerDescription, model: nn.Module | None = None
) -> ClassAndKwargs:
    """Return the class and the arguments of an optimizer; a warning names unknown arguments.

    As `Trainer.get_optimizer_cls_and_kwargs` of transformers.

    Args:
        config: the optimizer's name and numbers.
        model: needed by GaLore, APOLLO, LOMO and Muon.

    Returns:
        The class, and its keyword arguments except the parameter groups. Among them may be
        "params", "model" or "optimizer_dict", which is then passed instead of the usual groups, see
        `build_optimizer`.

    Raises:
        MissingLibraryError: an ImportError; the library of the optimizer is not installed.
        ValueError: `config.args` cannot be read, or the model is needed but was not passed.
    """
    name = optimizer_name(config.name)
    arguments = OptimizerArguments(config.args)
    request = OptimizerRequest(config=config, arguments=arguments, model=model)
    if "." in name:
        return _class_and_kwargs_by_path(request)

    build = BUILDERS[OptimizerNames(name)]
    optimizer_class, kwargs = build(request)
    if arguments.left:
        logger.warning(
            "The optimizer %r does not use the arguments %s of %r.",
            name,
            arguments.left,
            config.args,
        )
    if kwargs.get("weight_decay", config.weight_decay) != config.weight_decay:
        logger.warning(
            "weight_decay=%s among the optimizer arguments has no effect: `weight_decay` (%s) "
            "sets it.",
            kwargs["weight_decay"],
            config.weight_decay,
        )
    return optimizer_class, {"lr": config.learning_rate, **kwargs}


def _class_and_kwargs_by_path(request: OptimizerRequest) -> ClassAndKwargs:
    config = request.config
    numbers = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    optimizer_class, kwargs = optimizer_by_path(config.name, config.args, numbers, request.adam)
    if config.name != MUON:
        return optimizer_class, kwargs

    # torch's Muon accepts only matrices, so AdamW trains the other parameters.
    kwargs["matrices"] = muon.matrices(request.require_model())
    kwargs["adamw"] = request.adam
    return muon.MuonWithAdamW, kwargs


def build_optimizer(
    optimizer_class: Callable[..., Any],
    kwargs: dict[str, Any],
    model: nn.Module,
    groups: list[dict[str, Any]],
) -> Optimizer:
    """Build an optimizer; as the second half of `Trainer.create_optimizer` of transformers.

    Args:
        optimizer_class: a class of optimizers; or a callable without arguments that returns a
            function, which makes the optimizer from the model and the keyword arguments.
        kwargs: keyword arguments; "params", "model" or "optimizer_dict" among them is passed first,
            instead of the groups.
        model: the model.
        groups: the usual parameter groups.
    """
    build_optimizers_without_compiler()
    # An `OptimizerFunction` is an object that is used like a class.
    kind = type(optimizer_class)
    if isinstance(optimizer_class, type):
        kind = optimizer_class
    if issubclass(kind, (Optimizer, OptimizerFunction)):
        other_kwargs = _without_fused_on_xla(kwargs, model)

        # As in the reference, any of these arguments replaces the parameter groups.
        first_argument: object = groups
        for name in ("params", "model", "optimizer_dict"):
            first_argument = other_kwargs.pop(name, first_argument)
        optimizer = optimizer_class(first_argument, **other_kwargs)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optim: {optimizer_class} returned a {type(optimizer).__name__}: it has to return "
                "a torch.optim.Optimizer."
            )
    else:
        make_optimizer = optimizer_class()
        optimizer = make_optimizer(model, **kwargs)

    step_without_compiler(optimizer)
    libraries.skip_embedding_quantization(optimizer_class, kwargs, model)
    add_no_op_step(optimizer)
    save_group_state_by_index(optimizer)
    return optimizer


def _without_fused_on_xla(kwargs: dict[str, Any], model: nn.Module) -> dict[str, object]:
    """Return the arguments without `fused` on torch_xla, which has no such kernel."""
    kwargs = dict(kwargs)
    if not kwargs.get("fused"):
        return kwargs
    if any(parameter.device.type == "xla" for parameter in model.parameters()):
        logger.info("fused=True is ignored: the compiler of torch_xla fuses the operations.")
        del kwargs["fused"]
    return kwargs


def steps_in_backward(optimizer: object) -> bool:
    """Return whether an optimizer steps in its own backward pass."""
    return callable(getattr(optimizer, "fused_backward", None))


def add_no_op_step(optimizer: torch.optim.Optimizer) -> None:
    """Give optimizers that step in the backward pass a `step` that only runs its closure.

    LOMO has no `step`, which schedules and Lightning call. `accelerate` adds the same.

    Args:
        optimizer: any optimizer; others are not changed.
    """
    if steps_in_backward(optimizer):
        mark_as_stepped(optimizer, _run_closure)


def _run_closure(optimizer: Optimizer, closure: Callable[[], object] | None = None) -> object:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(OptimizerDescription):
    """Describe an optimizer and its learning rate, for a LightningModule.

    As `optim`, `optim_args`, `learning_rate`, `weight_decay` and `adam_*` of `TrainingArguments`.

    In a LightningModule: `configure_optimizers` returns `config.build(self)`.
    """

    def build(
        self,
        model: nn.Module,
        decay_names: Collection[str] | None = None,
        rules: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Optimizer:
        """Return the optimizer over the trainable parameters of a model.

        Args:
            model: its parameters with `requires_grad` are trained.
            decay_names: parameters that decay, by default `decay_parameter_names(model)`.
            rules: settings by patterns of names, as `TrainingArguments(parameter_rules=)`.

        Raises:
            MissingLibraryError: an ImportError; the library of the optimizer is not installed.
        """
        optimizer_class, kwargs = optimizer_class_and_kwargs(self, model)
        groups = parameter_groups(
            model, self.weight_decay, decay_names, rules=rules, lr=self.learning_rate
        )
        return build_optimizer(optimizer_class, kwargs, model, groups)
