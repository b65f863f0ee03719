"""Modules of the reference that were imported before the interception was switched on."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ..lightning_modules.common.libraries import loaded
from .finder import LIBRARY, ServedLoader, served_spec
from .modules import ServedModule, serve_top_level, stop_intercepting_top_level
from .names import SERVED, TOP_LEVEL


class Replaced:
    """Replaces modules that are loaded already, as far as that is safe, and can undo it.

    A module is replaced in `sys.modules` and in its package. Names that modules of the reference had taken from it are
    replaced there too. What other modules hold is theirs: they are named in a warning.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[dict[str, Any], str, Any]] = []
        self._replaced: dict[int, tuple[Any, str, str]] = {}

    def replace(self) -> None:
        """Replace the modules, and warn of those that keep the names they imported before."""
        library = loaded(LIBRARY)
        if library is None:
            sys.modules.pop(LIBRARY, None)
            return
        for inside in SERVED:
            module = sys.modules.get(f"{LIBRARY}.{inside}")
            if module is not None and not isinstance(module, ServedModule):
                self._replace_module(module, inside)
        for name in TOP_LEVEL:
            self._take(library.__dict__, name)
        serve_top_level(library, TOP_LEVEL)
        others = self._replace_names()
        if others:
            _warn(others)

    def put_back(self) -> None:
        """Undo everything; served modules that were imported since are forgotten, to be imported anew."""
        for name in [name for name, module in sys.modules.items() if isinstance(module, ServedModule)]:
            del sys.modules[name]
            package, _, inside = name.rpartition(".")
            vars(sys.modules.get(package, ModuleType(""))).pop(inside, None)
        library = sys.modules.get(LIBRARY)
        if library is not None:
            for name in TOP_LEVEL:
                library.__dict__.pop(name, None)
            stop_intercepting_top_level(library)
        for scope, name, value in reversed(self._undo):
            scope[name] = value
        self._undo.clear()
        self._replaced.clear()

    def _replace_module(self, module: ModuleType, inside: str) -> None:
        name = f"{LIBRARY}.{inside}"
        package = sys.modules[name.rpartition(".")[0]]
        # Other names stay the same objects, since modules hold them already.
        loader = ServedLoader(SERVED[inside], lambda asked: getattr(module, asked), lambda: dir(module))
        spec = served_spec(name)
        spec.loader = loader
        served = loader.create_module(spec)
        served.__dict__.update(__spec__=spec, __loader__=loader, __package__=spec.parent, __file__=spec.origin)
        for own in SERVED[inside]:
            value = vars(module).get(own)
            if isinstance(value, type) or callable(value):
                self._replaced[id(value)] = value, inside, own
        self._set(sys.modules, name, served)
        self._set(package.__dict__, name.rpartition(".")[2], served)

    def _replace_names(self) -> dict[str, list[str]]:
        """Replace what modules of the reference hold; returns what others hold, by module."""
        others: dict[str, list[str]] = {}
        for holder, name, value in list(_held(self._replaced)):
            if holder.__name__.partition(".")[0] != LIBRARY:
                others.setdefault(holder.__name__, []).append(name)
            elif not isinstance(value, type):  # a class may have been built upon
                _, inside, own = self._replaced[id(value)]
                self._set(holder.__dict__, name, getattr(sys.modules[f"{LIBRARY}.{inside}"], own))
        return others

    def _take(self, scope: dict[str, Any], name: str) -> None:
        if name in scope:
            self._undo.append((scope, name, scope.pop(name)))

    def _set(self, scope: dict[str, Any], name: str, value: Any) -> None:
        if name in scope:
            self._undo.append((scope, name, scope[name]))
        scope[name] = value


def _held(values: dict[int, Any]) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield the modules that hold one of the values, with the name of the variable."""
    for key, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or isinstance(module, ServedModule) or key == LIBRARY:
            continue
        if key.partition(".")[0] == LIBRARY and key.partition(".")[2] in SERVED:
            continue
        for name, value in list(vars(module).items()):
            if id(value) in values and values[id(value)][0] is value:
                yield module, name, value


def _warn(held: dict[str, list[str]]) -> None:
    shown = [f"{module} ({_some(names, 4)})" for module, names in held.items()]
    warnings.warn(
        "transformers was imported before lightrainer was installed, so some modules hold names that still are its "
        f"own: {_some(shown, 12)}. Import them again, or start the script with `python -m lightrainer`.",
        UserWarning,
        stacklevel=4,
    )


def _some(texts: list[str], most: int) -> str:
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])
