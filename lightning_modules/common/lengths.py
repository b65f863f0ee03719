"""Get the length of loaders and datasets, which may not have one."""

from __future__ import annotations


def length_or_none(collection: object) -> int | None:
    """Return the `len` of an object, or None if it has no length."""
    try:
        return len(collection)  # pyright: ignore[reportArgumentType] - raises what is caught here
    except (TypeError, AttributeError, NotImplementedError):
        return None
