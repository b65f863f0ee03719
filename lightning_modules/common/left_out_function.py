"""Functions that a checkpoint does not hold: it keeps their names, so that none is replaced by a default silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

_KEY = "function"


@dataclass(frozen=True)
class LeftOutFunction:
    """A function that was used in a training, and is not passed again.

    Args:
        argument: of the module.
        name: of the function.
    """

    argument: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to go on without the function.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"The checkpoint was written with the function {self.name} as `{self.argument}`, which it does not hold. "
            f"Pass it again: load_from_checkpoint(path, {self.argument}=...)."
        )


def describe_function(function: Callable[..., Any]) -> dict[str, str]:
    """Return what a checkpoint keeps of a function: its name."""
    if isinstance(function, LeftOutFunction):
        return {_KEY: function.name}
    return {_KEY: getattr(function, "__name__", type(function).__name__)}


def left_out_function(described: Any, argument: str) -> LeftOutFunction | None:
    """Return a stand-in for what `describe_function` returned; None for anything else."""
    if isinstance(described, dict) and set(described) == {_KEY}:
        return LeftOutFunction(argument, described[_KEY])
    return None
