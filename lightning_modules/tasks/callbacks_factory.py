"""Callbacks that every `lightning.Trainer` loads through an entry point."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Callback

_LOADERS_MODULE = __name__.replace("tasks.callbacks_factory", "data.loaders")
"""The module of `build_loader`."""


def callbacks() -> list[Callback]:
    """Return the callbacks for a new `lightning.Trainer`.

    The list is empty unless the module of `build_loader` has been imported. Without it, the script
    has no loader whose position could be restored.
    """
    if _LOADERS_MODULE not in sys.modules:
        return []
    from .resuming import ResumingCallback

    return [ResumingCallback()]
