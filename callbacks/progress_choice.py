"""Which of the bars fits where this runs."""

from __future__ import annotations

import sys

from .progress import ProgressCallback
from .progress_notebook import NotebookProgressCallback


def default_progress_callback() -> type[ProgressCallback]:
    """The bar for where this runs: in a notebook a table, with `NotebookProgressCallback`, elsewhere that of tqdm."""
    return NotebookProgressCallback if is_in_notebook() else ProgressCallback


def is_in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; found out without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})
