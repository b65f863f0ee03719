"""Check which libraries are installed or loaded.

A folder with the name of a library, such as the `wandb` folder of earlier runs, can be imported as
a namespace package, which does not count as the library.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, importing only its parent packages."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        # The parent package is missing.
        return False
    except ValueError:
        # The module was added to sys.modules manually.
        return module in sys.modules
    return spec is not None and spec.origin is not None


def loaded(module: str) -> Any:
    """Return a module if it has been imported, otherwise None."""
    library = sys.modules.get(module)
    path_class = type(getattr(library, "__path__", None))
    if path_class.__name__ == "_NamespacePath":
        return None
    return library


def is_instance(value: object, module: str, *classes: str) -> bool:
    """Return whether a value is an instance of classes of a module, without importing it.

    Args:
        value: any value.
        module: import path. If the module is not loaded, its classes have no instances.
        classes: names of the classes in the module.
    """
    library = sys.modules.get(module)
    return isinstance(value, tuple(getattr(library, name, ()) for name in classes))
