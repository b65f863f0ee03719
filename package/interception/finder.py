"""The import finder for served modules, and their specs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .modules import ServedLoader, ServedModule, serve_top_level
from .names import SERVED, TOP_LEVEL
from .shadow import Shadow
from .stand_in import package
from .targets import RENAMED

LIBRARY = "transformers"


class Finder:
    """Finder for `sys.meta_path` that serves the modules of the table.

    It leaves all other modules to the other finders.
    """

    is_of_lightrainer = True

    def __init__(self) -> None:
        self.serves_from_the_start = False
        """True if this process intercepts imports from its start. There is then no model in memory
        when transformers is loaded.
        """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has served names; None for any other module.

        Works like `importlib.abc.MetaPathFinder.find_spec`.

        Raises:
            ModuleNotFoundError: transformers is not installed, and its stand-in has no such module.
        """
        library, _, submodule = name.partition(".")
        if library != LIBRARY:
            return None
        if _uses_stand_in(submodule):
            return package.find(submodule)

        # transformers sometimes runs its own `__init__` again, which removes our module class.
        loaded_library = sys.modules.get(LIBRARY)
        if submodule and loaded_library is not None:
            serve_top_level(loaded_library, TOP_LEVEL)

        if submodule in SERVED:
            return served_spec(name)
        if name in RENAMED or not submodule:
            return self._extended_spec(name, path, target)
        return None

    def _extended_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Return the spec of the library's own module, which also serves some of our names."""
        spec = spec_of_others(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        is_package = name == LIBRARY
        module_of_name = TOP_LEVEL if is_package else {}

        def extend() -> None:
            serve_top_level(sys.modules[name], module_of_name)
            if is_package and self.serves_from_the_start:
                # The modules loaded so far live until the process exits. Scanning them in each
                # garbage collection would take a sixth of the time of a short script.
                gc.freeze()

        spec.loader = _ExtendingLoader(spec.loader, extend)
        return spec


def _uses_stand_in(submodule: str) -> bool:
    """Return whether the stand-in is used for the library, or for a module of it.

    Args:
        submodule: the name of the module below the library; "" for the library itself.
    """
    if submodule:
        return package.is_stand_in(sys.modules.get(LIBRARY))
    # A folder named `transformers` in the working directory is found as a namespace package, which
    # has no origin, although the library is not installed.
    spec = spec_of_others(LIBRARY)
    return spec is None or spec.origin is None


def spec_of_others(
    name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Return the spec of a module from the finders of others; None if none finds it."""
    for finder in list(sys.meta_path):
        find_module = getattr(finder, "find_spec", None)
        if find_module is None or getattr(finder, "is_of_lightrainer", False):
            continue
        spec = find_module(name, path, target)
        if spec is not None:
            return spec
    return None


def served_spec(name: str) -> ModuleSpec:
    """Return the spec of a served module, whose file is that of the module in transformers."""
    submodule = name.partition(".")[2]
    parent = sys.modules.get(name.rpartition(".")[0])
    original_spec = spec_of_others(name, getattr(parent, "__path__", None))

    shadow = Shadow(original_spec, SERVED[submodule])
    module = ServedModule(name, SERVED[submodule], shadow.get, shadow.names)
    origin = None if original_spec is None else original_spec.origin
    spec = ModuleSpec(name, ServedLoader(module), origin=origin)
    # Python sets `__file__` only for a module with a location.
    spec.has_location = origin is not None
    return spec


class _ExtendingLoader(Loader):
    """Calls a function after another loader has loaded the module.

    Args:
        loader: the other loader.
        extend: called without arguments.
    """

    def __init__(self, loader: Loader, extend: Callable[[], None]) -> None:
        self._loader = loader
        self._extend = extend

    def __getattr__(self, name: str) -> Any:
        # Delegate other methods, such as `get_source` and `get_resource_reader`.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Give the module its original loader, which `importlib.resources` and other tools use.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._extend()
