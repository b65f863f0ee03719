"""Format values as text for people."""

from __future__ import annotations


def shortened(value: object, max_length: int = 200) -> str:
    """Return a value as text, truncated to `max_length` characters."""
    text = str(value)
    if len(text) <= max_length:
        return text
    return f"{text[:max_length]}…"
