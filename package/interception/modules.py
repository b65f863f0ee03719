"""Modules that resolve each of their names on first access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from logging import getLogger
from types import ModuleType
from typing import Any

from .targets import renamed, resolve

_OWN_ATTRIBUTES = ("_served", "_get_original", "_original_names")
"""Internal attributes of a `ServedModule`, which `dir` leaves out."""


class ServedModule(ModuleType):
    """A module of transformers some of whose names come from this package.

    Args:
        name: the full name, such as `transformers.trainer`.
        served: the names that come from this package, each with its target.
        get_original: returns the value of any other name, or raises AttributeError.
        original_names: returns the names that `get_original` knows.
    """

    def __init__(
        self,
        name: str,
        served: Mapping[str, str],
        get_original: Callable[[str], Any],
        original_names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        super().__init__(name)
        self._served = served
        self._get_original = get_original
        self._original_names = original_names

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            # Leave out names that need a library that is not installed, so that
            # `from ... import *` works.
            public_names = [name for name in dir(self) if not name.startswith("_")]
            return [name for name in public_names if hasattr(self, name)]
        # Python and libraries look up names such as `__path__` and `__wrapped__` in any module.
        # This must not load the original module.
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            value = self._find(name)
        except AttributeError:
            successor = renamed(self.__name__, name)
            if successor is None:
                raise
            return successor
        # Cache the value: `__getattr__` is not called for attributes that exist.
        self.__dict__[name] = value
        return value

    def _find(self, name: str) -> Any:
        """Return the value of a name that the module does not hold yet."""
        if name in self._served:
            return resolve(self._served[name])
        if name == "logger":
            return getLogger(self.__name__)
        return self._get_original(name)

    def __dir__(self) -> list[str]:
        resolved_names = [name for name in self.__dict__ if name not in _OWN_ATTRIBUTES]
        return sorted({*resolved_names, *self._served, *self._original_names()})


class ServedLoader(Loader):
    """Returns a served module, whose names are resolved on first access.

    Args:
        module: the module.
    """

    def __init__(self, module: ServedModule) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are resolved on access."""


def serve_top_level(package: ModuleType, module_of_name: Mapping[str, str]) -> None:
    """Look up some names of a loaded package in served modules; idempotent.

    Only the class of the package's module object is changed, so everything else works as before.

    Args:
        package: the loaded package.
        module_of_name: for each name the module that has it, such as `trainer`.
    """
    original_class = type(package)
    if hasattr(original_class, "_original_class"):
        return

    class ServedPackage(original_class):
        """The package's own module class, with some names looked up in served modules."""

        _original_class = original_class

        def __getattr__(self, name: str) -> Any:
            if name in module_of_name:
                module = import_module(f"{self.__name__}.{module_of_name[name]}")
                value = getattr(module, name)
                self.__dict__[name] = value
                return value
            # Try the package's own lookup before old names.
            try:
                return super().__getattr__(name)
            except AttributeError:
                successor = None if name.startswith("__") else renamed(self.__name__, name)
                if successor is None:
                    raise
                return successor

        def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
            # The original class pickles a module by its class, which is a local class here.
            return import_module, (self.__name__,)

    package.__class__ = ServedPackage


def stop_intercepting_top_level(package: ModuleType) -> None:
    """Undo `serve_top_level`."""
    original_class = getattr(type(package), "_original_class", None)
    if original_class is not None:
        package.__class__ = original_class
