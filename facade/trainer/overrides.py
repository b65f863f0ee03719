"""Detection of overridden or replaced methods."""

from __future__ import annotations

from typing import Any


def is_own(trainer: Any, name: str) -> bool:
    """Return whether a method is neither overridden in a subclass nor replaced on the object."""
    home = next((kind for kind in type(trainer).__mro__ if name in vars(kind)), None)
    if name in vars(trainer) or home is None:
        return False
    places = (home.__module__, getattr(vars(home)[name], "__module__", ""))
    return all(place.startswith(f"{__package__}.") for place in places) and not hasattr(vars(home)[name], "__wrapped__")
