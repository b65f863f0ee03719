"""Convert logs, numbers and descriptions of a run for trackers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..arguments import CallbackArguments

SUMMARY = (
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_loss",
    "total_flos",
)
"""Logs that come once, when the training is over."""


def rewrite_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """As `transformers.integrations.rewrite_logs`: `eval_loss` becomes `eval/loss`, `loss` becomes
    `train/loss`.

    What begins with `eval_` or `test_` goes to that group, everything else to `train`.
    """
    grouped = {}
    for name, value in logs.items():
        group, separator, rest = name.partition("_")
        grouped[
            f"{group}/{rest}" if separator and group in ("eval", "test") else f"train/{name}"
        ] = value
    return grouped


def without_summary(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logs of a step, under the names of `rewrite_logs`."""
    return rewrite_logs({name: value for name, value in logs.items() if name not in SUMMARY})


def number(value: Any) -> float | int | None:
    """Return a Python number, also of an array of one element; None for anything else."""
    if isinstance(value, (int, float)):
        return value
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        count = value.numel() if hasattr(value, "numel") else value.size
        held = value.item() if count == 1 else None
        return held if isinstance(held, (int, float)) else None
    return None


def description(args: CallbackArguments, model: Any) -> dict[str, Any]:
    """Return the arguments of a run, without tokens, with the configurations of its model and
    adapters.
    """
    adapters = getattr(model, "peft_config", None)
    described = {} if adapters is None else {"peft_config": adapters}
    return {**described, **config_of(model), **args.to_dict()}


def config_of(model: Any) -> dict[str, Any]:
    """Return the configuration of a model as a dict; empty where it has none."""
    config: Any = getattr(model, "config", None)
    if isinstance(config, Mapping):
        return dict(config)
    return config.to_dict() if hasattr(config, "to_dict") else {}


def parameter_count(model: Any) -> int | None:
    """Return the number of parameters of a model, by its own `num_parameters` if it has one."""
    if callable(getattr(model, "num_parameters", None)):
        return model.num_parameters()
    if callable(getattr(model, "parameters", None)):
        return sum(parameter.numel() for parameter in model.parameters())
    return None


def flattened(values: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Flatten to one level: `{"a": {"b": 1}}` becomes `{"a.b": 1}`. Empty dicts stay."""
    return dict(_leaves(values, "", separator))


def _leaves(values: Mapping[str, Any], prefix: str, separator: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}{separator}", separator)
        else:
            yield f"{prefix}{name}", value


def checkpoint_folder(args: CallbackArguments, state: Any) -> str:
    """Return the folder of the checkpoint just written, also in a trial of a search."""
    name = f"checkpoint-{state.global_step}"
    folder = os.path.join(args.output_dir, name)
    if state.is_hyper_param_search and not os.path.isdir(folder):
        of_trials = sorted(Path(args.output_dir).glob(f"run-*/{name}"), key=os.path.getmtime)
        return str(of_trials[-1]) if of_trials else folder
    return folder
