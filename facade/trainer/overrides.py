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
    return any(_refers_to(function, name) for function in _functions_of_user(trainer))


def may_use_number(trainer: object, name: str, number: int) -> bool:
    """Return whether the user's methods may use the value of a training argument.

    This is the case if they, or functions of the same package that they call, refer to the
    argument, or to another variable or attribute of the Trainer with the same value.

    Args:
        trainer: the Trainer.
        name: the name of the training argument.
        number: its value.
    """
    pending = list(_functions_of_user(trainer))
    seen: set[FunctionType] = set()
    while pending:
        function = pending.pop()
        if function in seen or _top_level_package(function) == __name__.partition(".")[0]:
            continue
        seen.add(function)

        if _refers_to(function, name):
            return True
        values = list(_closure_of(function))
        for used_name in function.__code__.co_names:
            values += (function.__globals__.get(used_name), vars(trainer).get(used_name))
        for value in values:
            if type(value) is int and value == number:
                return True
            if not isinstance(value, FunctionType):
                continue
            if _top_level_package(value) == _top_level_package(function):
                pending.append(value)
    return False


def _refers_to(function: FunctionType, name: str) -> bool:
    """Return whether the code of a function has a name, or one that ends with it."""
    return any(used_name.endswith(name) for used_name in function.__code__.co_names)


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
            for variable in _closure_of(value):
                if getattr(variable, "__name__", None) == name:
                    pending.append(variable)


def _closure_of(function: FunctionType) -> Iterator[object]:
    """Yield the values of the variables in the closure of a function."""
    for cell in function.__closure__ or ():
        # A cell is empty until its variable is assigned.
        with suppress(ValueError):
            yield cell.cell_contents


def _is_of_package(function: FunctionType) -> bool:
    return _module_of(function).startswith(f"{__package__}.")


def _top_level_package(function: FunctionType) -> str:
    return _module_of(function).partition(".")[0]


def _module_of(function: FunctionType) -> str:
    # Read the globals instead of `__module__`, which `functools.wraps` copies to wrappers of other
    # modules.
    return str(function.__globals__.get("__name__"))
