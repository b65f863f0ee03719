"""Parameter groups as documented, with weight decay except on biases and norms, and optimizer
states kept in groups.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..common.parameter_rules import settings_by_name

ALL_LAYERNORM_LAYERS: list[type[nn.Module]] = [nn.LayerNorm]
"""Classes of layers without weight decay, under the name of transformers 4; scripts may append
their own.
"""

# Looked for in the lower case name of a parameter, from the model down: "norm" only as a whole word
# or after "_".
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")


def decay_parameter_names(model: nn.Module) -> list[str]:
    """As `Trainer.get_decay_parameter_names`, but one walk over the modules instead of one per
    level.

    Left out are the parameters of the layers in `ALL_LAYERNORM_LAYERS` below the model, and those
    with "bias", "layernorm", "rmsnorm" or a part that is "norm" or ends in "_norm" in their name.

    Args:
        model: any module.

    Returns:
        Names in the reference's order: those of the children first. A module that is reached in two
        ways is listed twice, and a parameter that is None is listed too.
    """
    names: list[str] = []
    _collect_names(model, "", names)
    return [name for name in names if not _NO_DECAY.search(name.lower())]


def _collect_names(module: nn.Module, prefix: str, names: list[str]) -> None:
    for child_name, child in module.named_children():
        if not isinstance(child, tuple(ALL_LAYERNORM_LAYERS)):
            _collect_names(child, f"{prefix}{child_name}.", names)
    names.extend(prefix + name for name in module._parameters)


def parameter_groups(
    model: nn.Module,
    weight_decay: float | None,
    decay_names: Collection[str] | None = None,
    rules: Any = None,
    lr: float = 0,
) -> list[dict[str, Any]]:
    """Return the parameter groups of `Trainer.create_optimizer`: with weight decay, without, then
    those of rules.

    Args:
        model: its parameters with `requires_grad` are listed, in the order of `named_parameters`.
        weight_decay: decay of the first group, and of rules without another; None for the
            optimizer's own, which its default arguments set.
        decay_names: names of the parameters in the first group, by default
            `decay_parameter_names(model)`.
        rules: settings by patterns of names, see `settings_by_name`.
        lr: the learning rate that rules change.

    Returns:
        Dicts with "params" and "weight_decay"; the first two lists may be empty. Groups of rules
        have their patterns in "rules", and "lr".
    """
    decaying = frozenset(decay_parameter_names(model) if decay_names is None else decay_names)
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": weight_decay},
        {"params": [], "weight_decay": 0.0},
    ]
    ruled = settings_by_name(rules, [name for name, _ in model.named_parameters()]) if rules else {}
    others: dict[Any, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        settings = ruled.get(name, {})
        group = groups[name not in decaying]
        if settings.keys() - {"patterns", "frozen"}:
            rate = (
                settings.get("lr", lr)
                * settings.get("lr_factor", 1.0)
                * settings.get("layer_decay", 1.0)
            )
            decay = settings.get("weight_decay", group["weight_decay"])
            patterns = ", ".join(settings["patterns"])
            own = {"weight_decay": decay, "lr": rate, "rules": patterns}
            group = others.setdefault(tuple(own.items()), {"params": [], **own})
        if parameter.requires_grad:
            group["params"].append(parameter)
    groups += [group for group in others.values() if group["params"]]
    for group in groups:
        if group["weight_decay"] is None:
            del group["weight_decay"]
    return groups


def freeze_parameters(model: nn.Module, rules: Mapping[str, Mapping[str, Any]]) -> None:
    """Set `requires_grad` of the parameters for which rules say whether they are frozen; it stays
    so.

    Args:
        model: the model.
        rules: settings by patterns of names, see `settings_by_name`.

    Raises:
        ValueError: a rule does not fit the model.
    """
    named = dict(model.named_parameters())
    for name, settings in settings_by_name(rules, named).items():
        if "frozen" in settings:
            named[name].requires_grad_(not settings["frozen"])


_KEY = "state"


def save_state_of_groups(optimizer: Any) -> None:
    """Save the state that GrokAdamW keeps in its groups by parameter index, not by the parameter
    itself.

    A parameter read from a file is not that of the model, so that a resumed training would start
    with an empty state.

    Args:
        optimizer: any; only those of `grokadamw` are concerned.
    """
    if type(optimizer).__module__.partition(".")[0] == "grokadamw":
        optimizer.register_state_dict_post_hook(_under_places)
        optimizer.register_load_state_dict_post_hook(_under_parameters)


def _under_places(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        if _KEY in saved:
            places = {parameter: place for place, parameter in enumerate(group["params"])}
            saved[_KEY] = {places[parameter]: state for parameter, state in saved[_KEY].items()}


def _under_parameters(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        states = group.get(_KEY, {}).items()
        if states:
            group[_KEY] = {
                group["params"][place]: state for place, state in states if isinstance(place, int)
            }
