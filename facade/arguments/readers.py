"""Readers of training arguments that need more than their type.

Each is an `argument.Reader`: it takes name and value, and returns the value to store. A ValueError
has one argument for each fault, all of which `rules.report` shows.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...callbacks.loggers.availability import TRACKERS
from ...lightning_modules.common.parameter_rules import rule_problems
from ...lightning_modules.common.schedule_curves import number_problems
from ..distributed.xla_device import xla_is_chosen
from .argument import member_of, read_dict, read_members, unknown_choice, wrong_type
from .enums import DebugOption, OptimizerNames

_read_optimizer_name = member_of(OptimizerNames)


def read_optimizer(name: str, value: object) -> str | OptimizerNames:
    """Read the name of an optimizer; the path of a class, which has a dot, stays text."""
    if isinstance(value, str) and "." in value:
        return value
    return _read_optimizer_name(name, value)


def read_schedule_settings(name: str, value: object) -> Mapping[str, Any]:
    """Read the settings of a schedule."""
    settings = read_dict(name, value)
    problems = [f"{name}: {problem}" for problem in number_problems(settings)]
    if problems:
        raise ValueError(*problems)
    return settings


def read_parameter_rules(name: str, value: object) -> Mapping[str, Any]:
    """Read settings by patterns of the names of parameters."""
    rules = read_dict(name, value)
    problems = list(rule_problems(rules))
    if problems:
        raise ValueError(*problems)
    return rules


def read_layer_settings(name: str, value: object) -> Mapping[str, Any]:
    """Read the settings of activation checkpointing."""
    settings = read_dict(name, value)
    every = settings.get("every_n_layers", 1)
    offload = settings.get("offload", False)
    if type(every) is not int or every < 1:
        raise ValueError(f"{name}: every_n_layers={every!r} must be a whole number of at least 1.")
    if not isinstance(offload, bool):
        raise ValueError(f"{name}: offload={offload!r} must be True or False.")
    return settings


def read_cache_steps(name: str, value: object) -> int:
    """Read `torch_empty_cache_steps`; as in transformers, floats such as 1e3 are refused."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"{name}={value!r} must be a whole number above 0. Remove it to keep the cache."
        )
    return value


def read_token_counting(name: str, value: object) -> str:
    """Read which tokens are counted; a command line passes truth values as text."""
    choices = ("all", "non_padding", "no")
    word = str(value).lower()
    if word == "true":
        return "all"
    if word == "false":
        return "no"
    if value not in choices:
        raise ValueError(unknown_choice(name, value, choices))
    return str(value)


def read_trackers(name: str, value: object) -> list[str]:
    """Read a list of trackers, one name, "all" or "none"."""
    names: list[Any] = [value]
    if isinstance(value, (list, tuple)):
        names = list(cast("Sequence[Any]", value))

    if names == ["all"]:
        from ...callbacks.reporting import available_reporting_integrations

        return list(available_reporting_integrations())
    if names in (["none"], [None]):
        return []
    if "neptune" in names:
        raise NotImplementedError(
            f"{name}=['neptune']: transformers has deprecated it; use another tracker, or your own "
            "callback"
        )

    # "all" and "none" cannot be combined with names.
    choices = list(TRACKERS)
    if len(names) == 1:
        choices += ["all", "none"]
    unknown = [tracker for tracker in names if tracker not in TRACKERS]
    if unknown:
        raise ValueError(*[unknown_choice(name, tracker, choices) for tracker in unknown])
    return names


def read_static_space(name: str, value: object) -> str | bool:
    """Read the name of a Space, or False."""
    if value is not False and not isinstance(value, str):
        raise wrong_type(name, value, "the name of a Space, or False")
    return value


def read_metric_inputs(name: str, value: object) -> str | Sequence[object]:
    """Check the names of the inputs that metrics get beside predictions; text stays text."""
    choices = ("inputs", "loss")
    if not isinstance(value, (list, tuple, str)):
        raise wrong_type(name, value, "a list of 'inputs' and 'loss'")
    words = cast("str | Sequence[object]", value)
    names = [words] if isinstance(words, str) else words
    unknown = [word for word in names if word not in choices]
    if unknown:
        raise ValueError(*[unknown_choice(name, word, choices) for word in unknown])
    return words


def read_label_names(name: str, value: object) -> Sequence[str]:
    """Read a list of names."""
    expected = "a list of names, such as ['labels']"
    if not isinstance(value, (list, tuple)):
        raise wrong_type(name, value, expected)
    labels = cast("Sequence[object]", value)
    if not all(isinstance(label, str) for label in labels):
        raise wrong_type(name, labels, expected)
    return cast("Sequence[str]", labels)


def read_debug(name: str, value: Any) -> list[DebugOption]:
    """Read the faults to watch for: a list of them, or words of a text."""
    if not value:
        return []
    if not isinstance(value, (list, tuple)):
        value = str(value).split()
    options = read_members(name, cast("Sequence[object]", value), DebugOption)
    if DebugOption.TPU_METRICS_DEBUG in options and not xla_is_chosen():
        raise NotImplementedError(
            f"{name}='tpu_metrics_debug' needs a TPU and torch_xla; remove it"
        )
    return options


def read_generation_config(name: str, value: object) -> object:
    """Read the settings of generation: an object, a dict, a path, or a name on the Hub."""
    is_object = hasattr(value, "__dict__") and not isinstance(value, type)
    is_plain = isinstance(value, (str, os.PathLike, Mapping))
    if not is_object and not is_plain:
        expected = (
            "an object with the settings, such as a GenerationConfig, or a dict, or the path of a "
            "JSON file"
        )
        raise wrong_type(name, value, expected)
    # For the type checker, which knows only parts of the narrowed type.
    return cast("object", value)
