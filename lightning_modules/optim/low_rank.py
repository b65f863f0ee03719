"""Build GaLore and APOLLO: Adam or Adafactor with low-rank gradients of some linear layers.

Zhao et al., "GaLore" (arXiv:2403.03507), and Zhu et al., "APOLLO" (arXiv:2412.05270).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..common.enums import OptimizerNames
from ..common.suggestions import did_you_mean
from .layerwise import LayerwiseOptimizer
from .libraries import load
from .request import ClassAndKwargs, OptimizerRequest, TargetModules

logger = logging.getLogger(__name__)


def build_galore(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of a GaLore optimizer.

    The reference ignores the arguments of `galore_adafactor_layerwise`; here they are used.
    """
    member = "GaLoreAdamW"
    kwargs: dict[str, Any] = {}
    if "adafactor" in request.name.value:
        member = "GaLoreAdafactor"
        kwargs = {"scale_parameter": False, "relative_step": False}
    elif "8bit" in request.name.value:
        member = "GaLoreAdamW8bit"
    optimizer = load(request.name, "galore-torch", "galore_torch", member)
    _allow_in_checkpoints("galore_torch.galore_projector", "GaLoreProjector")
    projection = request.arguments.take(rank=128, update_proj_gap=200, scale=0.25, proj_type="std")
    return _class_and_grouped_kwargs(request, optimizer, projection, kwargs)


def build_apollo(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of an APOLLO optimizer.

    As in the reference, betas and epsilon apply only to the projected layers.
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
    return _class_and_grouped_kwargs(request, optimizer, {**projection, **request.adam}, {})


def _allow_in_checkpoints(module: str, name: str) -> None:
    """Allow loading a projector class, which only holds plain values, from `optimizer.pt`."""
    try:
        torch.serialization.add_safe_globals([getattr(import_module(module), name)])
    except (ImportError, AttributeError):
        # In another version of the library, the class may be in another module.
        logger.debug("%s has no %s", module, name)


def _class_and_grouped_kwargs(
    request: OptimizerRequest, optimizer: Any, projection: dict[str, Any], kwargs: dict[str, Any]
) -> ClassAndKwargs:
    """Return the class and its arguments, which include the parameter groups.

    The second group contains the projected parameters.
    """
    if request.config.weight_decay:
        logger.warning(
            "weight_decay=%s has no effect on %r.", request.config.weight_decay, request.name.value
        )

    model = request.require_model()
    layers = target_layers(request.name, model, request.config.target_modules)
    projected_names = {f"{layer}.weight" for layer in layers}
    plain_group = {"params": []}
    projected_group = {"params": [], **projection}
    for name, parameter in model.named_parameters():
        group = plain_group
        if name in projected_names:
            group = projected_group
        group["params"].append(parameter)
    groups = [plain_group, projected_group]
    if "layerwise" not in request.name.value:
        return optimizer, {**kwargs, "params": groups}

    # Create one optimizer for each parameter, with the options of its group. The learning rate must
    # be passed here, because these optimizers are created here.
    kwargs["lr"] = request.config.learning_rate
    optimizers: dict[nn.Parameter, Optimizer] = {}
    for group in groups:
        for parameter in group["params"]:
            optimizers[parameter] = optimizer([{**group, "params": [parameter]}], **kwargs)
    return LayerwiseOptimizer, {"optimizer_dict": optimizers}


def target_layers(
    name: OptimizerNames, model: nn.Module, targets: TargetModules | None
) -> list[str]:
    """Return the names of linear layers to project, in the order of `named_modules`.

    An entry of a list matches if it is a part of the name, or a regular expression for the whole
    name. Entries that match no linear layer are logged as a warning; the reference ignores those
    that match no module.

    Args:
        name: the optimizer, for messages.
        model: the model.
        targets: the user's `optim_target_modules`.

    Raises:
        ValueError: `targets` is missing, or matches no linear layer. The message lists the model's.
    """
    if targets is None:
        raise ValueError(
            f"optim={name.value!r} needs optim_target_modules, the linear layers whose gradients "
            "are projected: 'all-linear', a regular expression, or a list of parts of names such "
            "as ['attn', 'mlp']."
        )
    linear_layers: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            linear_layers.append(path)

    # A string is a regular expression for whole names. Only list entries may be parts of names.
    is_single = isinstance(targets, str)
    if is_single and targets.replace("_", "-") == "all-linear":
        matched = linear_layers
        unmatched_entries: list[str] = []
        entries = [targets]
    else:
        entries = targets
        if is_single:
            entries = [targets]
        matched, unmatched_entries = _match_layers(
            linear_layers, entries, allow_parts=not is_single
        )

    if matched and unmatched_entries:
        logger.warning(
            "optim_target_modules: %s matches no linear layer, and %r projects only linear layers.",
            unmatched_entries,
            name.value,
        )
    if not matched:
        examples = ", ".join(map(repr, linear_layers[:10])) or "no linear layer"
        suggestion = ""
        if entries:
            suggestion = did_you_mean(entries[0], linear_layers)
        raise ValueError(
            f"optim_target_modules={targets!r} matches no linear layer of the model, and "
            f"optim={name.value!r} projects only linear layers.{suggestion} Pass 'all-linear', a "
            f"regular expression, or a list of parts of names. The model has: {examples}."
        )
    return matched


def _match_layers(
    layers: Sequence[str], entries: Sequence[str], *, allow_parts: bool
) -> tuple[list[str], list[str]]:
    """Return the layers that match an entry, and the entries that match no layer."""
    matched: set[str] = set()
    unmatched_entries: list[str] = []
    for entry in entries:
        matched_by_entry: set[str] = set()
        for layer in layers:
            is_part = allow_parts and entry in layer
            if is_part or re.fullmatch(entry, layer):
                matched_by_entry.add(layer)
        if not matched_by_entry:
            unmatched_entries.append(entry)
        matched |= matched_by_entry
    return [layer for layer in layers if layer in matched], unmatched_entries
