"""Ask for the length of loaders and datasets, which may have none."""

from __future__ import annotations


def length_or_none(collection: object) -> int | None:
    """Return the `len` of an object; None if it has none."""
    try:
        return len(collection)  # pyright: ignore[reportArgumentType] - raises what is caught here
    except (TypeError, AttributeError, NotImplementedError):
        return None
