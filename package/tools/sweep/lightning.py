"""Callbacks for every `lightning.Trainer`, which asks for them by an entry point."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
from typing import Any


def callbacks() -> list[Any]:
    """Return the callbacks that report to the sweep, in a script that is one of its trials."""
    if "LIGHTRAINER_TRIAL" not in os.environ:
        return []
    from ...facade.search import sweep_reports

    return sweep_reports.callbacks()
