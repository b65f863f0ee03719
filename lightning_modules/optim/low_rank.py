"""GaLore and APOLLO: Adam, or Adafactor, with the gradients of some linear layers projected to a
low rank.

Zhao et al., "GaLore" (arXiv:2403.03507), and Zhu et al., "APOLLO" (arXiv:2412.05270).
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..common.suggestions import OptimizerNames, did_you_mean
from .layerwise import LayerwiseOptimizer
from .libraries import load
from .request import ClassAndKwargs, OptimizerRequest, TargetModules

logger = logging.getLogger(__name__)


def galore(request: OptimizerRequest) -> ClassAndKwargs:
    """Return an optimizer of GaLore; the reference drops the arguments of
    `galore_adafactor_layerwise`.
    """
    is_adafactor = "adafactor" in request.name.value
    is_8bit = "8bit" in request.name.value
    member = "GaLoreAdafactor" if is_adafactor else "GaLoreAdamW8bit" if is_8bit else "GaLoreAdamW"
    optimizer = load(request.name, "galore-torch", "galore_torch", member)
    _allow_in_checkpoints("galore_torch.galore_projector", "GaLoreProjector")
    projection = request.arguments.take(rank=128, update_proj_gap=200, scale=0.25, proj_type="std")
    own = {"scale_parameter": False, "relative_step": False} if is_adafactor else {}
    return _low_rank(request, optimizer, projection, own)


def apollo(request: OptimizerRequest) -> ClassAndKwargs:
    """Return an optimizer of APOLLO; betas and epsilon are for the projected layers only, as in
    the reference.
    """
    optimizer = load(request.name, "apollo-torch", "apollo_torch", "APOLLOAdamW")
    _allow_in_checkpoints("apollo_torch.random_projector", "GradientProjector")
    _allow_in_checkpoints("apollo_torch.svd_projector", "GaLoreProjector")
    projection = request.arguments.take(
        rank=128,
        proj="random",
        scale_type="channel",
        update_proj_gap=200,
        scale=1.0,
        proj_type="std",
    )
    return _low_rank(request, optimizer, {**projection, **request.adam}, {})


def _allow_in_checkpoints(module: str, name: str) -> None:
    """Allow a class of projections, which holds only numbers and tensors, in `optimizer.pt`."""
    try:
        torch.serialization.add_safe_globals([getattr(import_module(module), name)])
    # another version of the library, with the class elsewhere
    except (ImportError, AttributeError):
        logger.debug("%s has no %s", module, name)


def _low_rank(
    request: OptimizerRequest, optimizer: Any, projection: dict[str, Any], kwargs: dict[str, Any]
) -> ClassAndKwargs:
    """Return the class and its arguments, including the groups of unprojected and projected
    parameters.
    """
    if request.config.weight_decay:
        logger.warning(
            "weight_decay=%s has no effect on %r.", request.config.weight_decay, request.name.value
        )
    model = request.require_model()
    layers = target_layers(request.name, model, request.config.target_modules)
    names = {f"{layer}.weight" for layer in layers}
    named = dict(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [named[name] for name in named if name not in names]}
    ]
    groups.append({"params": [named[name] for name in named if name in names], **projection})
    if "layerwise" not in request.name.value:
        return optimizer, {**kwargs, "params": groups}
    kwargs["lr"] = request.config.learning_rate
    optimizers = {
        parameter: optimizer([{**group, "params": [parameter]}], **kwargs)
        for group in groups
        for parameter in group["params"]
    }
    return LayerwiseOptimizer, {"optimizer_dict": optimizers}


def target_layers(
    name: OptimizerNames, model: nn.Module, targets: TargetModules | None
) -> list[str]:
    """Return names of the linear layers that match, in the order of `named_modules`.

    An entry of a list is a part of the name or a regular expression for all of it. Entries that
    match no linear layer are named in a warning; the reference ignores those that match no module
    at all.

    Args:
        name: the optimizer, for the messages.
        model: its modules are looked through.
        targets: what the user wrote.

    Raises:
        ValueError: when nothing was written, it cannot be read, or means no linear layer; shows
            those of the model.
    """
    if targets is None:
        raise ValueError(
            f"optim={name.value!r} needs optim_target_modules, the linear layers to work on: "
            "'all-linear', a regular expression, or a list of parts of names such as ['attn', "
            "'mlp']."
        )
    entries = [targets] if isinstance(targets, str) else targets
    modules = dict(model.named_modules())
    linear = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
    if isinstance(targets, str) and targets.replace("_", "-") == "all-linear":
        found = linear
    else:
        parts = not isinstance(targets, str)
        meant = {
            one: [p for p in modules if (parts and one in p) or re.fullmatch(one, p)]
            for one in entries
        }
        found = [path for path in linear if any(path in paths for paths in meant.values())]
        idle = [entry for entry, paths in meant.items() if not set(paths) & set(linear)]
        if found and idle:
            logger.warning(
                "optim_target_modules: %s names no linear layer, on which alone %r works.",
                idle,
                name.value,
            )
    if not found:
        present = ", ".join(map(repr, linear[:10])) or "none at all"
        raise ValueError(
            f"optim_target_modules={targets!r} names no linear layer of the model, and "
            f"optim={name.value!r} works on these "
            f"alone.{did_you_mean(entries[0] if entries else '', linear)} Write 'all-linear', a "
            f"regular expression, or a list of parts of names. The model has: {present}."
        )
    return found
