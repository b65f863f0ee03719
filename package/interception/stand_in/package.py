"""Modules of the stand-in, and the error for names that it lacks."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..modules import ServedLoader, ServedModule
from .names import STAND_IN

LIBRARY = "transformers"


class StandIn(ServedModule):
    """A module of the stand-in. All are packages, so that Python asks the finder for names that
    they lack.
    """

    def _find(self, name: str) -> Any:
        inside = f"{self.__name__}.{name}".partition(".")[2]
        if inside in STAND_IN and name not in self._ours:
            return import_module(f"{LIBRARY}.{inside}")
        return super()._find(name)


def is_stand_in(module: ModuleType | None) -> bool:
    """Return whether a loaded module is the stand-in, not the library."""
    return isinstance(module, StandIn)


def find(inside: str) -> ModuleSpec:
    """Return the spec of a module of the stand-in.

    Args:
        inside: Its name below `transformers`, such as `trainer_utils`; "" for the package.

    Raises:
        ModuleNotFoundError: The stand-in has no such module.
    """
    if inside not in STAND_IN:
        # `from transformers import BertModel` comes here too, as "BertModel".
        raise ModuleNotFoundError(refusal(f"{LIBRARY}.{inside}"), name=LIBRARY)
    name = f"{LIBRARY}.{inside}" if inside else LIBRARY

    def nothing(asked: str) -> Any:
        raise AttributeError(refusal(f"{name}.{asked}"))

    return ModuleSpec(name, _Loader(STAND_IN[inside], nothing), is_package=True)


def refusal(name: str) -> str:
    """Return the error message for a name that is not served."""
    return (
        f"{name} is not part of lightrainer, which stands in for transformers here because that is "
        "not installed. Install it (pip install transformers): it will be used with "
        "lightrainer's Trainer."
    )


class _Loader(ServedLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name, self._ours, self._theirs)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != LIBRARY:
            return
        from ..names import VERSION
        from .logging import configure

        module.__dict__["__version__"] = VERSION
        configure()


def forget() -> None:
    """Remove the stand-in from the modules that are loaded."""
    for name in [name for name, module in sys.modules.items() if is_stand_in(module)]:
        del sys.modules[name]
