"""Build optimizers by name: select the class and its arguments, and create the object."""

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
    # Use the learning rate and schedule of the arguments instead of Adafactor's own.
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
"""Builders by part of the optimizer's name. The last matching part applies."""

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
"""Builders of single optimizers, which take precedence over `_BUILDERS_BY_PART`."""


def _all_builders() -> dict[OptimizerNames, Builder]:
    builders: dict[OptimizerNames, Builder] = {}
    for part, builder in _BUILDERS_BY_PART.items():
        for name in OptimizerNames:
            if part in name.value:
                builders[name] = builder
    return builders | _BUILDERS_BY_NAME


BUILDERS = _all_builders()
"""For each optimizer, a function that returns its class and arguments."""


def optimizer_class_and_kwargs(
    config: OptimizerDescription, model: nn.Module | None = None
) -> ClassAndKwargs:
    """Return the class and the arguments of an optimizer. Unknown arguments are logged as a
    warning.

    As `Trainer.get_optimizer_cls_and_kwargs` of transformers.

    Args:
        config: the name and the hyperparameters of the optimizer.
        model: needed by GaLore, APOLLO, LOMO and Muon.

    Returns:
        The class, and its keyword arguments except the parameter groups. An argument "params",
        "model" or "optimizer_dict" replaces the parameter groups, see `build_optimizer`.

    Raises:
        MissingLibraryError: the library of the optimizer is not installed (an ImportError).
        ValueError: `config.args` is invalid, or the model is required but was not passed.
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

    # torch's Muon only accepts matrices, so train the other parameters with AdamW.
    kwargs["matrices"] = muon.matrices(request.require_model())
    kwargs["adamw"] = request.adam
    return muon.MuonWithAdamW, kwargs


def build_optimizer(
    optimizer_class: Callable[..., Any],
    kwargs: dict[str, Any],
    model: nn.Module,
    groups: list[dict[str, Any]],
) -> Optimizer:
    """Build an optimizer, as the second half of transformers' `Trainer.create_optimizer`.

    Args:
        optimizer_class: an optimizer class; or a callable without arguments that returns a function
            which builds the optimizer from the model and the keyword arguments.
        kwargs: keyword arguments. An argument "params", "model" or "optimizer_dict" is passed
            first, instead of the parameter groups.
        model: the model.
        groups: the parameter groups.
    """
    build_optimizers_without_compiler()
    # An `OptimizerFunction` is an instance that is used like a class.
    optimizer_kind = type(optimizer_class)
    if isinstance(optimizer_class, type):
        optimizer_kind = optimizer_class
    if issubclass(optimizer_kind, (Optimizer, OptimizerFunction)):
        other_kwargs = _without_fused_on_xla(kwargs, model)

        # As in the reference, any of these arguments replaces the parameter groups.
        first_argument: object = groups
        for name in ("params", "model", "optimizer_dict"):
            first_argument = other_kwargs.pop(name, first_argument)
        optimizer = optimizer_class(first_argument, **other_kwargs)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optim: {optimizer_class} returned a {type(optimizer).__name__}, but it must "
                "return a torch.optim.Optimizer."
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
    """Return the arguments without `fused` on torch_xla, which has no fused kernels."""
    kwargs = dict(kwargs)
    if not kwargs.get("fused"):
        return kwargs
    if any(parameter.device.type == "xla" for parameter in model.parameters()):
        logger.info("fused=True is ignored, because torch_xla's compiler fuses the operations.")
        del kwargs["fused"]
    return kwargs


def steps_in_backward(optimizer: object) -> bool:
    """Return whether an optimizer steps in the backward pass, as LOMO does."""
    return callable(getattr(optimizer, "fused_backward", None))


def add_no_op_step(optimizer: torch.optim.Optimizer) -> None:
    """Add a `step` that only runs its closure to optimizers that step in the backward pass.

    LOMO has no `step`, but schedules and Lightning call it. `accelerate` does the same.

    Args:
        optimizer: any optimizer. Other optimizers are not changed.
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
    """Optimizer settings of a LightningModule.

    The fields correspond to `optim`, `optim_args`, `learning_rate`, `weight_decay` and `adam_*` of
    `TrainingArguments`.

    Return `config.build(self)` from `configure_optimizers`.
    """

    def build(
        self,
        model: nn.Module,
        decay_names: Collection[str] | None = None,
        rules: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Optimizer:
        """Build the optimizer for the trainable parameters of a model.

        Args:
            model: the model. Its parameters with `requires_grad` are trained.
            decay_names: names of parameters with weight decay. The default is
                `decay_parameter_names(model)`.
            rules: settings by name pattern, as `TrainingArguments(parameter_rules=)`.

        Raises:
            MissingLibraryError: an ImportError; the library of the optimizer is not installed.
        """
        optimizer_class, kwargs = optimizer_class_and_kwargs(self, model)
        groups = parameter_groups(
            model, self.weight_decay, decay_names, rules=rules, lr=self.learning_rate
        )
        return build_optimizer(optimizer_class, kwargs, model, groups)
