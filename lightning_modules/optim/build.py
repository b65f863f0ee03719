"""Build an optimizer from its name: the class, its arguments, and the optimizer over the
parameters of a model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..common.suggestions import MUON, OptimizerNames, optimizer_name
from ..internals.compiler import build_optimizers_without_compiler, step_without_compiler
from ..internals.torch_names import mark_as_stepped
from . import libraries, low_rank, muon
from .adafactor import Adafactor
from .by_path import OptimizerFunction, optimizer_by_path
from .groups import parameter_groups, save_state_of_groups
from .request import (
    Builder,
    ClassAndKwargs,
    OptimizerArguments,
    OptimizerDescription,
    OptimizerRequest,
)

logger = logging.getLogger(__name__)


def _of_torch(optimizer_class: type[Optimizer], flag: str, *numbers: str) -> Builder:
    """Return the builder of a class of torch, with those of its arguments that are given."""
    return lambda request: (
        optimizer_class,
        request.arguments.given(float, *numbers, "weight_decay")
        | request.arguments.given(bool, flag),
    )


def _named(*parts: str) -> list[OptimizerNames]:
    """Return the optimizers that have one of these parts in their names."""
    return [name for name in OptimizerNames if any(part in name.value for part in parts)]


BUILDERS: dict[OptimizerNames, Builder] = {
    **dict.fromkeys(
        _named("bnb", "8bit", "paged", "ademamix", "lion", "rmsprop"), libraries.bitsandbytes
    ),
    **dict.fromkeys(_named("galore"), low_rank.galore),
    **dict.fromkeys(_named("apollo"), low_rank.apollo),
    **dict.fromkeys(_named("lomo"), libraries.lomo),
    **dict.fromkeys(_named("schedule_free"), libraries.schedule_free),
    **dict.fromkeys(_named("torch_4bit", "torch_8bit"), libraries.torchao),
    OptimizerNames.ADAMW_TORCH: lambda request: (torch.optim.AdamW, request.adam),
    OptimizerNames.ADAMW_TORCH_FUSED: lambda request: (
        torch.optim.AdamW,
        {**request.adam, "fused": True},
    ),
    # The learning rate and the schedule are those of the arguments, not Adafactor's own.
    OptimizerNames.ADAFACTOR: lambda request: (
        Adafactor,
        {"scale_parameter": False, "relative_step": False},
    ),
    OptimizerNames.SGD: _of_torch(torch.optim.SGD, "nesterov", "momentum", "dampening"),
    OptimizerNames.ADAGRAD: _of_torch(torch.optim.Adagrad, "", "lr_decay", "eps"),
    OptimizerNames.RMSPROP: _of_torch(torch.optim.RMSprop, "centered", "momentum", "alpha", "eps"),
    OptimizerNames.ADAMW_TORCH_XLA: libraries.xla,
    OptimizerNames.ADAMW_TORCH_NPU_FUSED: libraries.npu,
    OptimizerNames.ADAMW_APEX_FUSED: libraries.apex,
    OptimizerNames.ADAMW_ANYPRECISION: libraries.any_precision,
    OptimizerNames.GROKADAMW: libraries.grokadamw,
    OptimizerNames.STABLE_ADAMW: libraries.stable_adamw,
}
"""Functions that return the class and its arguments for each optimizer."""


def optimizer_class_and_kwargs(
    config: OptimizerDescription, model: nn.Module | None = None
) -> ClassAndKwargs:
    """As `Trainer.get_optimizer_cls_and_kwargs`, but arguments that the optimizer does not know are
    named in a warning.

    Args:
        config: the optimizer's name and numbers.
        model: needed by GaLore, APOLLO, LOMO and Muon.

    Returns:
        The class, and the keyword arguments it takes beside the parameter groups. Among them may be
        "params", "model" or "optimizer_dict", which then is passed in the place of the usual
        groups, see `build_optimizer`.

    Raises:
        MissingLibraryError: an ImportError; the optimizer is one of a library that is not
            installed.
        ValueError: when `config.args` cannot be read, or the model is needed and not there.
    """
    name = optimizer_name(config.name)
    arguments = OptimizerArguments(config.args)
    request = OptimizerRequest(config=config, arguments=arguments, model=model)
    if "." in name:
        return _by_path(request)
    optimizer_class, kwargs = BUILDERS[OptimizerNames(name)](request)
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


def _by_path(request: OptimizerRequest) -> ClassAndKwargs:
    config = request.config
    numbers = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    found, kwargs = optimizer_by_path(config.name, config.args, numbers, request.adam)
    if config.name != MUON:
        return found, kwargs
    return muon.MuonWithAdamW, {
        **kwargs,
        "matrices": muon.matrices(request.require_model()),
        "adamw": request.adam,
    }


def build_optimizer(
    optimizer_class: Any, kwargs: dict[str, Any], model: nn.Module, groups: Any
) -> Any:
    """As the second half of `Trainer.create_optimizer`: an optimizer of a class, its arguments and
    parameter groups.

    Args:
        optimizer_class: a class of optimizers; or a callable without arguments that returns a
            function of the model and the keyword arguments that makes the optimizer.
        kwargs: keyword arguments; "params", "model" or "optimizer_dict" among them is passed first,
            not the groups.
        model: the model.
        groups: the usual parameter groups.
    """
    build_optimizers_without_compiler()
    kind = optimizer_class if isinstance(optimizer_class, type) else type(optimizer_class)
    if issubclass(kind, (Optimizer, OptimizerFunction)):
        others = _without_kernel(kwargs, model)
        for name in ("params", "model", "optimizer_dict"):
            groups = others.pop(name, groups)
        optimizer = optimizer_class(groups, **others)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optim: {optimizer_class} made a {type(optimizer).__name__}, not an Optimizer."
            )
    else:
        optimizer = optimizer_class()(model, **kwargs)
    step_without_compiler(optimizer)
    libraries.keep_embeddings_whole(optimizer_class, kwargs, model)
    let_backward_step(optimizer)
    save_state_of_groups(optimizer)
    return optimizer


def _without_kernel(kwargs: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Drop `fused` on torch_xla, which has no such kernel, as its compiler fuses by itself."""
    if kwargs.get("fused") and any(
        parameter.device.type == "xla" for parameter in model.parameters()
    ):
        logger.info("fused=True is left out: torch_xla fuses the optimizer's operations by itself.")
        return {name: value for name, value in kwargs.items() if name != "fused"}
    return dict(kwargs)


def steps_in_backward(optimizer: Any) -> bool:
    """Return whether an optimizer steps in its own backward pass."""
    return callable(getattr(optimizer, "fused_backward", None))


def let_backward_step(optimizer: Any) -> None:
    """Give optimizers that step in the backward pass, which have no `step`, one that does nothing,
    as `accelerate`.

    Args:
        optimizer: any; others are not changed.
    """
    if steps_in_backward(optimizer):
        mark_as_stepped(optimizer, _no_step)


def _no_step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
    with torch.enable_grad():
        return None if closure is None else closure()


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(OptimizerDescription):
    """As the `optim*`, `learning_rate`, `weight_decay` and `adam_*` of `TrainingArguments`, for one
    optimizer.

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
            MissingLibraryError: an ImportError; the optimizer is one of a library that is not
                installed.
        """
        optimizer_class, kwargs = optimizer_class_and_kwargs(self, model)
        groups = parameter_groups(
            model, self.weight_decay, decay_names, rules=rules, lr=self.learning_rate
        )
        return build_optimizer(optimizer_class, kwargs, model, groups)
