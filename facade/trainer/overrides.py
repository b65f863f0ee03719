"""Detection of overridden or replaced methods."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import partial, partialmethod
from types import FunctionType, MethodType


def is_own(trainer: object, name: str) -> bool:
    """Return whether a method is the original one of this package.

    Returns False if a subclass overrides the method, or if a script has replaced it on the instance
    or on a class of this package.
    """
    method = getattr(trainer, name)
    function = getattr(method, "__func__", None)
    return isinstance(function, FunctionType) and _is_of_package(function)


def mentions(trainer: object, name: str) -> bool:
    """Return whether the user's methods refer to a name, or to one that ends with it.

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

    These are methods of subclasses, and functions that replace methods of the instance or of a
    class of this package.
    """
    trainer_class = type(trainer)
    replaced = {
        name: value for name, value in vars(trainer).items() if hasattr(trainer_class, name)
    }
    for methods in (replaced, *map(vars, trainer_class.__mro__)):
        for name, method in methods.items():
            yield from _functions_behind(method, name)


def _functions_behind(method: object, name: str) -> Iterator[FunctionType]:
    """Yield the functions behind one method that are not from this package.

    For a decorated method these are the wrapper and the wrapped function, for a `partial` the
    function that it calls, and for a callable object its `__call__`.

    Args:
        method: an attribute of a Trainer or its class.
        name: the name of the attribute. A wrapper may hold the function with this name in its
            closure; other functions in the closure are helpers and are ignored.
    """
    pending = [method, inspect.getattr_static(type(method), "__call__", None)]
    seen: list[object] = []
    while pending:
        value = pending.pop()
        if any(value is other for other in seen):
            continue
        seen.append(value)

        # Methods of the instance are bound; attributes of a class are functions.
        if isinstance(value, MethodType):
            pending.append(value.__func__)
        if isinstance(value, (partial, partialmethod)):
            pending.append(value.func)
        pending.append(getattr(value, "__dict__", {}).get("__wrapped__"))

        if isinstance(value, FunctionType) and not _is_of_package(value):
            yield value
            for cell in value.__closure__ or ():
                # A cell is empty until its variable is assigned.
                with suppress(ValueError):
                    if getattr(cell.cell_contents, "__name__", None) == name:
                        pending.append(cell.cell_contents)


def _is_of_package(function: FunctionType) -> bool:
    # Read the globals instead of `__module__`, which `functools.wraps` copies to wrappers of other
    # modules.
    module = str(function.__globals__.get("__name__"))
    return module.startswith(f"{__package__}.")
