"""Detection of overridden or replaced methods."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import partial, partialmethod
from types import FunctionType, MethodType


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

    They are in subclasses, or replace methods of the object or of a class of this package.
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

    A decorated method has several: the wrapper, and the function that it wraps. A partial has the
    function that it calls, and an object its `__call__`.

    Args:
        method: an attribute of a Trainer or its class.
        name: the name of the attribute. A wrapper may hold the function of that name in its
            closure; other functions there are helpers, which are searched nowhere.
    """
    pending = [method, inspect.getattr_static(type(method), "__call__", None)]
    seen: list[object] = []
    while pending:
        value = pending.pop()
        if any(value is other for other in seen):
            continue
        seen.append(value)

        # Methods of the object are bound; those of a class are functions.
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
    # `functools.wraps` copies `__module__` to a wrapper, but not the module whose code runs.
    module = str(function.__globals__.get("__name__"))
    return module.startswith(f"{__package__}.")
