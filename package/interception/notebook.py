"""`%load_ext lightrainer` and `%unload_ext lightrainer` in notebooks."""

from __future__ import annotations

from typing import Any

from .switch import install, uninstall


def load_ipython_extension(ipython: Any) -> None:
    """What `%load_ext lightrainer` calls: from then on the names of the reference are ours; see `install`."""
    install()


def unload_ipython_extension(ipython: Any) -> None:
    """What `%unload_ext lightrainer` calls; see `uninstall`."""
    uninstall()
