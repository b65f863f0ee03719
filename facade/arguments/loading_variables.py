"""What `from_pretrained` of `transformers` is told through the environment: that one process reads weights for all."""

from __future__ import annotations

import os

LOADING_VARIABLES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
"""It asks for both."""

_told: set[str] = set()


def export_loaders(wanted: bool) -> None:
    """Set the variables, or take back those that were set here for earlier arguments."""
    for name in LOADING_VARIABLES:
        if wanted:
            _told.add(name)
            os.environ[name] = "true"
        elif name in _told:
            _told.discard(name)
            os.environ.pop(name, None)


def is_ours(name: str) -> bool:
    """Whether a variable was set here, and not by a launcher."""
    return name in _told
