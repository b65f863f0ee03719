"""The argument parser of the commands, types of numbers for it, and tables for the terminal."""

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
    """As `argparse.ArgumentParser`, for `lightrainer <command>`.

    Options cannot be abbreviated, and texts are not wrapped.

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
        """Add `script`, and `words`: the arguments of the script, all that follows its name."""
        self.add_argument("script", metavar="SCRIPT", help=description)
        words = self.add_argument(
            "words", metavar="ARGUMENTS", nargs=REMAINDER, help="arguments for the script"
        )
        # argparse requires them, although they may be none.
        words.required = False

    def parse_own(self, words: Sequence[str], note: str, namespace: object = None) -> Any:
        """Parse words; the error for an unknown option names the nearest known one.

        Args:
            words: the words of the command line.
            note: says in the error where to write options of the script.
            namespace: gets the values.
        """
        from ..lightning_modules.common.redaction import option_names
        from ..lightning_modules.common.suggestions import did_you_mean

        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            # Only the name, as the value of an option may be a secret.
            name = option_names(unknown[:1])
            known_options = re.findall(r"--[\w-]+", self.format_help())
            suggestion = did_you_mean(name, known_options)
            self.error(f"unknown option {name}.{suggestion} {note}")
        return options

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override] - one for all
        """As in argparse, but errors name unknown options without values, which may be secrets."""
        from ..lightning_modules.common.redaction import option_names

        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {option_names(unknown)}")
        return options


def spellings(name: str) -> list[str]:
    """Return an option with underscores and, if that differs, with dashes."""
    with_underscores = f"--{name}"
    with_dashes = f"--{name.replace('_', '-')}"
    if with_underscores == with_dashes:
        return [with_underscores]
    return [with_underscores, with_dashes]


def whole(minimum: int = 1, maximum: float = math.inf) -> Callable[[str], int]:
    """Return an argparse `type` for whole numbers from `minimum` to `maximum`."""

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


def share(text: str) -> float:
    """Parse a number from 0 to below 1, for argparse."""
    number = _parse(text, float, "a number")
    _require(0 <= number < 1, text, "at least 0 and below 1")
    return number


def table(rows: Sequence[Sequence[object]], left: int = 1) -> list[str]:
    """Format rows as lines with aligned columns.

    Args:
        rows: at least one; all of the same length.
        left: how many of the first columns are aligned to the left; the others to the right.
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
            if index < left:
                cells.append(text.ljust(width))
            else:
                cells.append(text.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def _parse(text: str, number_type: type[Number], description: str) -> Number:
    """Parse a number; the description says in the error what is expected."""
    try:
        return number_type(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {description}") from None


def _require(is_valid: bool, text: str, limits: str) -> None:
    if not is_valid:
        raise ArgumentTypeError(f"{text!r} has to be {limits}")
