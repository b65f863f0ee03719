"""Optimizers of bitsandbytes, with state in 8 bits, or paged out of the GPU's memory."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import Any

from torch import nn

from .arguments import flag
from .optional import Library
from .request import ClassAndKwargs, OptimizerRequest

logger = logging.getLogger(__name__)

BITSANDBYTES = Library(package="bitsandbytes", pip="bitsandbytes")

_CLASSES = {"adamw": "AdamW", "ademamix": "AdEMAMix", "lion": "Lion", "rmsprop": "RMSprop"}


def bitsandbytes(request: OptimizerRequest) -> ClassAndKwargs:
    """All whose name has `bnb`, `8bit`, `32bit` or `paged`, and `ademamix`."""
    name = request.name.value
    (kind,) = re.findall("|".join(_CLASSES), name)
    (optimizer,) = BITSANDBYTES.load(request.name, "bitsandbytes.optim", _CLASSES[kind])
    kwargs: dict[str, Any] = {"optim_bits": 8 if "8bit" in name else 32}
    if kind == "rmsprop":
        return optimizer, {**_rmsprop(request), **kwargs}
    own = {"adamw": _adamw, "ademamix": _ademamix, "lion": _lion}[kind](request)
    return optimizer, {**own, **kwargs, "is_paged": "paged" in name}


def keep_embeddings_whole(optimizer_class: Any, kwargs: dict[str, Any], model: nn.Module) -> None:
    """Tell bitsandbytes to keep 32 bits of state for embeddings, whose gradients vary too much for 8.

    Args:
        optimizer_class: any; only 8-bit ones of bitsandbytes are concerned.
        kwargs: its arguments.
        model: its modules are looked through.
    """
    if "bitsandbytes" not in str(optimizer_class) or kwargs.get("optim_bits") != 8:
        return
    manager = import_module("bitsandbytes.optim").GlobalOptimManager.get_instance()
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    for module in embeddings:
        manager.register_module_override(module, "weight", {"optim_bits": 32})
    weights = {module.weight.data_ptr(): module.weight.numel() for module in embeddings}
    logger.info("%s embeddings (%s weights) have 32-bit optimizer state.", len(weights), f"{sum(weights.values()):,}")


def _adamw(request: OptimizerRequest) -> dict[str, Any]:
    return request.adam


def _lion(request: OptimizerRequest) -> dict[str, Any]:
    return {"betas": request.adam["betas"]}


def _ademamix(request: OptimizerRequest) -> dict[str, Any]:
    config, take = request.config, request.arguments.take
    betas = (take("beta1", float, config.beta1), take("beta2", float, config.beta2), take("beta3", float, 0.9999))
    numbers = {"alpha": take("alpha", float, 5.0), "eps": take("eps", float, config.epsilon)}
    return {"betas": betas, **numbers, **request.arguments.given(int, "t_alpha", "t_beta3")}


def _rmsprop(request: OptimizerRequest) -> dict[str, Any]:
    """Read as numbers, where the reference passes texts, with which bitsandbytes cannot compute."""
    given = request.arguments.given
    numbers = given(float, "alpha", "eps", "weight_decay", "momentum") | given(int, "min_8bit_size")
    return numbers | given(flag, "centered")
