"""Check the version of Lightning without importing it."""

from __future__ import annotations

import functools
from typing import Final

from ..common.versions import installed, is_older

LOWEST: Final = "2.6.6"
BELOW: Final = "2.7.0"
"""Versions of Lightning in this range have the private names in docs/develop/lightning.md."""


@functools.cache
def require_lightning() -> None:
    """Raise for unsupported versions immediately, instead of by an AttributeError during training.

    Raises:
        ImportError: Lightning is not installed, or another version.
    """
    version = installed("lightning")
    if version is None or is_older(version, LOWEST) or not is_older(version, BELOW):
        raise ImportError(
            f"lightrainer uses private names of Lightning, and {version or 'none'} is installed: "
            f'pip install "lightning>={LOWEST},<{BELOW}"'
        )
