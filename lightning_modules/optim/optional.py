"""Optimizers of other libraries, imported when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..common.suggestions import OptimizerNames

__all__ = ["Library", "MissingLibraryError"]


class MissingLibraryError(ImportError, ValueError):
    """An optimizer needs a package, or a version of it, that is not installed.

    The reference raises ImportError for some of them and ValueError for others.
    """


@dataclass(frozen=True, kw_only=True)
class Library:
    """A package with optimizers, which is not among the dependencies."""

    package: str
    """Its name, for people."""
    pip: str
    """What `pip install` is to be given."""
    needs: str = ""
    """Hardware that it is made for."""

    def load(self, name: OptimizerNames, module: str, *members: str) -> list[Any]:
        """Members of one of its modules.

        Args:
            name: the optimizer that needs them, named in the error.
            module: import path.
            members: names in the module.

        Raises:
            MissingLibraryError: says what to install.
        """
        try:
            imported = import_module(module)
            return [getattr(imported, member) for member in members]
        except (ImportError, AttributeError) as error:
            hardware = f" and {self.needs}" if self.needs else ""
            raise MissingLibraryError(
                f"optim={name.value!r} needs {self.package}{hardware}, but {', '.join(members)} cannot be imported "
                f"from {module!r} ({error}). Install it with: pip install {self.pip}"
            ) from error
