"""Rules for parameters by patterns of their names; without torch, so that arguments are checked
before it is loaded.
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


def rule_faults(rules: Mapping[Any, Any]) -> Iterator[str]:
    """Yield a sentence for each error in rules that shows without a model."""
    for pattern, settings in rules.items():
        said = f"parameter_rules: {pattern!r}: "
        if not isinstance(pattern, str) or not isinstance(settings, Mapping) or not settings:
            yield (
                f"{said}{settings!r} must be a dict for a pattern of names, such as 'head.*': "
                "{'lr_factor': 10}."
            )
            continue
        for key, value in settings.items():
            if key not in KEYS:
                yield (
                    f"{said}{key!r} is not known.{did_you_mean(key, KEYS)} Choose from: "
                    f"{', '.join(KEYS)}."
                )
            elif key == "frozen" and not isinstance(value, bool):
                yield f"{said}frozen={value!r} must be True or False."
            elif key != "frozen" and not (type(value) in (int, float) and 0 <= value < math.inf):
                yield (
                    f"{said}{key}={value!r} must be a number of at least 0 (in YAML, 1e-4 is text: "
                    "write 1.0e-4)."
                )


def plain_name(name: str) -> str:
    """Return the name of a parameter without the parts that wrappers of layers add."""
    return _WRAPPERS.sub("", name)


def settings_by_name(
    rules: Mapping[str, Mapping[str, Any]], names: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter: of several patterns that match, a later one overrides
    an earlier one.

    Args:
        rules: settings by pattern, as in `fnmatch`, of the whole name of a parameter, or of a
            module that has it.
        names: of all parameters.

    Returns:
        By name, `patterns` that match, and their settings; the `layer_decay` as the factor that it
        comes to.

    Raises:
        ValueError: a pattern matches no parameter, or has a `layer_decay` and a name without a
            number.
    """
    found: dict[str, dict[str, Any]] = {name: {"patterns": []} for name in names}
    for pattern, settings in rules.items():
        matched = [
            one
            for one in found
            if any(fnmatchcase(plain_name(one), p) for p in (pattern, f"{pattern}.*"))
        ]
        if not matched:
            some = [plain_name(name) for name in found]
            near = did_you_mean(pattern, ".".join(some).split("."))
            raise ValueError(
                f"parameter_rules: {pattern!r} matches no parameter of the model.{near} Patterns "
                "are compared with the whole names in model.named_parameters(), such as "
                f"{', '.join(some[:3])}, or with those of modules."
            )
        layers = [
            _layer(pattern, plain_name(name)) if "layer_decay" in settings else 0
            for name in matched
        ]
        for name, layer in zip(matched, layers, strict=True):
            found[name].update(settings, patterns=[*found[name]["patterns"], pattern])
            if "layer_decay" in settings:
                found[name]["layer_decay"] = settings["layer_decay"] ** (max(layers) - layer)
    return found


def _layer(pattern: str, name: str) -> int:
    """Return the first whole number in a name after what is fixed in the pattern, up to its
    first wildcard.
    """
    fixed = re.split(r"[*?\[]", f"{pattern}.")[0].rpartition(".")[0]
    if number := re.search(r"(?:^|\.)(\d+)(?:\.|$)", name[len(fixed) :]):
        return int(number[1])
    said = (
        f"parameter_rules: {pattern!r}: layer_decay needs the number of a layer in each name, and "
        f"{name!r} has none"
    )
    raise ValueError(f"{said}. Narrow the pattern, such as 'encoder.layer.*'.")
