"""Callbacks for every `lightning.Trainer`, which finds them by an entry point."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Callback

_PACKAGE = __name__.partition(".")[0]
_LOADERS_MODULE = f"{_PACKAGE}.lightning_modules.data.loaders"
"""The module of `build_loader`."""


def callbacks() -> list[Callback]:
    """Return the callbacks for a new `lightning.Trainer`.

    The list is empty unless the module of `build_loader` has been imported: without it the script
    has no loader whose position could be restored.
    """
    if _LOADERS_MODULE not in sys.modules:
        return []
    from ...lightning_modules.tasks.resuming import ResumingCallback

    return [ResumingCallback()]
