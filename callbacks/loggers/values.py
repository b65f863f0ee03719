"""The values of a run in the form that trackers show: logs, settings, numbers of parameters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments
    from ..state import TrainerState

SUMMARY_NAMES = (
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_loss",
    "total_flos",
)
"""Names that are logged once, at the end of the training."""


def rewrite_logs(d: Mapping[str, object]) -> dict[str, Any]:
    """Group the names of logs, as trackers show them.

    Works like `transformers.integrations.rewrite_logs`: `eval_loss` becomes `eval/loss`, `loss`
    becomes `train/loss`. Names that begin with `eval_` or `test_` are in that group, all others in
    `train`.

    Args:
        d: values by name.

    Returns:
        The values by their new names.
    """
    grouped: dict[str, Any] = {}
    for name, value in d.items():
        group, metric = group_and_metric(name)
        grouped[f"{group}/{metric}"] = value
    return grouped


def group_and_metric(name: str) -> tuple[str, str]:
    """Return the group of a logged name, `train`, `eval` or `test`, and its name in the group."""
    prefix, separator, metric = name.partition("_")
    if separator and prefix in ("eval", "test"):
        return prefix, metric
    return "train", name


def without_summary(logs: Mapping[str, object]) -> dict[str, Any]:
    """Return the logs except those in `SUMMARY_NAMES`, with the names of `rewrite_logs`."""
    return rewrite_logs({name: value for name, value in logs.items() if name not in SUMMARY_NAMES})


def description(args: TrainingArguments, model: nn.Module | None) -> dict[str, Any]:
    """Return the settings of a run: the configurations of adapters and model, and all arguments.

    Tokens are masked.
    """
    settings: dict[str, Any] = {}
    adapters = getattr(model, "peft_config", None)
    if adapters is not None:
        settings["peft_config"] = adapters
    settings.update(config_of(model))
    settings.update(args.to_dict())
    return settings


def config_of(model: nn.Module | None) -> dict[str, object]:
    """Return the configuration of a model as a dict; empty if it has none."""
    config: Any = getattr(model, "config", None)
    if isinstance(config, Mapping):
        return dict(cast("Mapping[str, Any]", config))
    if hasattr(config, "to_dict"):
        return config.to_dict()
    return {}


def parameter_count(model: Any) -> int | None:
    """Return the number of parameters of a model; None if the object does not have parameters.

    If the model has a method `num_parameters`, that method counts them.
    """
    if callable(getattr(model, "num_parameters", None)):
        return model.num_parameters()
    if callable(getattr(model, "parameters", None)):
        return sum(parameter.numel() for parameter in model.parameters())
    return None


def flattened(values: Mapping[str, object], separator: str = ".") -> dict[str, object]:
    """Flatten to one level: `{"a": {"b": 1}}` becomes `{"a.b": 1}`. Empty dicts are kept."""
    return dict(_leaves(values, "", separator))


def _leaves(
    values: Mapping[str, object], prefix: str, separator: str
) -> Iterator[tuple[str, object]]:
    """Yield the values that are not dicts, or empty ones, with the path to them as their name."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            inner = cast("Mapping[str, Any]", value)
            yield from _leaves(inner, f"{prefix}{name}{separator}", separator)
        else:
            yield f"{prefix}{name}", value


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> str:
    """Return the folder of the checkpoint that was just written."""
    name = f"checkpoint-{state.global_step}"
    folder = os.path.join(str(args.output_dir), name)
    if not state.is_hyper_param_search or os.path.isdir(folder):
        return folder

    # In a search the checkpoint is in the folder of the trial: of all folders with its name, it is
    # the newest one.
    folders_of_trials = list(Path(str(args.output_dir)).glob(f"run-*/{name}"))
    if not folders_of_trials:
        return folder
    return str(max(folders_of_trials, key=os.path.getmtime))
