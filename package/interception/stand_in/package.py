"""Create the modules of the stand-in, and the error for names that it lacks."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from ..modules import ServedLoader, ServedModule
from .names import STAND_IN

LIBRARY = "transformers"


class StandIn(ServedModule):
    """A module of the stand-in.

    Each is a package, so that Python also asks the finder about X in `from transformers import X`.
    """

    def _find(self, name: str) -> Any:
        # The name may be a submodule that has not been imported yet.
        submodule = f"{self.__name__}.{name}".partition(".")[2]
        if submodule in STAND_IN and name not in self._served:
            return import_module(f"{LIBRARY}.{submodule}")
        return super()._find(name)


def is_stand_in(module: ModuleType | None) -> bool:
    """Return whether a loaded module belongs to the stand-in instead of the library."""
    return isinstance(module, StandIn)


def find(submodule: str) -> ModuleSpec:
    """Return the spec of a module of the stand-in.

    Args:
        submodule: its name below `transformers`, such as `trainer_utils`; "" for the package.

    Raises:
        ModuleNotFoundError: the stand-in has no such module.
    """
    if submodule not in STAND_IN:
        # Python also looks for a module `BertModel` in `from transformers import BertModel`.
        raise ModuleNotFoundError(missing_message(f"{LIBRARY}.{submodule}"), name=LIBRARY)
    module_name = f"{LIBRARY}.{submodule}" if submodule else LIBRARY

    def refuse(name: str) -> NoReturn:
        raise AttributeError(missing_message(f"{module_name}.{name}"))

    module = StandIn(module_name, STAND_IN[submodule], refuse)
    return ModuleSpec(module_name, _Loader(module), is_package=True)


def missing_message(name: str) -> str:
    """Return the error message for a name that the stand-in lacks."""
    return (
        f"{name} is not part of lightrainer, which stands in for transformers here because "
        "transformers is not installed. Install it (pip install transformers); it then works with "
        "lightrainer's Trainer."
    )


class _Loader(ServedLoader):
    """Sets the version and the loggers when the package itself is imported."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != LIBRARY:
            return
        from ..names import VERSION
        from .logging import configure

        module.__dict__["__version__"] = VERSION
        configure()


def forget() -> None:
    """Remove the modules of the stand-in from `sys.modules`."""
    names = [name for name, module in sys.modules.items() if is_stand_in(module)]
    for name in names:
        del sys.modules[name]
