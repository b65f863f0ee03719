"""Readers of arguments that may be written in forms of their own, see `argument.Reader`."""

import os
from collections.abc import Mapping
from typing import Any

from ...callbacks.loggers.availability import TRACKERS
from ...lightning_modules.common.parameter_rules import rule_faults
from ...lightning_modules.common.schedule_curves import number_faults
from ..distributed.xla_device import xla_is_chosen
from .argument import member_of, read_dict, read_members, unknown_choice, wrong_type
from .enums import DebugOption, OptimizerNames

_member = member_of(OptimizerNames)


def read_optimizer(name: str, value: Any) -> Any:
    """Read the name of an optimizer; the path of a class, which has a dot, stays text."""
    if isinstance(value, str) and "." in value:
        return value
    return _member(name, value)


def read_schedule_settings(name: str, value: Any) -> Any:
    """Read the settings of a schedule."""
    faults = number_faults(read_dict(name, value))
    if faults:
        raise ValueError(*[f"{name}: {fault}" for fault in faults])
    return value


def read_parameter_rules(name: str, value: Any) -> Any:
    """Read settings by patterns of the names of parameters."""
    faults = list(rule_faults(read_dict(name, value)))
    if faults:
        raise ValueError(*faults)
    return value


def read_layer_settings(name: str, value: Any) -> Any:
    """Read the settings of activation checkpointing."""
    settings = read_dict(name, value)
    every = settings.get("every_n_layers", 1)
    offload = settings.get("offload", False)
    if type(every) is not int or every < 1:
        raise ValueError(f"{name}: every_n_layers={every!r} must be a whole number of at least 1.")
    if not isinstance(offload, bool):
        raise ValueError(f"{name}: offload={offload!r} must be True or False.")
    return value


def read_cache_steps(name: str, value: Any) -> Any:
    """Read a number of steps, which is not converted."""
    if not isinstance(value, int) or value <= 0:
        raise ValueError(
            f"{name}={value!r} must be a whole number above 0. Leave it out to keep the cache."
        )
    return value


def read_token_counting(name: str, value: Any) -> Any:
    """Read which tokens are counted; a truth value may be text of a command line."""
    choices = {
        "true": "all",
        "false": "no",
        "all": "all",
        "non_padding": "non_padding",
        "no": "no",
    }
    word = (
        str(value).lower()
        if isinstance(value, bool) or str(value).lower() in ("true", "false")
        else value
    )
    if word not in choices:
        raise ValueError(unknown_choice(name, value, ("all", "non_padding", "no")))
    return choices[word]


def read_trackers(name: str, value: Any) -> list[Any]:
    """Read a list of trackers, one name, "all" or "none"."""
    names = list(value) if isinstance(value, (list, tuple)) else [value]
    if names == ["all"]:
        from ...callbacks.reporting import available_reporting_integrations

        return list(available_reporting_integrations())
    if names in (["none"], [None]):
        return []
    if "neptune" in names:
        raise NotImplementedError(
            f"{name}=['neptune']: the reference has deprecated it; use another tracker, or a "
            "callback of your own"
        )
    choices = [*TRACKERS, "all", "none"] if len(names) == 1 else TRACKERS
    faults = [
        unknown_choice(name, tracker, choices) for tracker in names if tracker not in TRACKERS
    ]
    if faults:
        raise ValueError(*faults)
    return names


def read_static_space(name: str, value: Any) -> Any:
    """Read the name of a Space, or False."""
    if value is not False and not isinstance(value, str):
        raise wrong_type(name, value, "the name of a Space, or False")
    return value


def read_metric_inputs(name: str, value: Any) -> Any:
    """Read the names of what metrics get beside predictions."""
    if not isinstance(value, (list, tuple, str)):
        raise wrong_type(name, value, "a list of 'inputs' and 'loss'")
    wanted = [value] if isinstance(value, str) else value
    faults = [
        unknown_choice(name, word, ("inputs", "loss"))
        for word in wanted
        if word not in ("inputs", "loss")
    ]
    if faults:
        raise ValueError(*faults)
    return value


def read_label_names(name: str, value: Any) -> Any:
    """Read a list of names."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(label, str) for label in value):
        raise wrong_type(name, value, "a list of names, such as ['labels']")
    return value


def read_debug(name: str, value: Any) -> list[Any]:
    """Read the faults to watch for: a list of them, or words of a text."""
    if not value:
        return []
    words = value if isinstance(value, (list, tuple)) else str(value).split()
    options = read_members(name, words, DebugOption)
    if DebugOption.TPU_METRICS_DEBUG in options and not xla_is_chosen():
        raise NotImplementedError(
            f"{name}='tpu_metrics_debug': there is no TPU, or no torch_xla; leave it out"
        )
    return options


def read_generation_config(name: str, value: Any) -> Any:
    """Read the settings of generation: an object, a dict, a path, or a name on the Hub."""
    is_object = hasattr(value, "__dict__") and not isinstance(value, type)
    if not is_object and not isinstance(value, (str, os.PathLike, Mapping)):
        expected = (
            "an object with the settings, such as a GenerationConfig, or a dict, or the path of a "
            "JSON file"
        )
        raise wrong_type(name, value, expected)
    return value
