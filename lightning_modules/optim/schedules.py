"""Learning rate schedules: the factor on the optimizer's learning rate at each optimizer step.

Every schedule but those that wait for a metric is a `torch.optim.lr_scheduler.LambdaLR` whose
factor is a `functools.partial` of a function of `schedule_curves`, so that it can be pickled and
its state holds nothing but numbers. The order of the floating point operations is that of
`transformers.optimization` (5.3.0): the learning rates agree to the last bit.

The parameters that most of them share:
    optimizer: the optimizer whose learning rate is scheduled.
    num_warmup_steps: optimizer steps in which the rate rises from 0 to its full value; may be 0.
    num_training_steps: optimizer steps of the whole run, warm-up included.
    num_cycles: periods of a cosine; half a period falls from 1 to 0.
    last_epoch: index of the last step done, -1 for a new run.
In the formulas `f` is the factor, `step` counts from 0, and `progress` is the part of the steps
after the warm-up that is done.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from ..common import schedule_curves as curves
from ..common.suggestions import SchedulerType
from .greedy import GreedyLR
from .layerwise import LayerwiseOptimizer, LayerwiseSchedule

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_CURVES = ("linear", "cosine", "1-sqrt")


def _require(name: SchedulerType, **values: Any) -> None:
    for parameter, value in values.items():
        if value is None:
            raise ValueError(
                f"The schedule {name.value!r} needs `{parameter}`, which was not given. Pass "
                f"`{parameter}`, a number of optimizer steps, directly or among the schedule's "
                "own arguments."
            )


def _with_numbers(make: Callable[P, R]) -> Callable[P, R]:
    """Make a function that builds a schedule check its numbers first."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind_partial(*args, **kwargs).arguments
        curves.require_numbers(make.__name__, {**given, **given.get("kwargs", {})})
        return make(*args, **kwargs)

    return checked


def _schedule(
    name: SchedulerType,
    optimizer: Optimizer,
    factor: Callable[..., float],
    last_epoch: int,
    **values: Any,
):
    """Return the scheduler of one factor, and check that its step counts were given."""
    parameters = {"warmup": "num_warmup_steps", "total": "num_training_steps"}
    _require(name, **{parameters[key]: value for key, value in values.items() if key in parameters})
    # Without values it stays a plain function, whose saved state is None, as in the reference's
    # checkpoints.
    return LambdaLR(
        optimizer, partial(factor, **values) if values else factor, last_epoch=last_epoch
    )


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """As `transformers.get_constant_schedule`: the optimizer's own learning rate at every step,
    `f = 1`.
    """
    return _schedule(SchedulerType.CONSTANT, optimizer, curves.constant, last_epoch)


@_with_numbers
def get_constant_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """As `transformers.get_constant_schedule_with_warmup`: `f = min(1, step / warmup)`."""
    name = SchedulerType.CONSTANT_WITH_WARMUP
    return _schedule(
        name, optimizer, curves.constant_after_warmup, last_epoch, warmup=num_warmup_steps
    )


@_with_numbers
def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """As `transformers.get_linear_schedule_with_warmup`: up to 1, then
    `f = (total - step) / (total - warmup)`.
    """
    name = SchedulerType.LINEAR
    return _schedule(
        name,
        optimizer,
        curves.linear,
        last_epoch,
        warmup=num_warmup_steps,
        total=num_training_steps,
    )


@_with_numbers
def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """As `transformers.get_cosine_schedule_with_warmup`: after the warm-up
    `f = (1 + cos(2 pi cycles progress)) / 2`.

    The annealing of Loshchilov and Hutter, SGDR (arXiv:1608.03983), equation 5, without restarts.
    """
    values = {
        "warmup": num_warmup_steps,
        "total": num_training_steps,
        "cycles": num_cycles,
        "floor": 0.0,
    }
    return _schedule(SchedulerType.COSINE, optimizer, curves.cosine, last_epoch, **values)


@_with_numbers
def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: int = 1,
    last_epoch: int = -1,
) -> LambdaLR:
    """As `transformers.get_cosine_with_hard_restarts_schedule_with_warmup`: from 1 to 0,
    `num_cycles` times.

    Loshchilov and Hutter, SGDR (arXiv:1608.03983), equation 5, with restarts of equal length.
    """
    values = {"warmup": num_warmup_steps, "total": num_training_steps, "cycles": num_cycles}
    return _schedule(
        SchedulerType.COSINE_WITH_RESTARTS, optimizer, curves.cosine_restarts, last_epoch, **values
    )


@_with_numbers
def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """As `transformers.get_polynomial_decay_schedule_with_warmup`:
    `lr = (lr0 - lr_end) (1 - progress)^power + lr_end`.

    The decay of the BERT and fairseq code bases. A warm-up as long as the run ends at `lr_end`,
    where the reference divides by zero.

    Args:
        optimizer: its default learning rate is `lr0`.
        num_warmup_steps: see the module.
        num_training_steps: see the module.
        lr_end: learning rate (not a factor) at the end and after it.
        power: exponent of the decay.
        last_epoch: see the module.

    Raises:
        ValueError: when `lr_end` is not below the optimizer's learning rate.
    """
    lr_start = optimizer.defaults["lr"]
    if not lr_start > lr_end:
        raise ValueError(
            f"`lr_end` ({lr_end}) must be below the optimizer's learning rate ({lr_start}), since "
            "the polynomial schedule decays towards it. Lower `lr_end` or raise the learning "
            "rate."
        )
    values = {
        "warmup": num_warmup_steps,
        "total": num_training_steps,
        "lr_start": lr_start,
        "lr_end": lr_end,
    }
    return _schedule(
        SchedulerType.POLYNOMIAL, optimizer, curves.polynomial, last_epoch, **values, power=power
    )


@_with_numbers
def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """As `transformers.get_inverse_sqrt_schedule`:
    `f = 1 / sqrt((step - warmup + timescale) / timescale)`.

    The decay of Vaswani et al. (arXiv:1706.03762), equation 3, with the `timescale` of the
    big_vision code base: the steps after which the rate has fallen to `1 / sqrt(2)`; by default the
    warm-up, or 10,000 without a warm-up.
    """
    scale = (num_warmup_steps or 10_000) if timescale is None else timescale
    name = SchedulerType.INVERSE_SQRT
    return _schedule(
        name, optimizer, curves.inverse_sqrt, last_epoch, warmup=num_warmup_steps, timescale=scale
    )


def _floor_factor(
    name: SchedulerType, optimizer: Optimizer, min_lr: float | None, min_lr_rate: float | None
) -> float:
    """Return the lowest factor, from the one that was given."""
    if min_lr is not None and min_lr_rate is None:
        return min_lr / optimizer.defaults["lr"]
    if min_lr is None and min_lr_rate is not None:
        return min_lr_rate
    seen = "neither was given" if min_lr is None else f"both were given ({min_lr=}, {min_lr_rate=})"
    raise ValueError(
        f"The schedule {name.value!r} needs exactly one of `min_lr` (a learning rate) and "
        f"`min_lr_rate` (a part of the initial learning rate), but {seen}. Set one of them in the "
        "schedule's own arguments (`lr_scheduler_kwargs`)."
    )


@_with_numbers
def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """As `transformers.get_cosine_with_min_lr_schedule_with_warmup`: the cosine `c` lifted,
    `f = c (1 - m) + m`.

    SGDR (arXiv:1608.03983), equation 5, with its lowest rate given as `min_lr` or as the factor
    `m = min_lr_rate`.

    Raises:
        ValueError: when not exactly one of `min_lr` and `min_lr_rate` is given.
    """
    name = SchedulerType.COSINE_WITH_MIN_LR
    floor = _floor_factor(name, optimizer, min_lr, min_lr_rate)
    values = {
        "warmup": num_warmup_steps,
        "total": num_training_steps,
        "cycles": num_cycles,
        "floor": floor,
    }
    return _schedule(name, optimizer, curves.cosine, last_epoch, **values)


@_with_numbers
def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    """As `transformers.get_cosine_with_min_lr_schedule_with_warmup_lr_rate`: the rate of step 0 is
    above 0.

    The factor of step `i` is the one that `get_cosine_with_min_lr_schedule_with_warmup` has at
    `i + 1`. With `warmup_lr_rate`, the factor of step 0, the warm-up goes in a line from there to 1
    at its last step.

    Raises:
        ValueError: when not exactly one of `min_lr` and `min_lr_rate` is given.
    """
    name = SchedulerType.COSINE_WARMUP_WITH_MIN_LR
    floor = _floor_factor(name, optimizer, min_lr, min_lr_rate)
    start = None if warmup_lr_rate is None else float(warmup_lr_rate)
    values = {
        "warmup": num_warmup_steps,
        "total": num_training_steps,
        "cycles": num_cycles,
        "floor": floor,
    }
    return _schedule(
        name, optimizer, curves.cosine_from_first_step, last_epoch, **values, start=start
    )


@_with_numbers
def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """As `transformers.get_wsd_schedule`: up to 1, level for a while, then down to `min_lr_ratio`.

    Hu et al., MiniCPM (arXiv:2404.06395), section 4; "1-sqrt" is the decay of Haegele et al.
    (arXiv:2405.18392).

    Args:
        optimizer: see the module.
        num_warmup_steps: optimizer steps of the rise from `min_lr_ratio` to 1.
        num_decay_steps: optimizer steps of the fall.
        num_training_steps: optimizer steps of the whole run, from which the level part is computed.
        num_stable_steps: optimizer steps of the level part; goes before `num_training_steps`.
        warmup_type: "linear", "cosine" or "1-sqrt".
        decay_type: "linear", "cosine" or "1-sqrt".
        min_lr_ratio: the lowest factor.
        num_cycles: periods of a cosine decay; 0.5 falls once.
        last_epoch: see the module.

    Raises:
        ValueError: when a length is missing or a curve is not known.
    """
    name = SchedulerType.WARMUP_STABLE_DECAY
    for parameter, kind in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if kind not in _CURVES:
            raise ValueError(
                f"`{parameter}` is {kind!r}, but the schedule {name.value!r} knows only {_CURVES}."
            )
    _require(name, num_warmup_steps=num_warmup_steps, num_decay_steps=num_decay_steps)
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ValueError(
                f"The schedule {name.value!r} needs `num_training_steps` or `num_stable_steps`."
            )
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
    elif num_training_steps is not None:
        warnings.warn(
            f"{num_stable_steps=} goes before {num_training_steps=}; pass only one of them.",
            stacklevel=2,
        )
    values = {
        "warmup": num_warmup_steps,
        "stable": num_stable_steps,
        "decay": num_decay_steps,
        "floor": min_lr_ratio,
    }
    shape = {"rise": warmup_type, "fall": decay_type, "cycles": num_cycles}
    return _schedule(name, optimizer, curves.warmup_stable_decay, last_epoch, **values, **shape)


@_with_numbers
def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """As `transformers.get_reduce_on_plateau_schedule`: torch's `ReduceLROnPlateau`, which is
    stepped with a metric.

    Args:
        optimizer: see the module.
        kwargs: parameters of `torch.optim.lr_scheduler.ReduceLROnPlateau`.
    """
    return ReduceLROnPlateau(optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> GreedyLR:
    """As `transformers.optimization.get_greedy_schedule` (5.4 and later): a `GreedyLR`, which is
    stepped with a metric.

    Args:
        optimizer: see the module.
        kwargs: parameters of `GreedyLR`.
    """
    return GreedyLR(optimizer, **kwargs)


SCHEDULES: dict[SchedulerType, Callable[..., LRScheduler]] = {
    SchedulerType.LINEAR: get_linear_schedule_with_warmup,
    SchedulerType.COSINE: get_cosine_schedule_with_warmup,
    SchedulerType.COSINE_WITH_RESTARTS: get_cosine_with_hard_restarts_schedule_with_warmup,
    SchedulerType.POLYNOMIAL: get_polynomial_decay_schedule_with_warmup,
    SchedulerType.CONSTANT: get_constant_schedule,
    SchedulerType.CONSTANT_WITH_WARMUP: get_constant_schedule_with_warmup,
    SchedulerType.INVERSE_SQRT: get_inverse_sqrt_schedule,
    SchedulerType.REDUCE_ON_PLATEAU: get_reduce_on_plateau_schedule,
    SchedulerType.COSINE_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup,
    SchedulerType.COSINE_WARMUP_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    SchedulerType.WARMUP_STABLE_DECAY: get_wsd_schedule,
    SchedulerType.GREEDY: get_greedy_schedule,
}
"""The schedule behind each name."""

_CLASSES = {SchedulerType.REDUCE_ON_PLATEAU: ReduceLROnPlateau, SchedulerType.GREEDY: GreedyLR}
"""Classes that take the arguments of their functions."""

# Schedules to which the reference passes none of the schedule's own arguments: unknown ones are no
# error.
_LENIENT = (SchedulerType.CONSTANT, SchedulerType.CONSTANT_WITH_WARMUP, SchedulerType.INVERSE_SQRT)


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
) -> LRScheduler:
    """As `transformers.get_scheduler`, but the inverse square root gets its own arguments too (as
    from 5.23 on).

    Args:
        name: a `SchedulerType` or its value.
        optimizer: see the module; a layerwise one gets a schedule for each parameter.
        num_warmup_steps: see the module; not needed by the constant schedules, nor by those that
            wait for a metric.
        num_training_steps: see the module; needed by those that end.
        scheduler_specific_kwargs: the schedule's own arguments. The constant schedules have none:
            what is given there is left out with a warning.

    Raises:
        ValueError: when the name is not known or a step count is missing.
        TypeError: when the schedule has no argument of that name.
    """
    name = SchedulerType(name)
    kwargs = dict(scheduler_specific_kwargs or {})
    if isinstance(optimizer, LayerwiseOptimizer):
        if name.waits_for_metric:
            raise ValueError(
                f"The schedule {name.value!r} waits for a metric, but layerwise optimizers do not "
                "wait."
            )
        rest = (num_warmup_steps, num_training_steps, scheduler_specific_kwargs)
        return LayerwiseSchedule(optimizer, lambda inner: get_scheduler(name, inner, *rest))
    parameters = inspect.signature(_CLASSES.get(name, SCHEDULES[name])).parameters
    steps = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    own = _own_arguments(
        name, kwargs, [key for key in parameters if key not in ("optimizer", *steps)]
    )
    arguments = {key: value for key, value in steps.items() if key in parameters} | own
    needed = [
        key
        for key, value in parameters.items()
        if value.default is value.empty and key != "optimizer"
    ]
    _require(name, **{key: arguments.get(key) for key in needed})
    return SCHEDULES[name](optimizer, **arguments)


def _own_arguments(name: SchedulerType, kwargs: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """Return the arguments; an unknown one is an error, or dropped with a warning for schedules
    in `_LENIENT`.
    """
    unknown = [key for key in kwargs if key not in known]
    if unknown:
        message = (
            f"The schedule {name.value!r} has no argument {unknown}; its own arguments are {known}."
        )
        if name not in _LENIENT:
            raise TypeError(
                f"{message} Correct or remove it in the schedule's arguments "
                "(`lr_scheduler_kwargs`)."
            )
        logger.warning("%s It is left out.", message)
    return {key: value for key, value in kwargs.items() if key in known}


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """As the `lr_scheduler_type`, `warmup_steps` and `lr_scheduler_kwargs` of `TrainingArguments`,
    for one run.

    In a LightningModule: `{"scheduler": config.build(optimizer), "interval": "step"}`, with a
    "monitor" for those that wait for a metric.
    """

    name: str | SchedulerType = SchedulerType.LINEAR
    """Name of the schedule, a `SchedulerType` or its value."""
    warmup_steps: float = 0
    """Optimizer steps in which the rate rises to its full value; below 1, a share of
    `total_steps`, rounded up.
    """
    total_steps: int | None = None
    """Optimizer steps of the whole run, warm-up included; None for schedules without an end."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The schedule's own arguments, such as `num_cycles`, `power` or `min_lr`."""

    def __post_init__(self) -> None:
        SchedulerType(self.name)
        for key in ("warmup_steps", "total_steps"):
            value = getattr(self, key)
            if value is not None and value < 0:
                raise ValueError(
                    f"`{key}` is {value}, but it counts optimizer steps and cannot be negative."
                )
        curves.require_numbers("kwargs", self.kwargs)

    @property
    def waits_for_metric(self) -> bool:
        """Return whether the schedule is stepped with a metric."""
        return SchedulerType(self.name).waits_for_metric

    @property
    def needs_total_steps(self) -> bool:
        """Return whether the schedule needs `total_steps` that are not given."""
        parameters = inspect.signature(SCHEDULES[SchedulerType(self.name)]).parameters
        ends = "num_training_steps" in parameters and "num_stable_steps" not in self.kwargs
        return self.total_steps is None and (ends or 0 < self.warmup_steps < 1)

    def build(self, optimizer: Optimizer) -> LRScheduler:
        """Return the scheduler for this optimizer.

        Args:
            optimizer: a fresh optimizer, whose learning rate is the full one.
        """
        return get_scheduler(self.name, optimizer, self._warmup(), self.total_steps, self.kwargs)

    def _warmup(self) -> int:
        if self.warmup_steps >= 1 or self.warmup_steps == 0:
            return int(self.warmup_steps)
        if self.total_steps is None:
            raise ValueError(
                f"`warmup_steps` is {self.warmup_steps}, a share of `total_steps`: give that too."
            )
        return math.ceil(self.total_steps * self.warmup_steps)
