"""Callbacks for every `lightning.Trainer`, which finds them by an entry point."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Callback

_PACKAGE = __name__.partition(".")[0]
_LOADERS_MODULE = f"{_PACKAGE}.lightning_modules.data.loaders"
"""The module of `build_loader`."""


def callbacks() -> list[Callback]:
    """Return the callbacks for a new `lightning.Trainer`.

    It is empty unless its script uses this library, or is a trial of a sweep.
    """
    return [*_resuming_callbacks(), *_sweep_callbacks()]


def _resuming_callbacks() -> list[Callback]:
    """Return the callback that resumes loaders exactly, if the script may have made one."""
    if _LOADERS_MODULE not in sys.modules:
        return []
    from ...lightning_modules.tasks.resuming import ResumingCallback

    return [ResumingCallback()]


def _sweep_callbacks() -> list[Callback]:
    """Return the callbacks that report to a sweep, if the script is a trial of one."""
    if "LIGHTRAINER_TRIAL" not in os.environ:
        return []
    from ...facade.search import sweep_reports

    return sweep_reports.lightning_callbacks()
