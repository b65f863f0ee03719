"""Callbacks for every `lightning.Trainer`, which asks for them by an entry point."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import sys
from typing import Any

_LOADERS = f"{__name__.partition('.')[0]}.lightning_modules.data.loaders"
"""The module of `build_loader`."""


def callbacks() -> list[Any]:
    """Return the callbacks for a new Trainer: none unless its script is a trial of a sweep, or
    uses this library.
    """
    return [*_resuming(), *_reporting()]


def _resuming() -> list[Any]:
    """Return the callback by which loaders resume exactly, in a script that can have made one."""
    if _LOADERS not in sys.modules:
        return []
    from ...lightning_modules.tasks.resuming import ResumingCallback

    return [ResumingCallback()]


def _reporting() -> list[Any]:
    """Return the callbacks that report to the sweep, in a script that is one of its trials."""
    if "LIGHTRAINER_TRIAL" not in os.environ:
        return []
    from ...facade.search import sweep_reports

    return sweep_reports.lightning_callbacks()
