"""Detection of overridden or replaced methods."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType


def is_own(trainer: object, name: str) -> bool:
    """Return whether a method is the one of this package.

    It is not if a subclass overrides it, or if a script has replaced it: on the object, or on a
    class of this package.
    """
    method = getattr(trainer, name)
    function = getattr(method, "__func__", None)
    return isinstance(function, FunctionType) and _is_of_package(function)


def mentions(trainer: object, name: str) -> bool:
    """Return whether a method of the user uses a name, or one that ends in it.

    Args:
        trainer: the Trainer.
        name: the name of an attribute or a function.
    """
    for function in _functions_of_user(trainer):
        if any(used_name.endswith(name) for used_name in function.__code__.co_names):
            return True
    return False


def _functions_of_user(trainer: object) -> Iterator[FunctionType]:
    """Yield the functions behind the methods of a Trainer that are not from this package.

    They are in subclasses, or replace methods of the object or of a class of this package. A
    decorated method has several: the wrapper, and the function that it wraps.
    """
    trainer_class = type(trainer)
    replaced = {
        name: value for name, value in vars(trainer).items() if hasattr(trainer_class, name)
    }
    for methods in (replaced, *map(vars, trainer_class.__mro__)):
        for method in methods.values():
            # Methods of the object are bound; those of a class are functions.
            function = getattr(method, "__func__", method)
            while isinstance(function, FunctionType):
                if not _is_of_package(function):
                    yield function
                function = getattr(function, "__wrapped__", None)


def _is_of_package(function: FunctionType) -> bool:
    # `functools.wraps` copies `__module__` to a wrapper, but not the module whose code runs.
    module = str(function.__globals__.get("__name__"))
    return module.startswith(f"{__package__}.")
