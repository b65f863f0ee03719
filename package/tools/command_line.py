"""The argument parser of the commands, its number types, and tables for the terminal."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
import re
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)


class CommandParser(ArgumentParser):
    """An `argparse.ArgumentParser` for `lightrainer <command>`.

    Options cannot be abbreviated, and descriptions are printed without rewrapping.

    Args:
        command: the name of the command.
        description: text before the options.
        epilog: text after the options.
        usage: by default derived from the options.
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

    def add_script(self, description: str = "the script, a Python file") -> None:
        """Add `script`, and `words` for the arguments that follow the name of the script."""
        self.add_argument("script", metavar="SCRIPT", help=description)
        words = self.add_argument(
            "words", metavar="ARGUMENTS", nargs=REMAINDER, help="arguments for the script"
        )
        # Without this, argparse reports a missing script as "SCRIPT, ARGUMENTS are required".
        words.required = False

    def parse_with_advice(self, words: Sequence[str], advice: str, namespace: object = None) -> Any:
        """Parse words; the error for an unknown option suggests a similar known one.

        Args:
            words: the words of the command line.
            advice: a sentence for that error about where to put the options of the script.
            namespace: the object to set the values on; by default a new `argparse.Namespace`.
        """
        from ..lightning_modules.common.redaction import option_names
        from ..lightning_modules.common.suggestions import did_you_mean

        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            # Show only the name, because the value of an option may be a secret.
            name = option_names(unknown[:1])
            # argparse keeps the options in private attributes, and prints them.
            known_options = re.findall(r"--[\w-]+", self.format_help())
            suggestion = did_you_mean(name, known_options)
            self.error(f"unknown option {name}.{suggestion} {advice}")
        return options

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override] - argparse has an overload for each type of `namespace`
        """Parse words as argparse does, but leave the values of unknown options out of errors.

        A value may be a secret.
        """
        from ..lightning_modules.common.redaction import option_names

        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {option_names(unknown)}")
        return options


def spellings(name: str) -> list[str]:
    """Return the spellings of an option: with underscores and, if different, with dashes."""
    with_underscores = f"--{name}"
    with_dashes = f"--{name.replace('_', '-')}"
    if with_underscores == with_dashes:
        return [with_underscores]
    return [with_underscores, with_dashes]


def integer(minimum: int = 1, maximum: float = math.inf) -> Callable[[str], int]:
    """Return a `type` for argparse that parses whole numbers from `minimum` to `maximum`."""

    def parse(text: str) -> int:
        number = _parse(text, int, "a whole number")
        _require(number >= minimum, text, f"at least {minimum}")
        _require(number <= maximum, text, f"at most {maximum:.0f}")
        return number

    return parse


def positive(text: str) -> float:
    """Parse a finite number above 0, for argparse."""
    number = _parse(text, float, "a number")
    _require(0 < number < math.inf, text, "above 0, and finite")
    return number


def fraction(text: str) -> float:
    """Parse a number of at least 0 and less than 1, for argparse."""
    number = _parse(text, float, "a number")
    _require(0 <= number < 1, text, "at least 0 and below 1")
    return number


def table(rows: Sequence[Sequence[object]], left_aligned: int = 1) -> list[str]:
    """Format rows as lines with aligned columns.

    Args:
        rows: at least one row; all rows have the same length.
        left_aligned: number of leading columns to align left; the others are aligned right.
    """
    # A column is as wide as its longest cell.
    widths: list[int] = []
    for column in zip(*rows, strict=True):
        widths.append(max(len(str(cell)) for cell in column))

    lines: list[str] = []
    for row in rows:
        cells: list[str] = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            text = str(cell)
            if index < left_aligned:
                cells.append(text.ljust(width))
            else:
                cells.append(text.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def _parse(text: str, number_type: type[Number], expected: str) -> Number:
    """Parse a number; the error reads "'1.5' is not {expected}"."""
    try:
        return number_type(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {expected}") from None


def _require(is_valid: bool, text: str, limits: str) -> None:
    """Raise unless a number is valid; the error reads "'7' has to be {limits}"."""
    if not is_valid:
        raise ArgumentTypeError(f"{text!r} has to be {limits}")
