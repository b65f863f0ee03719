"""Serve names in modules of transformers that were imported before the interception started."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any, NamedTuple

from ..lightning_modules.common.libraries import loaded
from .finder import LIBRARY
from .modules import ServedModule, serve_top_level, stop_intercepting_top_level
from .names import SERVED, TOP_LEVEL
from .targets import resolve

_ABSENT = object()
"""Stands for the value of a variable that did not exist."""
_MAX_MODULES = 12
"""Maximum number of modules that a warning lists."""
_MAX_NAMES = 4
"""Maximum number of names of each module that a warning lists."""


class _Variable(NamedTuple):
    """A variable of a module, with its original value."""

    namespace: dict[str, Any]
    name: str
    original: Any


class LoadedModules:
    """Sets the served names in modules that are already loaded, and can undo it.

    Other modules that imported these names before keep the old objects; a warning lists them.
    """

    def __init__(self) -> None:
        self._changed: list[_Variable] = []

    def replace_names(self) -> None:
        """Set the served names, and warn about modules that still hold the original objects."""
        library = loaded(LIBRARY)
        if library is None:
            # A failed import may have left an entry that is None.
            sys.modules.pop(LIBRARY, None)
            return

        # Set the names of the served modules. The dict keeps the original objects alive, because
        # the id of a deleted object may be reused.
        replaced: dict[int, Any] = {}
        for submodule, targets in SERVED.items():
            module = sys.modules.get(f"{LIBRARY}.{submodule}")
            if module is None or isinstance(module, ServedModule):
                continue
            for name, target in targets.items():
                served_object = resolve(target)
                original = vars(module).get(name, _ABSENT)
                if callable(original):
                    replaced[id(original)] = original
                self._changed.append(_Variable(vars(module), name, original))
                setattr(module, name, served_object)

        # Remove the names that transformers itself has looked up before, so that it looks them up
        # in the served modules.
        for name in TOP_LEVEL:
            if name in vars(library):
                original = vars(library).pop(name)
                self._changed.append(_Variable(vars(library), name, original))
        serve_top_level(library, TOP_LEVEL)

        holders = _modules_holding(replaced)
        if holders:
            _warn_of_holders(holders)

    def restore(self) -> None:
        """Undo everything, and remove served modules, so that they are imported again."""
        # Remove the served modules that were imported after `replace_names`.
        served_names = [
            name for name, module in sys.modules.items() if isinstance(module, ServedModule)
        ]
        for name in served_names:
            del sys.modules[name]
            package_name, _, attribute = name.rpartition(".")
            package = sys.modules.get(package_name)
            if package is not None:
                vars(package).pop(attribute, None)

        # Remove the names that transformers has looked up in the served modules.
        library = sys.modules.get(LIBRARY)
        if library is not None:
            for name in TOP_LEVEL:
                vars(library).pop(name, None)
            stop_intercepting_top_level(library)

        # Restore the modules that were imported before `replace_names`.
        for variable in self._changed:
            if variable.original is _ABSENT:
                del variable.namespace[variable.name]
            else:
                variable.namespace[variable.name] = variable.original
        self._changed.clear()


def _modules_holding(objects: dict[int, Any]) -> dict[str, list[str]]:
    """Return the variables of modules outside the library that hold one of the objects.

    Args:
        objects: the objects by their ids.

    Returns:
        the names of the variables by the name of their module.
    """
    variables: dict[str, list[str]] = {}
    for key, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or key.partition(".")[0] == LIBRARY:
            continue
        for name, value in list(vars(module).items()):
            if id(value) in objects:
                variables.setdefault(module.__name__, []).append(name)
    return variables


def _warn_of_holders(holders: dict[str, list[str]]) -> None:
    """Warn about modules that hold objects of transformers."""
    modules = []
    for module, names in holders.items():
        modules.append(f"{module} ({_join_first(names, _MAX_NAMES)})")
    warnings.warn(
        "transformers was imported before lightrainer.install(), and these modules still hold "
        f"names of it: {_join_first(modules, _MAX_MODULES)}. Import them again, or run the script "
        "with `python -m lightrainer`.",
        UserWarning,
        stacklevel=4,
    )


def _join_first(texts: list[str], limit: int) -> str:
    """Join the first texts, and add the number of the others."""
    shown = texts[:limit]
    if len(texts) > limit:
        shown.append(f"and {len(texts) - limit} more")
    return ", ".join(shown)
