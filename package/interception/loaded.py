"""Modules of the reference that were imported before the interception was switched on."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

from ..lightning_modules.common.libraries import loaded
from .finder import LIBRARY
from .modules import ServedModule, serve_top_level, stop_intercepting_top_level
from .names import SERVED, TOP_LEVEL
from .targets import resolve

_ABSENT = object()
_MOST_MODULES = 12
_MOST_NAMES = 4


class Replaced:
    """Sets the served names in modules that are loaded already, and can undo it.

    Names that other modules took from them stay theirs; a warning names these modules.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[dict[str, Any], str, Any]] = []

    def replace(self) -> None:
        """Set the names, and warn of modules that keep those they imported before."""
        library = loaded(LIBRARY)
        if library is None:
            sys.modules.pop(LIBRARY, None)
            return
        originals: dict[int, Any] = {}
        for inside, targets in SERVED.items():
            module = sys.modules.get(f"{LIBRARY}.{inside}")
            if module is None or isinstance(module, ServedModule):
                continue
            for name, target in targets.items():
                original = vars(module).get(name, _ABSENT)
                if callable(original):
                    originals[id(original)] = original
                self._undo.append((vars(module), name, original))
                setattr(module, name, resolve(target))
        for name in TOP_LEVEL:
            if name in vars(library):
                self._undo.append((vars(library), name, vars(library).pop(name)))
        serve_top_level(library, TOP_LEVEL)
        holders = _holders(originals)
        if holders:
            _warn(holders)

    def put_back(self) -> None:
        """Undo everything; served modules that were imported since are forgotten, to be imported
        again.
        """
        for name in [
            name for name, module in sys.modules.items() if isinstance(module, ServedModule)
        ]:
            del sys.modules[name]
            package, _, inside = name.rpartition(".")
            vars(sys.modules.get(package, ModuleType(""))).pop(inside, None)
        library = sys.modules.get(LIBRARY)
        if library is not None:
            for name in TOP_LEVEL:
                vars(library).pop(name, None)
            stop_intercepting_top_level(library)
        for scope, name, original in self._undo:
            if original is _ABSENT:
                del scope[name]
            else:
                scope[name] = original
        self._undo.clear()


def _holders(originals: dict[int, Any]) -> dict[str, list[str]]:
    """Return the names of variables that hold one of the values, by module, outside the library."""
    found: dict[str, list[str]] = {}
    for key, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or key.partition(".")[0] == LIBRARY:
            continue
        for name, value in list(vars(module).items()):
            if id(value) in originals:
                found.setdefault(module.__name__, []).append(name)
    return found


def _warn(holders: dict[str, list[str]]) -> None:
    modules = [f"{module} ({_some(names, _MOST_NAMES)})" for module, names in holders.items()]
    warnings.warn(
        "transformers was imported before lightrainer was installed, and these modules still hold "
        f"names of it: {_some(modules, _MOST_MODULES)}. Import them again, or start with `python "
        "-m lightrainer`.",
        UserWarning,
        stacklevel=4,
    )


def _some(texts: list[str], most: int) -> str:
    """Join the first texts, with the number of the others."""
    shown = texts[:most]
    if len(texts) > most:
        shown.append(f"and {len(texts) - most} more")
    return ", ".join(shown)
