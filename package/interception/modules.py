"""Modules that resolve each name on first access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from logging import getLogger
from types import ModuleType
from typing import Any

from . import report
from .targets import renamed, resolve, written


class ServedModule(ModuleType):
    """Module of the reference that takes names in the table from this package, and all others from
    `theirs`.

    Args:
        name: In full, such as `transformers.trainer`.
        ours: The names that are served, each with its target.
        theirs: Called with any other name; returns its value, or raises AttributeError.
        their_names: The names that `theirs` knows.
    """

    def __init__(
        self,
        name: str,
        ours: Mapping[str, str],
        theirs: Callable[[str], Any],
        their_names: Callable[[], Any] = list,
    ) -> None:
        super().__init__(name)
        self.__dict__.update(_ours=ours, _theirs=theirs, _their_names=their_names)

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            # Some names are only there where another library is.
            return [one for one in dir(self) if not one.startswith("_") and hasattr(self, one)]
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            value = self._find(name)
        except AttributeError:
            old = renamed(self.__name__, name)
            if old is None:
                raise
            return old
        self.__dict__[name] = value
        return value

    def _find(self, name: str) -> Any:
        if name in self._ours:
            report.note(f"{self.__name__}.{name}", written(self._ours[name]))
            return resolve(self._ours[name])
        if name == "logger":
            return getLogger(self.__name__)
        value = self._theirs(name)
        report.note(f"{self.__name__}.{name}", "as it is in transformers")
        return value

    def __dir__(self) -> list[str]:
        own = [name for name in self.__dict__ if name not in ("_ours", "_theirs", "_their_names")]
        return sorted({*own, *self._ours, *self._their_names()})


class ServedLoader(Loader):
    """Creates a served module, whose names are resolved on first access."""

    def __init__(
        self, ours: Mapping[str, str], theirs: Callable[[str], Any], their_names: Any = list
    ) -> None:
        self._ours = ours
        self._theirs = theirs
        self._their_names = their_names

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, empty."""
        return ServedModule(spec.name, self._ours, self._theirs, self._their_names)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are resolved on access."""


def serve_top_level(module: ModuleType, top_level: Mapping[str, str]) -> None:
    """Resolve some names of a loaded package from served modules; does nothing the second time.

    Only the class of the module object is changed, so that everything else stays the package's own
    business.

    Args:
        module: The loaded package.
        top_level: For each name the module of the package, such as `trainer`, that has it.
    """
    kind = type(module)
    if hasattr(kind, "_plain_kind"):
        return

    class Served(kind):
        """Module class of the package itself, with some names looked up in served modules."""

        _plain_kind = kind

        def __getattr__(self, name: str) -> Any:
            if name in top_level:
                value = getattr(import_module(f"{self.__name__}.{top_level[name]}"), name)
                self.__dict__[name] = value
                return value
            try:
                return super().__getattr__(name)
            except AttributeError:
                old = None if name.startswith("__") else renamed(self.__name__, name)
                if old is None:
                    raise
                return old

        def __reduce__(self) -> Any:
            return import_module, (self.__name__,)

    module.__class__ = Served


def stop_intercepting_top_level(module: ModuleType) -> None:
    """Undo `serve_top_level`."""
    plain = getattr(type(module), "_plain_kind", None)
    if plain is not None:
        module.__class__ = plain
