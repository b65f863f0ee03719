"""Import finder and loaders for served modules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .modules import ServedLoader, serve_top_level
from .names import SERVED, TOP_LEVEL
from .shadow import Shadow
from .stand_in import package
from .targets import RENAMED

LIBRARY = "transformers"


class Finder:
    """Finder for `sys.meta_path` that serves the modules of the table, and leaves others to the
    other finders.
    """

    is_of_lightrainer = True

    def __init__(self) -> None:
        self.serves_from_the_start = False
        """True if this process intercepts from its start: then it holds no model yet when the
        library is loaded.
        """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As `importlib.abc.MetaPathFinder.find_spec`.

        Raises:
            ModuleNotFoundError: The reference is not installed, and its stand-in has no such
                module.
        """
        library, _, inside = name.partition(".")
        if library != LIBRARY:
            return None
        loaded = sys.modules.get(LIBRARY)
        if (
            package.is_stand_in(loaded)
            if inside
            else getattr(spec_of_others(name), "origin", None) is None
        ):
            return package.find(inside)
        if inside and loaded is not None:
            # The library sometimes runs its own `__init__` again, which undoes this.
            serve_top_level(loaded, TOP_LEVEL)
        if inside in SERVED:
            return served_spec(name)
        return self._with_more(name, path, target) if name in RENAMED or not inside else None

    def _with_more(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """Return the spec of the library's own module, with some names served in it."""
        spec = spec_of_others(name, path, target)
        if spec is not None and spec.loader is not None:
            names = {} if "." in name else TOP_LEVEL

            def act() -> None:
                serve_top_level(sys.modules[name], names)
                if name == LIBRARY and self.serves_from_the_start:
                    # Modules loaded by now stay to the end; walking over them again and again would
                    # cost the garbage collector a sixth of the time of a script of seconds.
                    gc.freeze()

            loader: Any = _Afterwards(spec.loader, act)
            spec.loader = loader
        return spec


def spec_of_others(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
    """Return the spec that the other finders have for a module, or None."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find is None or getattr(finder, "is_of_lightrainer", False):
            continue
        spec = find(name, path, target)
        if spec is not None:
            return spec
    return None


def served_spec(name: str) -> ModuleSpec:
    """Return the spec of a served module, with the origin of the reference's own file."""
    inside = name.partition(".")[2]
    parent = sys.modules.get(name.rpartition(".")[0])
    theirs = spec_of_others(name, getattr(parent, "__path__", None))
    shadow = Shadow(theirs, SERVED[inside])
    loader = ServedLoader(SERVED[inside], shadow.get, shadow.names)
    spec = ModuleSpec(name, loader, origin=None if theirs is None else theirs.origin)
    spec.has_location = spec.origin is not None
    return spec


class _Afterwards:
    """Wrapper around a loader that calls a function after the module is loaded."""

    def __init__(self, loader: Any, act: Callable[[], None]) -> None:
        self._loader = loader
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act()
