"""Learning rate schedules: the factor on the optimizer's learning rate at each optimizer step.

Every schedule except the plateau schedule is a `torch.optim.lr_scheduler.LambdaLR`. Its factor is a
`functools.partial` of a function in `schedule_curves`, so that it can be pickled and its state
contains only numbers. The order of the floating point operations is that of
`transformers.optimization` (5.3.0): the learning rates agree to the last bit.

The parameters that most of them share:
    optimizer: the optimizer whose learning rate is scheduled.
    num_warmup_steps: optimizer steps in which the rate rises from 0 to its full value; may be 0.
    num_training_steps: optimizer steps of the whole run, including the warm-up.
    num_cycles: periods of a cosine; half a period falls from 1 to 0.
    last_epoch: index of the last completed step, -1 for a new run.
In the formulas `f` is the factor, `step` counts from 0, and `progress` is the completed fraction
of the steps after the warm-up.
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
from types import MethodType
from typing import Any, ParamSpec, TypeVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from ..common import schedule_curves as curves
from ..common.enums import SchedulerType
from .layerwise import LayerwiseOptimizer, LayerwiseSchedule

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_CURVES = ("linear", "cosine", "1-sqrt")


def _with_checked_numbers(make_schedule: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that builds a schedule, so that it checks its numbers first.

    Raises:
        ValueError: a number of steps is missing, or a number is invalid.
    """
    signature = inspect.signature(make_schedule)
    required: list[str] = []
    for name, parameter in signature.parameters.items():
        if name.startswith("num_") and parameter.default is parameter.empty:
            required.append(name)

    @functools.wraps(make_schedule)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = signature.bind_partial(*args, **kwargs).arguments
        for name in required:
            if arguments.get(name) is None:
                raise ValueError(
                    f"{make_schedule.__name__} needs `{name}`, which is missing. Pass `{name}`, a "
                    "number of optimizer steps, directly or among the schedule's own arguments."
                )
        numbers = {**arguments, **arguments.get("kwargs", {})}
        curves.require_numbers(make_schedule.__name__, numbers)
        return make_schedule(*args, **kwargs)

    return checked


def _schedule(
    optimizer: Optimizer, curve: Callable[..., float], last_epoch: int, **values: object
) -> LambdaLR:
    """Return a `LambdaLR` for a curve."""
    # Without values the curve stays a plain function, whose saved state is None as in the
    # reference.
    if values:
        curve = partial(curve, **values)
    _make_step_a_method(optimizer)
    return LambdaLR(optimizer, curve, last_epoch=last_epoch)


def _make_step_a_method(optimizer: Optimizer) -> None:
    """Turn a function that was assigned to `step` into a method, because torch's schedules require
    one.

    For example, `optimizer.step = torch.compile(optimizer.step)` assigns a function.
    """
    step = getattr(optimizer, "step", None)
    if step is None or hasattr(step, "__func__"):
        return

    def bound_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    optimizer.step = MethodType(bound_step, optimizer)


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """Keep the learning rate constant: its factor is `f = 1` at every step.

    Works like `transformers.get_constant_schedule`.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        last_epoch: index of the last completed step, -1 for a new run.

    Returns:
        A schedule, to be stepped after each optimizer step.
    """
    return _schedule(optimizer, curves.constant, last_epoch)


@_with_checked_numbers
def get_constant_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """Warm up the learning rate from 0, then keep it constant: `f = min(1, step / warmup)`.

    Works like `transformers.get_constant_schedule_with_warmup`.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps of the rise from 0 to the full rate; may be 0.
        last_epoch: index of the last completed step, -1 for a new run.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: a number of steps is missing or invalid.
    """
    return _schedule(
        optimizer,
        curves.constant_after_warmup,
        last_epoch,
        warmup=num_warmup_steps,
    )


@_with_checked_numbers
def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """Warm up the learning rate from 0, then decay it linearly to 0.

    Works like `transformers.get_linear_schedule_with_warmup`. After the warm-up the factor is `f =
    (total - step) / (total - warmup)`.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps of the rise from 0 to the full rate; may be 0.
        num_training_steps: optimizer steps of the whole run, including the warm-up.
        last_epoch: index of the last completed step, -1 for a new run.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: a number of steps is missing or invalid.
    """
    return _schedule(
        optimizer,
        curves.linear,
        last_epoch,
        warmup=num_warmup_steps,
        total=num_training_steps,
    )


@_with_checked_numbers
def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Warm up the learning rate from 0, then decay it to 0 along a cosine.

    Works like `transformers.get_cosine_schedule_with_warmup`. After the warm-up the factor is `f =
    (1 + cos(2 pi cycles progress)) / 2`, where `progress` is the completed fraction of the steps
    after the warm-up: the annealing of Loshchilov and Hutter, SGDR (arXiv:1608.03983), equation 5,
    without restarts.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps of the rise from 0 to the full rate; may be 0.
        num_training_steps: optimizer steps of the whole run, including the warm-up.
        num_cycles: periods of the cosine; half a period falls from 1 to 0.
        last_epoch: index of the last completed step, -1 for a new run.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: a number of steps is missing or invalid.
    """
    return _schedule(
        optimizer,
        curves.cosine,
        last_epoch,
        warmup=num_warmup_steps,
        total=num_training_steps,
        cycles=num_cycles,
        floor=0.0,
    )


@_with_checked_numbers
def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: int = 1,
    last_epoch: int = -1,
) -> LambdaLR:
    """Warm up the learning rate from 0, then decay it to 0 along a cosine, with hard restarts.

    Works like `transformers.get_cosine_with_hard_restarts_schedule_with_warmup`: Loshchilov and
    Hutter, SGDR (arXiv:1608.03983), equation 5, with restarts of equal length.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps of the rise from 0 to the full rate; may be 0.
        num_training_steps: optimizer steps of the whole run, including the warm-up.
        num_cycles: number of decays from 1 to 0.
        last_epoch: index of the last completed step, -1 for a new run.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: a number of steps is missing or invalid.
    """
    return _schedule(
        optimizer,
        curves.cosine_restarts,
        last_epoch,
        warmup=num_warmup_steps,
        total=num_training_steps,
        cycles=num_cycles,
    )


@_with_checked_numbers
def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """Warm up the learning rate from 0, then decay it to `lr_end` along a polynomial.

    Works like `transformers.get_polynomial_decay_schedule_with_warmup`. After the warm-up `lr =
    (lr0 - lr_end) (1 - progress)^power + lr_end`, where `progress` is the completed fraction of the
    steps after the warm-up, as in the BERT and fairseq code bases. A warm-up as long as the run
    ends at `lr_end`, where transformers divides by zero.

    Args:
        optimizer: the optimizer whose learning rate is scheduled; its default is `lr0`.
        num_warmup_steps: optimizer steps of the rise from 0 to the full rate; may be 0.
        num_training_steps: optimizer steps of the whole run, including the warm-up.
        lr_end: learning rate (not a factor) at the end and after it.
        power: exponent of the decay.
        last_epoch: index of the last completed step, -1 for a new run.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: `lr_end` is not below the optimizer's learning rate, or a number of steps is
            missing or invalid.
    """
    lr_start = optimizer.defaults["lr"]
    if not lr_start > lr_end:
        raise ValueError(
            f"`lr_end` ({lr_end}) must be below the optimizer's learning rate ({lr_start}), since "
            "the polynomial schedule decays towards it. Lower `lr_end` or raise the learning "
            "rate."
        )
    return _schedule(
        optimizer,
        curves.polynomial,
        last_epoch,
        warmup=num_warmup_steps,
        total=num_training_steps,
        lr_start=lr_start,
        lr_end=lr_end,
        power=power,
    )


@_with_checked_numbers
def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """Warm up the learning rate from 0, then decay it with the inverse square root of the step.

    As `transformers.get_inverse_sqrt_schedule`. After the warm-up the factor is `f = 1 / sqrt((step
    - warmup + timescale) / timescale)`: the decay of Vaswani et al. (arXiv:1706.03762), equation 3,
    with the `timescale` of the big_vision code base.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps of the rise from 0 to the full rate; may be 0.
        timescale: optimizer steps after the warm-up in which the rate falls to `1 / sqrt(2)`. The
            default is `num_warmup_steps`, or 10,000 without a warm-up.
        last_epoch: index of the last completed step, -1 for a new run.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: a number of steps is missing or invalid.
    """
    if timescale is None:
        timescale = num_warmup_steps or 10_000
    return _schedule(
        optimizer,
        curves.inverse_sqrt,
        last_epoch,
        warmup=num_warmup_steps,
        timescale=timescale,
    )


def _floor_factor(
    name: SchedulerType, optimizer: Optimizer, min_lr: float | None, min_lr_rate: float | None
) -> float:
    """Return the minimum factor from `min_lr` or `min_lr_rate`."""
    if min_lr is not None and min_lr_rate is None:
        return min_lr / optimizer.defaults["lr"]
    if min_lr is None and min_lr_rate is not None:
        return min_lr_rate
    problem = "neither was passed"
    if min_lr is not None:
        problem = f"both were passed ({min_lr=}, {min_lr_rate=})"
    raise ValueError(
        f"The schedule {name.value!r} needs exactly one of `min_lr` (a learning rate) and "
        f"`min_lr_rate` (a fraction of the initial learning rate), but {problem}. Set one of them "
        "in the schedule's own arguments (`lr_scheduler_kwargs`)."
    )


@_with_checked_numbers
def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """Warm up the learning rate from 0, then decay it to a minimum along a cosine.

    Works like `transformers.get_cosine_with_min_lr_schedule_with_warmup`. After the warm-up the
    factor is `f = c (1 - m) + m`, where `c` is the cosine of SGDR (arXiv:1608.03983), equation 5,
    and `m` the minimum factor.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps of the rise from 0 to the full rate; may be 0.
        num_training_steps: optimizer steps of the whole run, including the warm-up.
        num_cycles: periods of the cosine; half a period falls from 1 to 0.
        last_epoch: index of the last completed step, -1 for a new run.
        min_lr: the lowest learning rate.
        min_lr_rate: the lowest factor; this or `min_lr` is passed.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: neither or both of `min_lr` and `min_lr_rate` are passed, or a number of steps
            is missing or invalid.
    """
    name = SchedulerType.COSINE_WITH_MIN_LR
    return _schedule(
        optimizer,
        curves.cosine,
        last_epoch,
        warmup=num_warmup_steps,
        total=num_training_steps,
        cycles=num_cycles,
        floor=_floor_factor(name, optimizer, min_lr, min_lr_rate),
    )


@_with_checked_numbers
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
    """Warm up the learning rate from above 0, then decay it to a minimum along a cosine.

    Works like `transformers.get_cosine_with_min_lr_schedule_with_warmup_lr_rate`. The factor of
    step `i` is the one that `get_cosine_with_min_lr_schedule_with_warmup` has at `i + 1`.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps in which the rate rises to its full value; may be 0.
        num_training_steps: optimizer steps of the whole run, including the warm-up.
        num_cycles: periods of the cosine; half a period falls from 1 to 0.
        last_epoch: index of the last completed step, -1 for a new run.
        min_lr: the lowest learning rate.
        min_lr_rate: the lowest factor; this or `min_lr` is passed.
        warmup_lr_rate: factor at step 0, from which the warm-up is linear. The default is the
            factor that a warm-up from 0 has after one step.

    Returns:
        A schedule, to be stepped after each optimizer step.

    Raises:
        ValueError: neither or both of `min_lr` and `min_lr_rate` are passed, or a number of steps
            is missing or invalid.
    """
    name = SchedulerType.COSINE_WARMUP_WITH_MIN_LR
    start = None
    if warmup_lr_rate is not None:
        start = float(warmup_lr_rate)
    return _schedule(
        optimizer,
        curves.cosine_from_first_step,
        last_epoch,
        warmup=num_warmup_steps,
        total=num_training_steps,
        cycles=num_cycles,
        floor=_floor_factor(name, optimizer, min_lr, min_lr_rate),
        start=start,
    )


@_with_checked_numbers
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
    """Warm up the learning rate, keep it constant in a stable phase, then decay it.

    Works like `transformers.get_wsd_schedule`: the schedule of Hu et al., MiniCPM
    (arXiv:2404.06395), section 4; "1-sqrt" is the decay of Haegele et al. (arXiv:2405.18392).

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        num_warmup_steps: optimizer steps of the rise from `min_lr_ratio` to 1.
        num_decay_steps: optimizer steps of the decay to `min_lr_ratio`.
        num_training_steps: optimizer steps of the whole run, from which the stable phase is
            computed.
        num_stable_steps: optimizer steps of the stable phase; overrides `num_training_steps`.
        warmup_type: "linear", "cosine" or "1-sqrt".
        decay_type: "linear", "cosine" or "1-sqrt".
        min_lr_ratio: the minimum factor.
        num_cycles: periods of a cosine decay; 0.5 falls once.
        last_epoch: index of the last completed step, -1 for a new run.

    Raises:
        ValueError: a length is missing, or a curve is unknown.
    """
    name = SchedulerType.WARMUP_STABLE_DECAY
    for parameter, curve in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if curve not in _CURVES:
            raise ValueError(
                f"`{parameter}` is {curve!r}, but the schedule {name.value!r} supports only "
                f"{_CURVES}."
            )

    # The stable phase is the rest of the run after warm-up and decay.
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ValueError(
                f"The schedule {name.value!r} needs `num_training_steps` or `num_stable_steps`: "
                "pass one of them."
            )
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
    elif num_training_steps is not None:
        warnings.warn(
            f"{num_stable_steps=} overrides {num_training_steps=}; pass only one of them.",
            stacklevel=2,
        )
    return _schedule(
        optimizer,
        curves.warmup_stable_decay,
        last_epoch,
        warmup=num_warmup_steps,
        stable=num_stable_steps,
        decay=num_decay_steps,
        floor=min_lr_ratio,
        rise=warmup_type,
        fall=decay_type,
        cycles=num_cycles,
    )


@_with_checked_numbers
def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """Lower the learning rate when a metric does not improve: torch's `ReduceLROnPlateau`.

    Works like `transformers.get_reduce_on_plateau_schedule`. The Trainer steps it after each
    evaluation, with the metric of `metric_for_best_model`.

    Args:
        optimizer: the optimizer whose learning rate is scheduled.
        kwargs: parameters of `torch.optim.lr_scheduler.ReduceLROnPlateau`.

    Returns:
        A schedule, to be stepped with a metric.
    """
    return ReduceLROnPlateau(optimizer, **kwargs)


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
}
"""The function for each name."""

# The reference ignores specific arguments of these schedules, so unknown ones only warn.
_LENIENT_SCHEDULES = (
    SchedulerType.CONSTANT,
    SchedulerType.CONSTANT_WITH_WARMUP,
    SchedulerType.INVERSE_SQRT,
)


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, object] | None = None,
) -> LRScheduler:
    """Create a learning rate schedule by its name.

    Works like `transformers.get_scheduler`, but also passes specific arguments to the inverse
    square root schedule, as in 5.23 and later.

    Args:
        name: a `SchedulerType` or its value.
        optimizer: the optimizer. A layerwise one gets a schedule for each parameter.
        num_warmup_steps: optimizer steps of the warm-up. Not needed by the constant and the plateau
            schedule.
        num_training_steps: optimizer steps of the whole run. Needed by schedules that depend on it.
        scheduler_specific_kwargs: schedule-specific arguments. For the constant and inverse square
            root schedules, unknown arguments are ignored with a warning.

    Returns:
        A schedule, to be stepped after each optimizer step; the plateau schedule, to be stepped
        with a metric after each evaluation.

    Raises:
        ValueError: the name is unknown, or a step count is missing.
        TypeError: the schedule has no argument of that name.
    """
    name = SchedulerType(name)
    kwargs = dict(scheduler_specific_kwargs or {})
    steps = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    if isinstance(optimizer, LayerwiseOptimizer):
        if name is SchedulerType.REDUCE_ON_PLATEAU:
            raise ValueError(
                f"The schedule {name.value!r} needs a metric, but a layerwise optimizer steps in "
                "the backward pass. Choose another schedule or optimizer."
            )
        make_schedule = partial(get_scheduler, name, scheduler_specific_kwargs=kwargs, **steps)
        return LayerwiseSchedule(optimizer, make_schedule)

    # Select the numbers of steps that the schedule accepts, and its specific arguments.
    signature_source: Callable[..., LRScheduler] = SCHEDULES[name]
    # The function of the plateau schedule passes any arguments to the class.
    if name is SchedulerType.REDUCE_ON_PLATEAU:
        signature_source = ReduceLROnPlateau
    parameters = inspect.signature(signature_source).parameters
    own_names = [key for key in parameters if key not in ("optimizer", *steps)]
    arguments = {key: value for key, value in steps.items() if key in parameters}
    arguments |= _known_arguments(name, kwargs, own_names)
    return SCHEDULES[name](optimizer, **arguments)


def _known_arguments(
    name: SchedulerType, kwargs: dict[str, Any], known: list[str]
) -> dict[str, object]:
    """Return the known schedule-specific arguments.

    Unknown arguments raise an error, or a warning for the schedules in `_LENIENT_SCHEDULES`.
    """
    unknown = [key for key in kwargs if key not in known]
    if unknown:
        message = (
            f"The schedule {name.value!r} has no argument {unknown}; its own arguments are {known}."
        )
        if name not in _LENIENT_SCHEDULES:
            raise TypeError(
                f"{message} Correct or remove it in the schedule's arguments "
                "(`lr_scheduler_kwargs`)."
            )
        logger.warning("%s It is ignored.", message)
    return {key: value for key, value in kwargs.items() if key in known}


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate schedule settings of a LightningModule.

    The fields correspond to `lr_scheduler_type`, `warmup_steps` and `lr_scheduler_kwargs` of
    `TrainingArguments`.

    In `configure_optimizers`, return `{"scheduler": config.build(optimizer), "interval": "step"}`
    as "lr_scheduler", with a "monitor" for the plateau schedule.
    """

    name: str | SchedulerType = SchedulerType.LINEAR.value
    """Name of the schedule, a `SchedulerType` or its value."""
    warmup_steps: float = 0
    """Optimizer steps in which the rate rises to its full value.

    A value below 1 is a fraction of `total_steps`, rounded up.
    """
    total_steps: int | None = None
    """Optimizer steps of the whole run, including the warm-up. None for schedules that do not need
    it.
    """
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Schedule-specific arguments, such as `num_cycles`, `power` or `min_lr`."""

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
    def needs_total_steps(self) -> bool:
        """Return whether the schedule needs `total_steps`, but it is None."""
        if self.total_steps is not None:
            return False
        parameters = inspect.signature(SCHEDULES[SchedulerType(self.name)]).parameters
        needs_length = "num_training_steps" in parameters and "num_stable_steps" not in self.kwargs
        is_warmup_fraction = 0 < self.warmup_steps < 1
        return needs_length or is_warmup_fraction

    def build(self, optimizer: Optimizer) -> LRScheduler:
        """Return the scheduler for this optimizer.

        Args:
            optimizer: a new optimizer with the peak learning rate.
        """
        warmup_steps = self._count_warmup_steps()
        return get_scheduler(self.name, optimizer, warmup_steps, self.total_steps, self.kwargs)

    def _count_warmup_steps(self) -> int:
        if self.warmup_steps >= 1 or self.warmup_steps == 0:
            return int(self.warmup_steps)
        if self.total_steps is None:
            raise ValueError(
                f"`warmup_steps` is {self.warmup_steps}, a fraction of `total_steps`: pass "
                "`total_steps` too."
            )
        return math.ceil(self.total_steps * self.warmup_steps)
