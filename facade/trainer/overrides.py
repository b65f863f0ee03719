"""Detection of overridden or replaced methods."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any


def is_own(trainer: Any, name: str) -> bool:
    """Return whether a method is neither overridden in a subclass nor replaced on the object."""
    home = next((kind for kind in type(trainer).__mro__ if name in vars(kind)), None)
    if name in vars(trainer) or home is None:
        return False
    places = (home.__module__, getattr(vars(home)[name], "__module__", ""))
    return all(place.startswith(f"{__package__}.") for place in places) and not hasattr(
        vars(home)[name], "__wrapped__"
    )


def mentions(trainer: Any, name: str) -> bool:
    """Return whether the code of a subclass of the Trainer uses a name, or one that ends in it.

    Args:
        trainer: an object of the subclass.
        name: of an attribute or a function.
    """
    return any(used.endswith(name) for used in _names_used(type(trainer)))


@functools.lru_cache(maxsize=16)
def _names_used(trainer_class: type) -> frozenset[str]:
    """Return the names of attributes and global variables in the methods of classes that are not
    of this package.
    """
    names: set[str] = set()
    for base in trainer_class.__mro__:
        if base.__module__.startswith(f"{__package__}."):
            continue
        for method in vars(base).values():
            if isinstance(method, FunctionType):
                names.update(method.__code__.co_names)
    return frozenset(names)
