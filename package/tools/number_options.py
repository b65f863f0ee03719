"""Numbers on the command lines of `lightrainer`: what cannot be is refused as the option is read, with its name."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable


def whole(least: int = 1, most: float = math.inf) -> Callable[[str], int]:
    """Return an argparse `type` for whole numbers from `least` to `most`; there is no such thing in the reference."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise ArgumentTypeError(f"{text!r} has to be at least {least}")
        if number > most:
            raise ArgumentTypeError(f"{text!r} has to be at most {most:.0f}")
        return number

    return read


def positive(text: str) -> float:
    """Read a finite number above 0, for argparse; there is no such thing in the reference."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(number) or number <= 0:
        raise ArgumentTypeError(f"{text!r} has to be above 0, and finite")
    return number
