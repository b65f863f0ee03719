"""Optimizer and schedule settings of a LightningModule, in any of their forms.

Each may be the config of this package; a dict of its fields; a class of any library as
`{"class_path": ..., "init_args": ...}`; or a function. The first three are plain values, and stay
in a checkpoint.
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

_FIELDS_OF_TORCH = {"lr": "'learning_rate'", "eps": "'epsilon'", "betas": "'beta1' and 'beta2'"}
"""What torch calls fields of `OptimizerConfig`."""

_PARAMETERS_OF_FUNCTIONS = {"optimizer": "groups", "schedule": "optimizer"}
"""What functions that are given for these arguments are called with."""

_FUNCTION = "function"
"""Key of the name of a function in a checkpoint."""

ParameterRules = Mapping[str, Mapping[str, Any]]
"""Settings by patterns of names of parameters, as `TrainingArguments(parameter_rules=)`."""

Config = TypeVar("Config", OptimizerConfig, ScheduleConfig)


def as_optimizer_setting(given: Any) -> Any:
    """Return an `OptimizerConfig`, a description or a function.

    Raises:
        ValueError: a dict has fields that the config does not know.
        TypeError: it is something else.
    """
    if given is None:
        return OptimizerConfig()
    return _as_setting(given, OptimizerConfig, "optimizer")


def as_schedule_setting(given: Any) -> Any:
    """Return a `ScheduleConfig`, a description, a function, or None.

    Raises:
        ValueError: a dict has fields that the config does not know, or the metric of a plateau
            schedule.
        TypeError: it is something else.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        _refuse_monitor(given)
    return _as_setting(given, ScheduleConfig, "schedule")


def _refuse_monitor(schedule: Mapping[str, Any]) -> None:
    """Raise a ValueError for a schedule with the metric to watch, as other libraries have it."""
    fields = {**(schedule.get("init_args") or {}), **schedule}
    if "monitor" in fields:
        monitor = fields["monitor"]
        raise ValueError(
            f"`schedule` has 'monitor' ({monitor!r}), but what a plateau schedule watches is "
            f"an argument of the module: schedule={{...}}, monitor={monitor!r}."
        )


def build_module_optimizer(
    setting: Any, model: nn.Module, rules: ParameterRules | None = None
) -> Optimizer:
    """Build the optimizer over a model's trainable parameters, without weight decay on biases and
    normalisation layers.

    Groups that a callback adds later have the configured decay too, all of them.

    Args:
        setting: what `as_optimizer_setting` returned.
        model: the model.
        rules: settings by patterns of names, see `settings_by_name`.

    Raises:
        ValueError: rules need a learning rate that is not known, or the optimizer groups parameters
            itself.
    """
    if isinstance(setting, OptimizerConfig):
        # Only with rules, so that a subclass whose `build` does not accept them works without.
        options: dict[str, Any] = {}
        if rules is not None:
            options["rules"] = rules
        optimizer = setting.build(model, **options)
        optimizer.defaults["weight_decay"] = setting.weight_decay
    else:
        groups = parameter_groups(model, None, rules=rules, lr=_rate_for_rules(setting, rules))
        if is_description(setting):
            optimizer = build_described(setting, Optimizer, "optimizer", groups)
        else:
            optimizer = setting(groups)

    # Groups with rules are marked: without any, another grouping has taken their place.
    if _makes_groups(rules) and not any("rules" in group for group in optimizer.param_groups):
        raise ValueError(
            f"parameter_rules={rules} would have no effect: {type(optimizer).__name__} groups "
            "parameters itself, or the function that makes it does not use the groups that it is "
            "given."
        )
    return optimizer


def _makes_groups(rules: ParameterRules | None) -> bool:
    """Return whether rules do more than freeze parameters."""
    if rules is None:
        return False
    return any(settings.keys() - {"frozen"} for settings in rules.values())


def _rate_for_rules(setting: Any, rules: ParameterRules | None) -> float:
    """Return the learning rate that rules change; 0 where none depends on it."""
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
                "is not known here. Give the rule its 'lr', or pass optimizer={'class_path': "
                "..., 'init_args': {'lr': ...}}."
            )
    return 0.0


def build_module_schedule(
    setting: Any,
    optimizer: Optimizer,
    total_steps: Callable[[], int],
    monitor: str,
    interval: str | None = None,
) -> Any:
    """Return the schedule, as the "lr_scheduler" of `configure_optimizers`.

    Args:
        setting: what `as_schedule_setting` returned, not None.
        optimizer: its learning rates are scheduled.
        total_steps: tells the length of the training, where the config does not.
        monitor: what a plateau schedule watches.
        interval: "step" or "epoch", after which it is stepped; by default after each step where it
            is a `ScheduleConfig`, and after each epoch, as Lightning does, where it is another or
            watches a metric.
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

    if interval is None and isinstance(scheduler, (CyclicLR, OneCycleLR)):
        warnings.warn(
            f"{type(scheduler).__name__} counts optimizer steps, but is stepped after each epoch. "
            'Pass schedule_interval="step", or "epoch" if that is meant.',
            stacklevel=2,
        )
    return {"scheduler": scheduler, "interval": interval or default_interval}


def learning_rate_of(setting: Any) -> float | None:
    """Return the full learning rate; None for a function."""
    if isinstance(setting, OptimizerConfig):
        return setting.learning_rate
    if is_description(setting):
        return (setting.get("init_args") or {}).get("lr")
    # `LightningCLI` makes one of these from a class path.
    if isinstance(setting, partial):
        return setting.keywords.get("lr")
    if isinstance(setting, _AtRate):
        return setting.learning_rate
    return None


def with_learning_rate(setting: Any, learning_rate: float) -> Any:
    """Return the same optimizer with another full learning rate."""
    if isinstance(setting, OptimizerConfig):
        return dataclasses.replace(setting, learning_rate=learning_rate)
    if is_description(setting):
        init_args = dict(setting.get("init_args") or {})
        init_args["lr"] = learning_rate
        return {**setting, "init_args": init_args}
    if isinstance(setting, _AtRate):
        return dataclasses.replace(setting, learning_rate=learning_rate)
    return _AtRate(setting, learning_rate)


def to_plain_setting(setting: Any) -> Any:
    """Return the setting in plain values, from which it can be rebuilt; None for a function."""
    if is_description(setting):
        return {
            "class_path": setting["class_path"],
            "init_args": dict(setting.get("init_args") or {}),
        }
    if not dataclasses.is_dataclass(setting) or isinstance(
        setting, (type, _AtRate, _LeftOutFunction)
    ):
        return None
    return {
        field.name: _plain(getattr(setting, field.name)) for field in dataclasses.fields(setting)
    }


def to_stored_setting(setting: Any) -> Any:
    """Return what a checkpoint keeps of a setting: plain values, or the name of a function; None
    where it is None.
    """
    plain = to_plain_setting(setting)
    if plain is not None or setting is None:
        return plain

    function = setting.function if isinstance(setting, _AtRate) else setting
    if isinstance(function, _LeftOutFunction):
        return {_FUNCTION: function.name}
    return {_FUNCTION: getattr(function, "__name__", type(function).__name__)}


@dataclasses.dataclass(frozen=True)
class _LeftOutFunction:
    """A function that was used in a training, of which the checkpoint has the name only, and which
    is not passed again.

    Args:
        argument: of the module.
        name: of the function.
    """

    argument: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to continue without the function: no default replaces it silently.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"The checkpoint was written with the function {self.name} as `{self.argument}`, which "
            f"it does not hold. Pass it again: load_from_checkpoint(path, {self.argument}=...)."
        )


@dataclasses.dataclass(frozen=True)
class _AtRate:
    """Wrapper around a function that makes an optimizer, with another learning rate."""

    function: Callable[[Any], Optimizer]
    learning_rate: float

    def __call__(self, groups: list[dict[str, Any]]) -> Optimizer:
        return self.function([{**group, "lr": self.learning_rate} for group in groups])


def _as_setting(given: Any, config: type[Config], argument: str) -> Any:
    if isinstance(given, config) or is_description(given):
        return given
    if isinstance(given, dict) and set(given) == {_FUNCTION}:
        return _LeftOutFunction(argument, given[_FUNCTION])
    if isinstance(given, Mapping):
        _require_fields(given, config, argument)
        return config(**given)
    if callable(given):
        return given

    if isinstance(given, (Optimizer, LRScheduler)):
        name = type(given).__name__
        parameter = _PARAMETERS_OF_FUNCTIONS[argument]
        raise TypeError(
            f"`{argument}` is a {name} object, but the model may still be moved or sharded. Pass a "
            f"function that makes it: {argument}=lambda {parameter}: {name}({parameter}, ...), or "
            "{'class_path': ..., 'init_args': {...}}."
        )
    raise TypeError(
        f"`{argument}` is a {type(given).__name__}, but expected is a {config.__name__}, a dict of "
        "its fields, a dict with 'class_path' and 'init_args', or a function."
    )


def _require_fields(given: Mapping[str, Any], config: type[Config], argument: str) -> None:
    """Raise a ValueError for an entry that is not a field of the config, with the nearest one."""
    fields = [field.name for field in dataclasses.fields(config)]
    unknown = next((name for name in given if name not in fields), None)
    if unknown is None:
        return

    advice = did_you_mean(unknown, fields)
    if config is OptimizerConfig and unknown in _FIELDS_OF_TORCH:
        advice = f" Use {_FIELDS_OF_TORCH[unknown]}."
    raise ValueError(
        f"`{argument}` has no {unknown!r}.{advice} A dict has the fields of "
        f"{config.__name__} ({', '.join(fields)}), or 'class_path' and 'init_args'."
    )


def _plain(value: Any) -> Any:
    """Return a value of a setting in types that a checkpoint can hold."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value
