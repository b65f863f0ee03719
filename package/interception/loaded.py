"""Modules of the reference that were imported before the interception was switched on."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

from ..lightning_modules.common.libraries import loaded
from .finder import LIBRARY, served_spec
from .modules import ServedLoader, ServedModule, serve_top_level, stop_intercepting_top_level
from .names import SERVED, TOP_LEVEL


class Replaced:
    """Replaces modules that are loaded already, and can undo it.

    A module is replaced in `sys.modules` and in its package. Names that other modules took from it stay theirs; a
    warning names these modules.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[dict[str, Any], str, Any]] = []

    def replace(self) -> None:
        """Replace the modules, and warn of those that keep the names they imported before."""
        library = loaded(LIBRARY)
        if library is None:
            sys.modules.pop(LIBRARY, None)
            return
        originals: dict[int, Any] = {}
        for inside in SERVED:
            module = sys.modules.get(f"{LIBRARY}.{inside}")
            if module is not None and not isinstance(module, ServedModule):
                values = (vars(module).get(name) for name in SERVED[inside])
                originals |= {id(value): value for value in values if callable(value)}
                self._replace_module(module, inside)
        for name in TOP_LEVEL:
            if name in library.__dict__:
                self._undo.append((library.__dict__, name, library.__dict__.pop(name)))
        serve_top_level(library, TOP_LEVEL)
        holders = _holders(originals)
        if holders:
            _warn(holders)

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

    def _replace_module(self, module: ModuleType, inside: str) -> None:
        name = f"{LIBRARY}.{inside}"
        package, _, last = name.rpartition(".")
        # Other names stay the same objects, since modules hold them already.
        loader = ServedLoader(SERVED[inside], lambda asked: getattr(module, asked), lambda: dir(module))
        spec = served_spec(name)
        spec.loader = loader
        served = loader.create_module(spec)
        served.__dict__.update(__spec__=spec, __loader__=loader, __package__=spec.parent, __file__=spec.origin)
        for scope, key in ((sys.modules, name), (vars(sys.modules[package]), last)):
            if key in scope:
                self._undo.append((scope, key, scope[key]))
            scope[key] = served


def _holders(originals: dict[int, Any]) -> dict[str, list[str]]:
    """Return the names of variables that hold one of the values, by module, outside the library."""
    found: dict[str, list[str]] = {}
    for key, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or key.partition(".")[0] == LIBRARY:
            continue
        for name, value in list(vars(module).items()):
            if originals.get(id(value)) is value and value is not None:
                found.setdefault(module.__name__, []).append(name)
    return found


def _warn(held: dict[str, list[str]]) -> None:
    shown = [f"{module} ({_some(names, 4)})" for module, names in held.items()]
    said = f"transformers was imported before lightrainer was installed, and still holds {_some(shown, 12)}"
    warnings.warn(f"{said}. Import them again, or start with `python -m lightrainer`.", UserWarning, stacklevel=4)


def _some(texts: list[str], most: int) -> str:
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])
