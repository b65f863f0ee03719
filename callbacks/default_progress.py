"""Choose how progress is shown: as a table in a notebook, otherwise as a bar."""

from __future__ import annotations

from ..lightning_modules.common.libraries import loaded
from .progress import ProgressCallback


def default_progress_callback() -> type[ProgressCallback]:
    """Return `NotebookProgressCallback` in a notebook, otherwise `ProgressCallback`."""
    if not is_in_notebook():
        return ProgressCallback
    from .progress_notebook import NotebookProgressCallback

    return NotebookProgressCallback


def is_in_notebook() -> bool:
    """Return whether this process is a notebook kernel, without importing IPython."""
    ipython = loaded("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})
