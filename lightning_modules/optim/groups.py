"""Parameter groups, with weight decay except on biases and norms; optimizer states in groups."""

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

# Matched against the full name of a parameter in lower case; "norm" only as a whole word or after
# "_".
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")


def decay_parameter_names(model: nn.Module) -> list[str]:
    """List the parameters that weight decay applies to, in one walk over the modules.

    Excluded are the parameters of layers in `ALL_LAYERNORM_LAYERS` below the model, and those
    with "bias", "layernorm", "rmsnorm" or a part that is "norm" or ends in "_norm" in their name.

    Args:
        model: any module.

    Returns:
        Names in the order of the reference: those of the children first. The parameters of a module
        with two names are listed under both, and a parameter that is None is listed too.
    """
    names: list[str] = []
    _collect_names(model, "", names)
    return [name for name in names if not _NO_DECAY.search(name.lower())]


def _collect_names(module: nn.Module, prefix: str, names: list[str]) -> None:
    """Append the names of all parameters below a module, those of its children first.

    Args:
        module: a module of the model.
        prefix: its name in the model with a dot; empty for the model itself.
        names: the list to extend.
    """
    layers_without_decay = tuple(ALL_LAYERNORM_LAYERS)
    for child_name, child in module.named_children():
        if not isinstance(child, layers_without_decay):
            _collect_names(child, f"{prefix}{child_name}.", names)

    # `named_parameters` would skip parameters that are None.
    for name in module._parameters:
        names.append(prefix + name)


def parameter_groups(
    model: nn.Module,
    weight_decay: float | None,
    decay_names: Collection[str] | None = None,
    rules: Mapping[str, Mapping[str, Any]] | None = None,
    lr: float = 0,
) -> list[dict[str, Any]]:
    """Return the parameter groups of `Trainer.create_optimizer`.

    The first group has weight decay, the second none; the groups of rules follow.

    Args:
        model: its parameters with `requires_grad` are listed, in the order of `named_parameters`.
        weight_decay: decay of the first group, and of rules that set none; None for the default of
            the optimizer.
        decay_names: names of the parameters in the first group, by default
            `decay_parameter_names(model)`.
        rules: settings by patterns of names, see `settings_by_name`.
        lr: the learning rate that rules change.

    Returns:
        Dicts with "params" and "weight_decay"; the first two lists may be empty. Groups of rules
        have their patterns in "rules", and "lr".
    """
    if decay_names is None:
        decay_names = decay_parameter_names(model)
    names_with_decay = frozenset(decay_names)
    decay_group: dict[str, Any] = {"params": [], "weight_decay": weight_decay}
    no_decay_group: dict[str, Any] = {"params": [], "weight_decay": 0.0}

    # Settings by the name of a parameter, from those by patterns.
    settings_of_parameters: Mapping[str, Mapping[str, Any]] = {}
    if rules:
        names = [name for name, _ in model.named_parameters()]
        settings_of_parameters = settings_by_name(rules, names)

    # Parameters with the same settings are in one group.
    rule_groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        group = decay_group if name in names_with_decay else no_decay_group
        settings = settings_of_parameters.get(name, {})

        # A rule that only freezes leaves a parameter in its group.
        changes_options = bool(settings.keys() - {"patterns", "frozen"})
        if changes_options:
            options = {
                "weight_decay": settings.get("weight_decay", group["weight_decay"]),
                "lr": _learning_rate(settings, lr),
                "rules": ", ".join(settings["patterns"]),
            }
            key = tuple(options.items())
            group = rule_groups.setdefault(key, {"params": [], **options})
        if parameter.requires_grad:
            group["params"].append(parameter)

    # The first two groups are listed even if they are empty, as the reference does.
    groups = [decay_group, no_decay_group]
    for group in rule_groups.values():
        if group["params"]:
            groups.append(group)

    # The optimizer has its own default for a decay that is not set.
    for group in groups:
        if group["weight_decay"] is None:
            del group["weight_decay"]
    return groups


def _learning_rate(settings: Mapping[str, Any], lr: float) -> float:
    """Return the learning rate that rules give a parameter, from that of the optimizer."""
    rate = settings.get("lr", lr)
    factor = settings.get("lr_factor", 1.0)
    decay_of_layer = settings.get("layer_decay", 1.0)
    return rate * factor * decay_of_layer


def freeze_parameters(model: nn.Module, rules: Mapping[str, Mapping[str, object]]) -> None:
    """Set `requires_grad` of the parameters that rules freeze or unfreeze, permanently.

    Args:
        model: changed in place.
        rules: settings by patterns of names, see `settings_by_name`.

    Raises:
        ValueError: a rule does not fit the model.
    """
    parameters = dict(model.named_parameters())
    for name, settings in settings_by_name(rules, parameters).items():
        if "frozen" in settings:
            parameters[name].requires_grad_(not settings["frozen"])


_STATE_KEY = "state"
"""Key of the state that GrokAdamW keeps in a parameter group."""


def save_group_state_by_index(optimizer: Optimizer) -> None:
    """Save the state that GrokAdamW keeps in its groups by the index of each parameter.

    GrokAdamW itself saves it by the parameter. A parameter read from a file is not that of the
    model, so a resumed training would start with an empty state.

    Args:
        optimizer: any; only those of `grokadamw` are changed.
    """
    if type(optimizer).__module__.partition(".")[0] == "grokadamw":
        optimizer.register_state_dict_post_hook(_index_group_states)
        optimizer.register_load_state_dict_post_hook(_assign_group_states)


def _index_group_states(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Replace the parameters by their indices in the group."""
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        if _STATE_KEY not in saved:
            continue

        indices = {parameter: index for index, parameter in enumerate(group["params"])}
        states_by_index: dict[int, object] = {}
        for parameter, state in saved[_STATE_KEY].items():
            states_by_index[indices[parameter]] = state
        saved[_STATE_KEY] = states_by_index


def _assign_group_states(optimizer: Optimizer) -> None:
    """Replace the indices by the parameters of the group."""
    for group in optimizer.param_groups:
        if not group.get(_STATE_KEY):
            continue

        # A key that is a parameter was read from a file, and is none of the model.
        states: dict[nn.Parameter, Any] = {}
        for index, state in group[_STATE_KEY].items():
            if isinstance(index, int):
                states[group["params"][index]] = state
        group[_STATE_KEY] = states
