"""From the name of an optimizer to its class, and from there to an optimizer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from ..common.suggestions import OptimizerNames
from . import bits, libraries, low_rank, native
from .arguments import OptimizerArguments
from .fused import let_backward_step
from .group_state import save_state_of_groups
from .request import Builder, ClassAndKwargs, OptimizerRequest

if TYPE_CHECKING:
    from .description import OptimizerDescription

__all__ = ["BUILDERS", "build_optimizer", "optimizer_class_and_kwargs"]

logger = logging.getLogger(__name__)

BUILDERS: dict[OptimizerNames, Builder] = {
    OptimizerNames.ADAMW_TORCH: native.adamw,
    OptimizerNames.ADAMW_TORCH_FUSED: native.adamw_fused,
    OptimizerNames.ADAFACTOR: native.adafactor,
    OptimizerNames.SGD: native.sgd,
    OptimizerNames.ADAGRAD: native.adagrad,
    OptimizerNames.RMSPROP: native.rmsprop,
    OptimizerNames.ADAMW_TORCH_XLA: libraries.xla,
    OptimizerNames.ADAMW_TORCH_NPU_FUSED: libraries.npu,
    OptimizerNames.ADAMW_APEX_FUSED: libraries.apex,
    OptimizerNames.ADAMW_ANYPRECISION: libraries.any_precision,
    OptimizerNames.ADAMW_TORCH_4BIT: libraries.torchao,
    OptimizerNames.ADAMW_TORCH_8BIT: libraries.torchao,
    OptimizerNames.ADAMW_BNB: bits.bitsandbytes,
    OptimizerNames.ADAMW_8BIT: bits.bitsandbytes,
    OptimizerNames.PAGED_ADAMW: bits.bitsandbytes,
    OptimizerNames.PAGED_ADAMW_8BIT: bits.bitsandbytes,
    OptimizerNames.ADEMAMIX: bits.bitsandbytes,
    OptimizerNames.ADEMAMIX_8BIT: bits.bitsandbytes,
    OptimizerNames.PAGED_ADEMAMIX: bits.bitsandbytes,
    OptimizerNames.PAGED_ADEMAMIX_8BIT: bits.bitsandbytes,
    OptimizerNames.LION: bits.bitsandbytes,
    OptimizerNames.LION_8BIT: bits.bitsandbytes,
    OptimizerNames.PAGED_LION: bits.bitsandbytes,
    OptimizerNames.PAGED_LION_8BIT: bits.bitsandbytes,
    OptimizerNames.RMSPROP_BNB: bits.bitsandbytes,
    OptimizerNames.RMSPROP_8BIT: bits.bitsandbytes,
    OptimizerNames.RMSPROP_32BIT: bits.bitsandbytes,
    OptimizerNames.GALORE_ADAMW: low_rank.galore,
    OptimizerNames.GALORE_ADAMW_8BIT: low_rank.galore,
    OptimizerNames.GALORE_ADAFACTOR: low_rank.galore,
    OptimizerNames.GALORE_ADAMW_LAYERWISE: low_rank.galore,
    OptimizerNames.GALORE_ADAMW_8BIT_LAYERWISE: low_rank.galore,
    OptimizerNames.GALORE_ADAFACTOR_LAYERWISE: low_rank.galore,
    OptimizerNames.APOLLO_ADAMW: low_rank.apollo,
    OptimizerNames.APOLLO_ADAMW_LAYERWISE: low_rank.apollo,
    OptimizerNames.LOMO: libraries.lomo,
    OptimizerNames.ADALOMO: libraries.lomo,
    OptimizerNames.GROKADAMW: libraries.grokadamw,
    OptimizerNames.SCHEDULE_FREE_RADAM: libraries.schedule_free,
    OptimizerNames.SCHEDULE_FREE_ADAMW: libraries.schedule_free,
    OptimizerNames.SCHEDULE_FREE_SGD: libraries.schedule_free,
    OptimizerNames.STABLE_ADAMW: libraries.stable_adamw,
}
"""What makes the class and its arguments, for each optimizer."""


def optimizer_class_and_kwargs(config: OptimizerDescription, model: nn.Module | None = None) -> ClassAndKwargs:
    """As `Trainer.get_optimizer_cls_and_kwargs`, but arguments that the optimizer does not know are named in a warning.

    Args:
        config: which optimizer, and its numbers.
        model: needed by GaLore, APOLLO and LOMO.

    Returns:
        The class, and the keyword arguments it takes beside the parameter groups. Among them may be "params", "model"
        or "optimizer_dict", which then is passed in the place of the usual groups, see `build_optimizer`.

    Raises:
        MissingLibraryError: an ImportError; the optimizer is one of a library that is not installed.
        ValueError: when `config.args` cannot be read, or the model is needed and not there.
    """
    name = OptimizerNames(config.name)
    arguments = OptimizerArguments(config.args)
    optimizer_class, kwargs = BUILDERS[name](OptimizerRequest(config=config, arguments=arguments, model=model))
    if arguments.left:
        logger.warning("The optimizer %r does not use the arguments %s of %r.", name.value, arguments.left, config.args)
    if kwargs.get("weight_decay", config.weight_decay) != config.weight_decay:
        logger.warning(
            "weight_decay=%s among the optimizer arguments has no effect: `weight_decay` (%s) sets it.",
            kwargs["weight_decay"],
            config.weight_decay,
        )
    return optimizer_class, {"lr": config.learning_rate, **kwargs}


def build_optimizer(optimizer_class: Any, kwargs: dict[str, Any], model: nn.Module, groups: Any) -> Any:
    """As the second half of `Trainer.create_optimizer`: an optimizer of a class, its arguments and parameter groups.

    Args:
        optimizer_class: a class of optimizers; or what makes, when called without arguments, a function of the model
            and the keyword arguments that returns the optimizer.
        kwargs: keyword arguments; "params", "model" or "optimizer_dict" among them is passed first, not the groups.
        model: the model.
        groups: the usual parameter groups.
    """
    if isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer):
        others = _without_kernel(kwargs, model)
        for name in ("params", "model", "optimizer_dict"):
            groups = others.pop(name, groups)
        optimizer = optimizer_class(groups, **others)
    else:
        optimizer = optimizer_class()(model, **kwargs)
    bits.keep_embeddings_whole(optimizer_class, kwargs, model)
    let_backward_step(optimizer)
    save_state_of_groups(optimizer)
    return optimizer


def _without_kernel(kwargs: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Arguments without `fused` where torch has no such kernel: with torch_xla, whose compiler fuses by itself."""
    if kwargs.get("fused") and any(parameter.device.type == "xla" for parameter in model.parameters()):
        logger.info("fused=True is left out: torch_xla fuses the optimizer's operations by itself.")
        return {name: value for name, value in kwargs.items() if name != "fused"}
    return dict(kwargs)
