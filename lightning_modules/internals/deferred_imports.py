"""Replace slow libraries by stand-ins while another library is imported."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from ..common.libraries import is_installed, loaded


class _Deferred(type):
    """Class or function that is imported from its library on first use."""

    def _real(cls) -> Any:
        module = importlib.import_module(cls.__module__)
        return getattr(module, cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._real(), name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        real = cls._real()
        return real(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        # A class whose module is not imported has no instances.
        if cls.__module__ not in sys.modules:
            return False
        return isinstance(instance, cls._real())


@contextlib.contextmanager
def replaced_by_stand_in(module: str, *submodules: str, **members: object) -> Iterator[None]:
    """Replace a module by a stand-in within the `with` block, if its library is installed.

    Names that are imported from it in the block are resolved when they are used. If the module is
    loaded already, it and its submodules are hidden in the block: torchvision reads attributes of
    all loaded modules when it is imported, and those of `transformers` import further modules when
    an attribute is read.

    Args:
        module: the full name of the module.
        submodules: names of its submodules that are replaced too.
        members: attributes of the stand-in that are available immediately.
    """
    library = module.partition(".")[0]
    if not loaded(module) and not is_installed(library):
        yield
        return

    # Create the stand-ins.
    stand_in_of_module = _stand_in(module)
    vars(stand_in_of_module).update(members)
    stand_ins = {module: stand_in_of_module}
    for submodule in submodules:
        name = f"{module}.{submodule}"
        stand_ins[name] = _stand_in(name)

    # Hide modules that are already loaded, so that imports in the block find the stand-ins.
    hidden: dict[str, types.ModuleType] = {}
    for name in list(sys.modules):
        is_submodule = name.startswith(f"{module}.")
        if name == module or is_submodule:
            hidden[name] = sys.modules.pop(name)
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
        sys.modules.update(hidden)


def _stand_in(module: str) -> types.ModuleType:
    """Create a module whose names are resolved when used."""
    stand_in = types.ModuleType(module)
    stand_in.__spec__ = ModuleSpec(module, None)
    stand_in.__getattr__ = functools.partial(_deferred, module)
    return stand_in


def _deferred(module: str, name: str) -> _Deferred:
    # The import system reads dunder names.
    if name.startswith("__"):
        raise AttributeError(name)
    return _Deferred(name, (), {"__module__": module})


@contextlib.contextmanager
def without_incomplete_imports() -> Iterator[None]:
    """Remove modules whose package could not be imported because of an exception in the block.

    Such an exception may come from a signal handler. The package can be imported again afterwards.
    Python removes a package whose import fails but keeps its completed submodules, and does not set
    them as attributes when the package is imported again.
    """
    loaded_before = set(sys.modules)
    try:
        yield
    except BaseException:
        # Sort, so that a package comes before its submodules.
        loaded_in_block = sys.modules.keys() - loaded_before
        for name in sorted(loaded_in_block):
            package = name.rpartition(".")[0]
            if package and package not in sys.modules:
                del sys.modules[name]
        raise
