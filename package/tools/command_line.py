"""The argument parser of the commands, types of numbers on their command lines, and tables for
the terminal.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any


class CommandParser(ArgumentParser):
    """As `argparse.ArgumentParser`, for `lightrainer <command>`: no abbreviations, texts as they
    are written.

    Args:
        command: its name.
        description: shown before the options.
        epilog: shown after them.
        usage: by default made of the options.
    """

    def __init__(
        self, command: str, description: str, epilog: str, usage: str | None = None
    ) -> None:
        super().__init__(
            prog=f"lightrainer {command}",
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=RawDescriptionHelpFormatter,
        )

    def parse_own(self, words: Sequence[str], note: str, namespace: Any = None) -> Any:
        """Parse words; an unknown option ends the program with the nearest known one and the note.

        Args:
            words: of the command line.
            note: where to write options of the script.
            namespace: gets the values.
        """
        from ..lightning_modules.common.redaction import option_names
        from ..lightning_modules.common.suggestions import did_you_mean

        given, unknown = self.parse_known_args(words, namespace)
        if unknown:
            known = re.findall(r"--[\w-]+", self.format_help())
            name = option_names(unknown[:1])
            self.error(f"unknown option {name}.{did_you_mean(name, known)} {note}")
        return given

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override] - one for all
        """As in argparse, but the error names unknown options without their values, which may be
        secrets.
        """
        from ..lightning_modules.common.redaction import option_names

        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {option_names(unknown)}")
        return given


def whole(least: int = 1, most: float = math.inf) -> Callable[[str], int]:
    """Return an argparse `type` for whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        number = _read(text, int, "a whole number")
        _require(number >= least, text, f"at least {least}")
        _require(number <= most, text, f"at most {most:.0f}")
        return number

    return read


def positive(text: str) -> float:
    """Read a finite number above 0, for argparse."""
    number = _read(text, float, "a number")
    _require(0 < number < math.inf, text, "above 0, and finite")
    return number


def scaled(unit: float) -> Callable[[str], float]:
    """Return an argparse `type` for a positive number of units, such as 1e9 for GB."""
    return lambda text: positive(text) * unit


def share(text: str) -> float:
    """Read a number from 0 to below 1, for argparse."""
    number = _read(text, float, "a number")
    _require(0 <= number < 1, text, "at least 0 and below 1")
    return number


def count(text: str) -> int:
    """Read a whole number from 1, also as `7e9`, `7B` or `350M`, for argparse."""
    scale = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}.get(text[-1:].lower())
    number = _read(text[:-1] if scale else text, float, "a number, such as 7e9 or 7B") * (
        scale or 1
    )
    _require(1 <= number < math.inf, text, "at least 1")
    return round(number)


def table(rows: Sequence[Sequence[Any]], left: int = 1) -> list[str]:
    """Format rows as aligned lines, the first `left` columns to the left, the others to the
    right.
    """
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell!s:<{width}}" if column < left else f"{cell!s:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _read(text: str, kind: Callable[[str], Any], name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {name}") from None


def _require(holds: bool, text: str, limits: str) -> None:
    if not holds:
        raise ArgumentTypeError(f"{text!r} has to be {limits}")
