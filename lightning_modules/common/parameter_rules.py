"""Resolve rules that set options of parameters by name pattern.

Does not import torch, so that arguments can be checked before torch is imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from .suggestions import did_you_mean

KEYS = ("lr", "lr_factor", "weight_decay", "layer_decay", "frozen")
_WRAPPERS = re.compile(r"_(?:fsdp_wrapped_module|checkpoint_wrapped_module|orig_mod)\.")


def rule_problems(rules: Mapping[Any, object]) -> Iterator[str]:
    """Yield a message for each error in rules that can be found without a model."""
    for pattern, settings in rules.items():
        argument = f"parameter_rules: {pattern!r}"
        if not isinstance(pattern, str) or not isinstance(settings, Mapping) or not settings:
            yield (
                f"{argument}: {settings!r} must be a dict for a pattern of names, such as "
                "'head.*': {'lr_factor': 10}."
            )
            continue
        for key, value in settings.items():
            problem = _setting_problem(key, value)
            if problem is not None:
                yield f"{argument}: {problem}"


def _setting_problem(key: object, value: Any) -> str | None:
    """Return the problem of one setting of a rule, or None."""
    if key not in KEYS:
        near = did_you_mean(key, KEYS)
        return f"{key!r} is not known.{near} Choose from: {', '.join(KEYS)}."
    if key == "frozen":
        if isinstance(value, bool):
            return None
        return f"frozen={value!r} must be True or False."
    is_number = type(value) in (int, float)
    if is_number and 0 <= value < math.inf:
        return None
    return f"{key}={value!r} must be a number of at least 0 (in YAML, 1e-4 is text: write 1.0e-4)."


def plain_name(name: str) -> str:
    """Return the name of a parameter without the parts that FSDP, checkpoint and compile wrappers
    add.
    """
    return _WRAPPERS.sub("", name)


def settings_by_name(
    rules: Mapping[str, Mapping[str, Any]], names: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter.

    If several patterns match, later ones override earlier ones.

    Args:
        rules: settings by `fnmatch` pattern, which must match the whole name of a parameter or of a
            module that contains it.
        names: the names of all parameters.

    Returns:
        For each name, the matching `patterns` and the merged settings. `layer_decay` is replaced by
        the resulting factor.

    Raises:
        ValueError: a pattern matches no parameter, or has a `layer_decay` and a name without a
            number.
    """
    by_name: dict[str, dict[str, Any]] = {name: {"patterns": []} for name in names}
    for pattern, settings in rules.items():
        matching = [name for name in by_name if _matches(name, pattern)]
        if not matching:
            raise ValueError(_no_match_message(pattern, by_name))
        for name in matching:
            patterns = [*by_name[name]["patterns"], pattern]
            by_name[name].update(settings, patterns=patterns)

        # The last layer has the full learning rate. It decreases towards the first layer.
        if "layer_decay" in settings:
            layers = {name: _layer(pattern, plain_name(name)) for name in matching}
            last_layer = max(layers.values())
            for name, layer in layers.items():
                factor = settings["layer_decay"] ** (last_layer - layer)
                by_name[name]["layer_decay"] = factor
    return by_name


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a parameter or a module that contains it."""
    plain = plain_name(name)
    return fnmatchcase(plain, pattern) or fnmatchcase(plain, f"{pattern}.*")


def _no_match_message(pattern: str, names: Iterable[str]) -> str:
    plain_names = [plain_name(name) for name in names]
    near = did_you_mean(pattern, ".".join(plain_names).split("."))
    return (
        f"parameter_rules: {pattern!r} matches no parameter of the model.{near} Patterns are "
        "compared with the whole names in model.named_parameters(), such as "
        f"{', '.join(plain_names[:3])}, or with those of modules."
    )


def _layer(pattern: str, name: str) -> int:
    """Return the layer number in a name.

    This is the first integer after the part of the pattern before its first wildcard.
    """
    fixed = re.split(r"[*?\[]", f"{pattern}.")[0].rpartition(".")[0]
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name[len(fixed) :])
    if number is None:
        raise ValueError(
            f"parameter_rules: {pattern!r}: layer_decay needs a layer number in each name, but "
            f"{name!r} has none. Use a narrower pattern, such as 'encoder.layer.*'."
        )
    return int(number[1])
