"""Compute the factors of learning rate schedules as functions of the step.

`step` counts optimizer steps from 0; `warmup`, `total`, `stable` and `decay` are numbers of
optimizer steps; `cycles` are periods of a cosine, half of which falls from 1 to 0; `floor` is the
lowest factor after the warm-up. The sources of the formulas are in `schedules`. The order of the
floating point operations is that of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import cast

_AT_LEAST_0 = (
    "num_warmup_steps",
    "num_training_steps",
    "num_decay_steps",
    "num_stable_steps",
    "num_cycles",
    "power",
    "lr_end",
    "min_lr",
    "min_lr_rate",
    "min_lr_ratio",
    "warmup_lr_rate",
    "patience",
    "cooldown",
    "threshold",
    "eps",
    "warmup",
    "reset_start",
)
_ABOVE_0 = ("timescale", "factor", "max_lr", "window_size")
_MAY_BE_NONE = (
    "num_warmup_steps",
    "num_training_steps",
    "num_decay_steps",
    "num_stable_steps",
    "timescale",
    "min_lr",
    "min_lr_rate",
    "warmup_lr_rate",
)
"""Arguments that have a computed default, or for which another check reports None."""


def number_problems(arguments: Mapping[str, object]) -> list[str]:
    """Return a message for each invalid number among a schedule's arguments.

    Args:
        arguments: the arguments of the functions in `schedules`, and of torch's
            `ReduceLROnPlateau`, by name. Other arguments are not checked.
    """
    problems: list[str] = []
    for name, value in arguments.items():
        problem = _problem(name, value)
        if problem is not None:
            problems.append(problem)
    return problems


def require_numbers(owner: str, arguments: Mapping[str, object]) -> None:
    """Raise an error with the messages of `number_problems`, if there are any.

    Args:
        owner: name of the function or class, for the message.
        arguments: the arguments by name.

    Raises:
        TypeError: the invalid arguments are not numbers.
        ValueError: a number is out of range.
    """
    problems = number_problems(arguments)
    if not problems:
        return
    message = f"{owner}: {' '.join(problems)}"
    if all(_NOT_A_NUMBER in problem for problem in problems):
        raise TypeError(message)
    raise ValueError(message)


_NOT_A_NUMBER = "must be a number"


def _problem(name: str, value: object) -> str | None:
    """Return the problem of an argument, or None."""
    if name not in _AT_LEAST_0 and name not in _ABOVE_0:
        return None
    if value is None and name in _MAY_BE_NONE:
        return None

    # These may be lists with a rate for each parameter group.
    if name in ("min_lr", "max_lr") and isinstance(value, (list, tuple)):
        for rate in value:
            problem = _problem(name, rate)
            if problem is not None:
                return problem
        return None

    if isinstance(value, bool) or not isinstance(value, Real):
        return f"`{name}` {_NOT_A_NUMBER}, but is {value!r}."
    # `Real` does not declare comparisons.
    number = cast("float", value)
    if name in _ABOVE_0:
        is_large_enough = number > 0
        least = "above 0"
    else:
        is_large_enough = number >= 0
        least = "at least 0"
    if is_large_enough and math.isfinite(number):
        return None
    return f"`{name}` must be {least} and finite, but is {value!r}."


def _ramp(step: int, warmup: float) -> float:
    return float(step) / float(max(1, warmup))


def _progress(step: int, warmup: int, total: int) -> float:
    return float(step - warmup) / float(max(1, total - warmup))


def _half_cosine(progress: float, cycles: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))


def _lift(factor: float, floor: float) -> float:
    """Map the range 0 to 1 linearly to the range `floor` to 1."""
    return factor * (1 - floor) + floor


def constant(_step: int) -> float:
    """Return 1."""
    return 1.0


def constant_after_warmup(step: int, *, warmup: int) -> float:
    """Return a linear warm-up to 1, then 1."""
    if step < warmup:
        return _ramp(step, warmup)
    return 1.0


def linear(step: int, *, warmup: int, total: int) -> float:
    """Return a linear warm-up to 1, then a linear decay to 0."""
    if step < warmup:
        return _ramp(step, warmup)
    return max(0.0, float(total - step) / float(max(1, total - warmup)))


def cosine(step: int, *, warmup: int, total: int, cycles: float, floor: float) -> float:
    """Return a linear warm-up to 1, then a cosine between 1 and `floor`."""
    if step < warmup:
        return _ramp(step, warmup)
    factor = _half_cosine(_progress(step, warmup, total), float(cycles))
    return max(0.0, _lift(factor, floor))


def cosine_restarts(step: int, *, warmup: int, total: int, cycles: float) -> float:
    """Return a linear warm-up to 1, then `cycles` cosine decays from 1 to 0."""
    if step < warmup:
        return _ramp(step, warmup)
    progress = _progress(step, warmup, total)
    if progress >= 1.0:
        return 0.0
    share_of_cycle = (float(cycles) * progress) % 1.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * share_of_cycle)))


def cosine_from_first_step(
    step: int, *, warmup: int, total: int, cycles: float, floor: float, start: float | None
) -> float:
    """Return the factor of `cosine` one step later. The warm-up begins at `start`, if passed."""
    if step < warmup:
        if start is None:
            return (step + 1.0) / max(1.0, float(warmup))
        return start + (1.0 - start) * float(step) / max(1.0, warmup - 1.0)
    progress = (float(step) - float(warmup) + 1.0) / max(1.0, float(total) - float(warmup))
    factor = _half_cosine(progress, cycles)
    return max(0.0, _lift(factor, floor))


def polynomial(
    step: int, *, warmup: int, total: int, lr_start: float, lr_end: float, power: float
) -> float:
    """Return a linear warm-up to 1, then a polynomial decay.

    It decays to the factor that corresponds to the learning rate `lr_end`.
    """
    if step < warmup:
        return _ramp(step, warmup)
    # Without steps after the warm-up the slope is undefined; the reference divides by zero here.
    if step > total or total == warmup:
        return lr_end / lr_start
    remaining = 1 - (step - warmup) / (total - warmup)
    # Divide by the initial rate, because LambdaLR multiplies by it.
    return ((lr_start - lr_end) * remaining**power + lr_end) / lr_start


def inverse_sqrt(step: int, *, warmup: int, timescale: int) -> float:
    """Return a linear warm-up to 1, then an inverse square root decay."""
    if step < warmup:
        return _ramp(step, warmup)
    return 1.0 / math.sqrt((step + (timescale - warmup)) / timescale)


def _rise(kind: str, done: float) -> float:
    if kind == "linear":
        return done
    if kind == "cosine":
        return 0.5 * (1.0 - math.cos(math.pi * done))
    return 1.0 - math.sqrt(1.0 - done)


def _fall(kind: str, done: float, cycles: float) -> float:
    if kind == "linear":
        return 1.0 - done
    if kind == "cosine":
        return _half_cosine(done, cycles)
    return 1.0 - math.sqrt(done)


def warmup_stable_decay(
    step: int,
    *,
    warmup: int,
    stable: int,
    decay: int,
    rise: str,
    fall: str,
    floor: float,
    cycles: float,
) -> float:
    """Return a warm-up from `floor` to 1, then 1 for `stable` steps, then a decay to `floor`."""
    if step < warmup:
        factor = _rise(rise, _ramp(step, warmup))
        return max(0.0, _lift(factor, floor))
    if step < warmup + stable:
        return 1.0

    # Compare with the sum as transformers does, because rounding differs for fractional steps.
    if step < warmup + stable + decay:
        done = float(step - warmup - stable) / float(max(1, decay))
        factor = _fall(fall, done, float(cycles))
        return max(0.0, _lift(factor, floor))
    return floor
