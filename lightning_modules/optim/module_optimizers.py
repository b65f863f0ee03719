"""Read optimizer and schedule settings of a LightningModule, and build the objects.

A setting may be the config class of this package, a dict of its fields, a class of any library as
`{"class_path": ..., "init_args": ...}`, or a function. The first three are plain values and are
saved in checkpoints.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from ..common.class_paths import build_described, is_description
from ..common.suggestions import did_you_mean
from . import OptimizerConfig, parameter_groups
from .schedules import ScheduleConfig

OptimizerSetting = OptimizerConfig | dict[str, Any] | Callable[[Any], Optimizer] | None
"""A function is called with parameter groups."""
ScheduleSetting = ScheduleConfig | dict[str, Any] | Callable[[Optimizer], LRScheduler] | None
"""A function is called with the optimizer."""

_FIELDS_BY_TORCH_NAME = {
    "lr": "'learning_rate'",
    "eps": "'epsilon'",
    "betas": "'beta1' and 'beta2'",
}
"""Fields of `OptimizerConfig` that have other names in torch."""

_FUNCTION_PARAMETERS = {"optimizer": "groups", "schedule": "optimizer"}
"""For messages: the parameter of the function that may be passed as each argument."""

_FUNCTION_KEY = "function"
"""Key of a function's name in a checkpoint."""

ParameterRules = Mapping[str, Mapping[str, Any]]
"""Settings by name pattern, as `TrainingArguments(parameter_rules=)`."""

Config = TypeVar("Config", OptimizerConfig, ScheduleConfig)


def as_optimizer_setting(setting: object) -> object:
    """Convert a setting to an `OptimizerConfig`, a class description or a function.

    Raises:
        ValueError: a dict has fields that the config does not have.
        TypeError: the setting has another type.
    """
    if setting is None:
        return OptimizerConfig()
    return _as_setting(setting, OptimizerConfig, "optimizer")


def as_schedule_setting(setting: object) -> object:
    """Convert a setting to a `ScheduleConfig`, a class description, a function, or None.

    Raises:
        ValueError: a dict has fields that the config does not have, or `monitor`.
        TypeError: the setting has another type.
    """
    if setting is None:
        return None
    if isinstance(setting, Mapping):
        _reject_monitor(setting)
    return _as_setting(setting, ScheduleConfig, "schedule")


def _reject_monitor(schedule: Mapping[str, Any]) -> None:
    """Raise a ValueError for a schedule with `monitor`, which other libraries put there."""
    fields = {**(schedule.get("init_args") or {}), **schedule}
    if "monitor" in fields:
        monitor = fields["monitor"]
        raise ValueError(
            f"`schedule` has 'monitor' ({monitor!r}), but the metric of a plateau schedule is an "
            f"argument of the module: schedule={{...}}, monitor={monitor!r}."
        )


def build_module_optimizer(
    setting: Any, model: nn.Module, rules: ParameterRules | None = None
) -> Optimizer:
    """Build the optimizer for a model's trainable parameters.

    Biases and normalisation layers have no weight decay. Groups that a callback adds later have the
    configured decay for all parameters.

    Args:
        setting: the result of `as_optimizer_setting`.
        model: the model.
        rules: settings by patterns of names, see `settings_by_name`.

    Raises:
        ValueError: rules need an unknown learning rate, or the optimizer does not use the groups.
    """
    if isinstance(setting, OptimizerConfig):
        # The `build` of a subclass may not accept rules.
        rules_kwargs: dict[str, Any] = {}
        if rules is not None:
            rules_kwargs["rules"] = rules
        optimizer = setting.build(model, **rules_kwargs)

        # Groups that a callback adds later use the defaults.
        optimizer.defaults["weight_decay"] = setting.weight_decay
    else:
        groups = parameter_groups(model, None, rules=rules, lr=_rate_for_rules(setting, rules))
        if is_description(setting):
            optimizer = build_described(setting, Optimizer, "optimizer", groups)
        else:
            optimizer = setting(groups)

    # Groups of rules have an entry "rules". If none has it, the optimizer did not use the groups.
    has_rule_groups = any("rules" in group for group in optimizer.param_groups)
    if _has_group_rules(rules) and not has_rule_groups:
        raise ValueError(
            f"parameter_rules={rules} would have no effect: {type(optimizer).__name__} groups "
            "parameters itself, or the function that builds it ignores the groups passed to it. "
            "Use another optimizer, or remove the rules."
        )
    return optimizer


def _has_group_rules(rules: ParameterRules | None) -> bool:
    """Return whether rules do more than freezing parameters."""
    if rules is None:
        return False
    return any(settings.keys() - {"frozen"} for settings in rules.values())


def _rate_for_rules(setting: object, rules: ParameterRules | None) -> float:
    """Return the learning rate that rules scale; 0 if no rule depends on it."""
    rate = learning_rate_of(setting)
    if rate is not None:
        return rate
    if rules is None:
        return 0.0

    for pattern, settings in rules.items():
        makes_group = bool(settings.keys() - {"frozen"})
        if makes_group and "lr" not in settings:
            raise ValueError(
                f"parameter_rules: {pattern!r} changes the learning rate of the optimizer, which "
                "is unknown for a function. Add 'lr' to the rule, or pass optimizer={'class_path': "
                "..., 'init_args': {'lr': ...}}."
            )
    return 0.0


def build_module_schedule(
    setting: Any,
    optimizer: Optimizer,
    total_steps: Callable[[], int],
    monitor: str,
    interval: str | None = None,
) -> object:
    """Build the schedule, as the "lr_scheduler" entry of `configure_optimizers`.

    Args:
        setting: the result of `as_schedule_setting`, not None.
        optimizer: the optimizer whose learning rates are scheduled.
        total_steps: returns the number of training steps. Called if the config needs it.
        monitor: the metric that a plateau schedule follows.
        interval: "step" or "epoch", after which the schedule is stepped. The default is "step" for
            a `ScheduleConfig`, and "epoch" for others and for plateau schedules, as in Lightning.
    """
    default_interval = "epoch"
    if isinstance(setting, ScheduleConfig):
        default_interval = "step"
        if setting.needs_total_steps:
            setting = dataclasses.replace(setting, total_steps=total_steps())
        scheduler = setting.build(optimizer)
    elif is_description(setting):
        scheduler = build_described(setting, LRScheduler, "schedule", optimizer)
    else:
        scheduler = setting(optimizer)

    if isinstance(scheduler, ReduceLROnPlateau):
        return {"scheduler": scheduler, "interval": interval or "epoch", "monitor": monitor}

    # These schedules count steps, but Lightning's default interval is an epoch.
    if interval is None and isinstance(scheduler, (CyclicLR, OneCycleLR)):
        warnings.warn(
            f"{type(scheduler).__name__} counts optimizer steps, but is stepped after each epoch. "
            'Pass schedule_interval="step", or "epoch" to keep it and disable this warning.',
            stacklevel=2,
        )
    return {"scheduler": scheduler, "interval": interval or default_interval}


def learning_rate_of(setting: object) -> float | None:
    """Return the peak learning rate of a setting; None for a function."""
    if isinstance(setting, OptimizerConfig):
        return setting.learning_rate
    if is_description(setting):
        return (setting.get("init_args") or {}).get("lr")
    # `LightningCLI` creates a `partial` from a class path.
    if isinstance(setting, partial):
        return setting.keywords.get("lr")
    if isinstance(setting, _FunctionWithLearningRate):
        return setting.learning_rate
    return None


def with_learning_rate(setting: Any, learning_rate: float) -> object:
    """Return the same setting with another peak learning rate."""
    if isinstance(setting, OptimizerConfig):
        return dataclasses.replace(setting, learning_rate=learning_rate)
    if is_description(setting):
        init_args = dict(setting.get("init_args") or {})
        init_args["lr"] = learning_rate
        return {**setting, "init_args": init_args}
    if isinstance(setting, _FunctionWithLearningRate):
        return dataclasses.replace(setting, learning_rate=learning_rate)
    return _FunctionWithLearningRate(setting, learning_rate)


def to_plain_setting(setting: object) -> object:
    """Convert a setting to plain values from which it can be rebuilt; None for a function."""
    if is_description(setting):
        return {
            "class_path": setting["class_path"],
            "init_args": dict(setting.get("init_args") or {}),
        }

    is_function = isinstance(setting, (type, _FunctionWithLearningRate, _MissingFunction))
    if is_function or not dataclasses.is_dataclass(setting):
        return None
    fields = dataclasses.fields(setting)
    return {field.name: _to_plain(getattr(setting, field.name)) for field in fields}


def to_stored_setting(setting: object) -> Any:
    """Convert a setting to what a checkpoint stores: plain values, or the name of a function.

    Returns None for None.
    """
    plain = to_plain_setting(setting)
    if plain is not None or setting is None:
        return plain

    function = setting
    if isinstance(setting, _FunctionWithLearningRate):
        function = setting.function
    if isinstance(function, _MissingFunction):
        return {_FUNCTION_KEY: function.name}
    return {_FUNCTION_KEY: getattr(function, "__name__", type(function).__name__)}


@dataclasses.dataclass(frozen=True)
class _MissingFunction:
    """Placeholder of a function whose checkpoint only has its name, and which was not passed again.

    Args:
        argument: the argument of the module.
        name: the name of the function.
    """

    argument: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error, so that the function is not silently replaced by a default.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"The checkpoint was written with the function {self.name} as `{self.argument}`, but "
            f"only stores its name. Pass it again: load_from_checkpoint(path, {self.argument}=...)."
        )


@dataclasses.dataclass(frozen=True)
class _FunctionWithLearningRate:
    """Wrapper of a function that builds an optimizer, with another learning rate."""

    function: Callable[[Any], Optimizer]
    learning_rate: float

    def __call__(self, groups: list[dict[str, Any]]) -> Optimizer:
        return self.function([{**group, "lr": self.learning_rate} for group in groups])


def _as_setting(setting: object, config_class: type[Config], argument: str) -> object:
    if isinstance(setting, config_class) or is_description(setting):
        return setting
    if isinstance(setting, dict) and set(setting) == {_FUNCTION_KEY}:
        return _MissingFunction(argument, setting[_FUNCTION_KEY])
    if isinstance(setting, Mapping):
        _require_fields(setting, config_class, argument)
        return config_class(**setting)
    if callable(setting):
        return setting

    if isinstance(setting, (Optimizer, LRScheduler)):
        name = type(setting).__name__
        parameter = _FUNCTION_PARAMETERS[argument]
        raise TypeError(
            f"`{argument}` is a {name} object, but the model may still be moved or sharded. Pass a "
            f"function that builds it: {argument}=lambda {parameter}: {name}({parameter}, ...), or "
            "{'class_path': ..., 'init_args': {...}}."
        )
    raise TypeError(
        f"`{argument}` is a {type(setting).__name__}. Pass a {config_class.__name__}, a dict of "
        "its fields, a dict with 'class_path' and 'init_args', or a function."
    )


def _require_fields(
    setting: Mapping[str, object], config_class: type[Config], argument: str
) -> None:
    """Raise a ValueError for an entry that is not a field of the config, with a suggestion."""
    fields = [field.name for field in dataclasses.fields(config_class)]
    unknown = next((name for name in setting if name not in fields), None)
    if unknown is None:
        return

    advice = did_you_mean(unknown, fields)
    if config_class is OptimizerConfig and unknown in _FIELDS_BY_TORCH_NAME:
        advice = f" Use {_FIELDS_BY_TORCH_NAME[unknown]}."
    raise ValueError(
        f"`{argument}` has no field {unknown!r}.{advice} Pass a dict of the fields of "
        f"{config_class.__name__} ({', '.join(fields)}), or of 'class_path' and 'init_args'."
    )


def _to_plain(value: object) -> object:
    """Convert a value of a setting to types that a checkpoint can hold."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_plain(item) for item in value]
    return value
