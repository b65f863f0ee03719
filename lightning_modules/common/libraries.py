"""Check which libraries are installed or loaded.

A folder with the name of a library, such as the `wandb` that runs leave behind, becomes a namespace
package when it is imported; such a package does not count as the library.
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
        # The module was put into sys.modules by hand.
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
    """Return whether a value is of one of the classes of a module, without importing it.

    Args:
        value: anything.
        module: import path; if it is not loaded, there are no instances of its classes.
        classes: their names in the module.
    """
    library = sys.modules.get(module)
    return isinstance(value, tuple(getattr(library, name, ()) for name in classes))
