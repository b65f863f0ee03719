"""Detection of overridden or replaced methods."""

from __future__ import annotations

import functools
from types import FunctionType


def is_own(trainer: object, name: str) -> bool:
    """Return whether a method is neither overridden in a subclass nor replaced on the object."""
    if name in vars(trainer):
        return False
    for trainer_class in type(trainer).__mro__:
        if name in vars(trainer_class):
            method = vars(trainer_class)[name]
            # `functools.wraps` gives a wrapper the module of the method that it wraps.
            modules = (trainer_class.__module__, getattr(method, "__module__", ""))
            is_of_package = all(module.startswith(f"{__package__}.") for module in modules)
            return is_of_package and not hasattr(method, "__wrapped__")
    return False


def mentions(trainer: object, name: str) -> bool:
    """Return whether the code of a subclass of the Trainer uses a name, or one that ends in it.

    Args:
        trainer: an object of the subclass.
        name: the name of an attribute or a function.
    """
    return any(used_name.endswith(name) for used_name in _names_used(type(trainer)))


@functools.lru_cache(maxsize=16)
def _names_used(trainer_class: type) -> frozenset[str]:
    """Return the names of attributes and globals that methods of a script's classes use."""
    names: set[str] = set()
    for base in trainer_class.__mro__:
        if base.__module__.startswith(f"{__package__}."):
            continue
        for method in vars(base).values():
            if isinstance(method, FunctionType):
                names.update(method.__code__.co_names)
    return frozenset(names)
