"""Axes: where a value is on them, and which values are written beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

_SMALLEST = 1e-300
"""Below it a float has fewer digits, until it is zero."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Scale:
    """From values to places between 0 and 1."""

    low: float
    high: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value is, 0 for the lower end and 1 for the upper one."""
        low, high = self._stretched(self.low), self._stretched(self.high)
        return (self._stretched(value) - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Round values to be written beside the axis."""
        return _powers(self.low, self.high) if self.is_logarithmic else round_values(self.low, self.high)

    def _stretched(self, value: float) -> float:
        return math.log10(value) if self.is_logarithmic else value


def fitting(values: list[float], *, from_zero: bool = False, may_be_logarithmic: bool = False) -> Scale:
    """The scale on which values are seen well; logarithmic where they are hundredfold apart, and that is allowed."""
    low, high = min(values), max(values)
    if may_be_logarithmic and low > _SMALLEST and high / low > 100:
        return Scale(low / 1.15, high * 1.15, is_logarithmic=True)
    low = min(low, 0.0) if from_zero else low
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low if from_zero and low == 0 else low - room, high + room)


def round_values(low: float, high: float, about: int = 5) -> list[float]:
    """Some five multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + index) * step for index in range(count)]


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = max(1, math.ceil((last - first + 1) / 5))
    return [10.0**power for power in range(first, last + 1, every)] or [low, high]


def short(value: float, digits: int = 4) -> str:
    """A number for people: `12.3k`, `0.0213`, `5e-5`, `NaN`, `∞`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-3:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return f"{_trimmed(mantissa)}e{int(power)}"
    for factor, prefix in _PREFIXES:
        if size >= factor * (10 if prefix == "k" else 1):
            return f"{_trimmed(f'{value / factor:.{digits}g}')}{prefix}"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
