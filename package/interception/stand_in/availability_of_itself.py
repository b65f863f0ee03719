"""Hide the stand-in from `importlib.util.find_spec("transformers")`, by which libraries detect transformers.

The stand-in lacks most of what they would then import, and they have code for machines without the library.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any

_LIBRARY = "transformers"
_MACHINERY = ("importlib._bootstrap", __name__.partition(".")[0])


def asked_whether_it_is_there() -> bool:
    """Return whether `importlib.util.find_spec`, and not an import, called the finder."""
    frame = sys._getframe(1)
    while frame is not None and _is_machinery(frame):
        frame = frame.f_back
    return frame is not None and frame.f_code is _plain_find_spec.__code__


def _is_machinery(frame: Any) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name == _MACHINERY[0] or name.partition(".")[0] == _MACHINERY[1] or name == "sitecustomize"


def _unwrapped(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


_plain_find_spec = _unwrapped(importlib.util.find_spec)


@functools.wraps(_plain_find_spec)
def _find_spec(name: str, package: str | None = None) -> Any:
    top, _, inside = importlib.util.resolve_name(name, package).partition(".")
    if top != _LIBRARY:
        return _plain_find_spec(name, package)
    if inside:
        raise ModuleNotFoundError(f"No module named {_LIBRARY!r}", name=_LIBRARY)
    return None


def say_it_is_not_there() -> None:
    """Make `importlib.util.find_spec` return None for the library, although it is in `sys.modules`."""
    importlib.util.find_spec = _find_spec


def say_no_more() -> None:
    """Undo `say_it_is_not_there`."""
    if importlib.util.find_spec is _find_spec:
        importlib.util.find_spec = _plain_find_spec
