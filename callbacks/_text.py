"""Format values as text for people."""

from __future__ import annotations

import math


def shortened(value: object, max_length: int = 200) -> str:
    """Return a value as text, truncated to `max_length` characters."""
    text = str(value)
    if len(text) <= max_length:
        return text
    return f"{text[:max_length]}…"


def format_seconds(seconds: float) -> str:
    """Return seconds as `1:02:03` or `02:03`; a question mark if they are unknown."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    all_minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(all_minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds_left:02}"
    return f"{minutes:02}:{seconds_left:02}"
