"""The optimizer's own arguments, which a user writes as one text: "momentum=0.9,nesterov=true" (`optim_args`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["OptimizerArguments", "dtype", "flag", "parse_optimizer_args"]

_TRUE, _FALSE = ("true", "1", "yes", "y", "t", "on"), ("false", "0", "no", "n", "f", "off")

T = TypeVar("T")
D = TypeVar("D")


def parse_optimizer_args(text: str | None) -> dict[str, str]:
    """Read "momentum=0.9, nesterov=true" into a dict of strings; spaces do not matter.

    Raises:
        ValueError: when a part is not of the form `name=value`.
    """
    parsed: dict[str, str] = {}
    for part in text.replace(" ", "").split(",") if text else []:
        name, equals, value = part.partition("=")
        if not (name and equals) or "=" in value:
            raise ValueError(
                f"The optimizer arguments (`optim_args`) {text!r} cannot be read at {part!r}: write them as "
                "name=value, separated by commas, such as 'momentum=0.9,nesterov=true'."
            )
        parsed[name] = value
    return parsed


class OptimizerArguments:
    """The parsed text, from which each builder takes what it knows; what is left has no effect.

    Args:
        text: as for `parse_optimizer_args`.
    """

    def __init__(self, text: str | None) -> None:
        self._left = parse_optimizer_args(text)

    @property
    def left(self) -> list[str]:
        """Names that nobody has taken."""
        return list(self._left)

    def take(self, name: str, read: Callable[[str], T], default: D) -> T | D:
        """The value of one argument.

        Args:
            name: of the argument.
            read: turns text into a value: `float`, `int`, `str`, `flag` or `dtype`.
            default: the result where the argument is not given.

        Raises:
            ValueError: when the text is not such a value; names the argument and the text.
        """
        if name not in self._left:
            return default
        text = self._left.pop(name)
        try:
            return read(text)
        except ValueError:
            kind = _KINDS[read]
            raise ValueError(f"The optimizer argument {name}={text!r} (`optim_args`) must be {kind}.") from None

    def given(self, read: Callable[[str], Any], *names: str) -> dict[str, Any]:
        """The values of those of the named arguments that are given."""
        return {name: self.take(name, read, None) for name in names if name in self._left}


def flag(text: str) -> bool:
    """Read "true", "1", "yes", ... or "false", "0", "no", ... in upper or lower case."""
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def dtype(text: str) -> torch.dtype:
    """Read "bfloat16" or another name of a dtype in `torch`."""
    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(text)
    return found


_KINDS: dict[Callable[[str], Any], str] = {
    float: "a number",
    int: "a whole number",
    flag: "true or false",
    dtype: "the name of a torch dtype, such as 'bfloat16'",
}
