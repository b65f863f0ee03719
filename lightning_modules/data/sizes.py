"""Whether something has a length."""

from __future__ import annotations

from typing import Any


def has_length(dataset: Any) -> bool:
    """As `transformers.trainer_utils.has_length`: whether `len()` works."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, NotImplementedError):
        return False
