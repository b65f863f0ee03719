"""Import a library without what it imports itself and the run may never use."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from ..common.libraries import is_installed, loaded


class _Deferred(type):
    """A class or function that is looked up in its library when something is asked of it."""

    def _real(cls) -> Any:
        return getattr(importlib.import_module(cls.__module__), cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._real(), name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._real()(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        # Of a class whose module is not loaded there is no instance.
        return cls.__module__ in sys.modules and isinstance(instance, cls._real())


@contextlib.contextmanager
def deferring(module: str, **members: Any) -> Iterator[None]:
    """Stand in for a module for a while, where its library is installed.

    What others import of it meanwhile is looked up when they use it: that a library is loaded does not mean that all of
    its lazy modules are. `members` are there at once, by name.
    """
    if not loaded(module) and not is_installed(module.partition(".")[0]):
        yield
        return
    stand_in: Any = types.ModuleType(module)
    stand_in.__spec__ = ModuleSpec(module, None)
    stand_in.__getattr__ = functools.partial(_deferred, module)
    vars(stand_in).update(members)
    before = sys.modules.get(module)
    sys.modules[module] = stand_in
    try:
        yield
    finally:
        if before is not None:
            sys.modules[module] = before
        elif sys.modules.get(module) is stand_in:
            del sys.modules[module]


def _deferred(module: str, name: str) -> _Deferred:
    if name.startswith("__"):  # what Python itself asks of a module
        raise AttributeError(name)
    return _Deferred(name, (), {"__module__": module})
