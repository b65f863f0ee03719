"""Build parameter groups, with weight decay except for biases and norms."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..common.parameter_rules import settings_by_name

ALL_LAYERNORM_LAYERS: list[type[nn.Module]] = [nn.LayerNorm]
"""Layer classes without weight decay, under the name from transformers 4. Scripts may append
classes.
"""

# Matched against the lower-case name of a parameter. "norm" matches only as a whole word or after
# "_".
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Return the names of parameters with weight decay.

    Excluded are parameters of submodules whose class is in `ALL_LAYERNORM_LAYERS`, and parameters
    with "bias", "layernorm", "rmsnorm" or a part that is "norm" or ends in "_norm" in their name.

    Args:
        model: any module.

    Returns:
        Names in the order of the reference, children first. Parameters of a module with two names
        are listed under both, and parameters that are None are listed too.
    """
    names: list[str] = []
    _collect_names(model, "", names)
    return [name for name in names if not _NO_DECAY.search(name.lower())]


def _collect_names(module: nn.Module, prefix: str, names: list[str]) -> None:
    """Append the names of all parameters of a module, children first.

    Args:
        module: a module of the model.
        prefix: its name in the model with a trailing dot. Empty for the model itself.
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

    The first group has weight decay and the second has none. Groups of rules follow.

    Args:
        model: the model. Parameters with `requires_grad` are listed in the order of
            `named_parameters`.
        weight_decay: decay of the first group, and of rules that do not set it. None uses the
            optimizer's default.
        decay_names: names of the parameters in the first group. The default is
            `decay_parameter_names(model)`.
        rules: settings by patterns of names, see `settings_by_name`.
        lr: the learning rate that rules scale.

    Returns:
        Dicts with "params" and "weight_decay". The lists of the first two groups may be empty.
        Groups of rules also have "lr", and their patterns in "rules".
    """
    if decay_names is None:
        decay_names = decay_parameter_names(model)
    names_with_decay = frozenset(decay_names)
    decay_group: dict[str, Any] = {"params": [], "weight_decay": weight_decay}
    no_decay_group: dict[str, Any] = {"params": [], "weight_decay": 0.0}

    # Resolve the patterns to settings by parameter name.
    settings_by_parameter: Mapping[str, Mapping[str, Any]] = {}
    if rules:
        names = [name for name, _ in model.named_parameters()]
        settings_by_parameter = settings_by_name(rules, names)

    # Parameters with the same settings share a group.
    rule_groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        group = decay_group if name in names_with_decay else no_decay_group
        settings = settings_by_parameter.get(name, {})

        # A rule that only freezes a parameter does not change its group.
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

    # As in the reference, the first two groups are returned even if they are empty.
    groups = [decay_group, no_decay_group]
    for group in rule_groups.values():
        if group["params"]:
            groups.append(group)

    # If the decay is not set, the optimizer uses its default.
    for group in groups:
        if group["weight_decay"] is None:
            del group["weight_decay"]
    return groups


def _learning_rate(settings: Mapping[str, Any], lr: float) -> float:
    """Return the learning rate of a parameter from its rules and the optimizer's rate."""
    rate = settings.get("lr", lr)
    factor = settings.get("lr_factor", 1.0)
    decay_of_layer = settings.get("layer_decay", 1.0)
    return rate * factor * decay_of_layer


def freeze_parameters(model: nn.Module, rules: Mapping[str, Mapping[str, object]]) -> None:
    """Set `requires_grad` of parameters that rules freeze or unfreeze, permanently.

    Args:
        model: the model, which is changed in place.
        rules: settings by patterns of names, see `settings_by_name`.

    Raises:
        ValueError: a rule does not fit the model.
    """
    parameters = dict(model.named_parameters())
    for name, settings in settings_by_name(rules, parameters).items():
        if "frozen" in settings:
            parameters[name].requires_grad_(not settings["frozen"])


_STATE_KEY = "state"
"""Key under which GrokAdamW stores states in a parameter group."""


def save_group_state_by_index(optimizer: Optimizer) -> None:
    """Make GrokAdamW save the states in its parameter groups by parameter index.

    GrokAdamW uses the parameters themselves as keys. A parameter loaded from a file is another
    object than the model's, so a resumed training would start with an empty state.

    Args:
        optimizer: any optimizer. Only those of `grokadamw` are changed.
    """
    if type(optimizer).__module__.partition(".")[0] == "grokadamw":
        optimizer.register_state_dict_post_hook(_index_group_states)
        optimizer.register_load_state_dict_post_hook(_assign_group_states)


def _index_group_states(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Replace parameters by their indices in the group."""
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        if _STATE_KEY not in saved:
            continue

        indices = {parameter: index for index, parameter in enumerate(group["params"])}
        states_by_index: dict[int, object] = {}
        for parameter, state in saved[_STATE_KEY].items():
            states_by_index[indices[parameter]] = state
        saved[_STATE_KEY] = states_by_index


def _assign_group_states(optimizer: Optimizer) -> None:
    """Replace indices by the parameters of the group."""
    for group in optimizer.param_groups:
        if not group.get(_STATE_KEY):
            continue

        # Drop keys that are parameters: they were loaded from a file, and are not the model's.
        states: dict[nn.Parameter, Any] = {}
        for index, state in group[_STATE_KEY].items():
            if isinstance(index, int):
                states[group["params"][index]] = state
        group[_STATE_KEY] = states
