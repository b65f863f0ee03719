"""Convert nested data to tensors and plain values, which are read from a checkpoint without
unpickling objects.
"""

from __future__ import annotations

import logging
import sys
from collections import UserDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_log = logging.getLogger(__name__)

_LEAVES = (type(None), bool, int, float, complex, str, bytes)


_MANY = 64
"""Number of integers from which they become an array, since reading Python's generator state one
by one is slow.
"""


class UnsafeValueError(TypeError):
    """Data cannot be converted to plain values."""


def to_plain(value: Any) -> Any:
    """Convert tensors, arrays, plain values, and dicts, lists and (named) tuples of them, also of
    subclasses.

    Raises:
        UnsafeValueError: it contains a value of another kind.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind in (torch.Tensor, np.ndarray) and not (kind is np.ndarray and value.dtype.hasobject):
        return value
    if isinstance(value, np.generic):
        return {"kind": "numpy", "items": np.asarray(value)}
    if isinstance(value, (dict, UserDict)):
        items = [[to_plain(key), to_plain(item)] for key, item in value.items()]
        return {"kind": "mapping", "class": _name_of(kind, dict), "items": items}
    if isinstance(value, (list, tuple)):
        base = list if isinstance(value, list) else tuple
        items = None
        if len(value) >= _MANY:
            items = _numbers(value)
        if items is None:
            items = [to_plain(item) for item in value]
        return {"kind": base.__name__, "class": _name_of(kind, base), "items": items}
    raise UnsafeValueError(
        f"a {kind.__module__}.{kind.__qualname__} is neither a tensor nor a plain value"
    )


def plain_entries(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the entries of a checkpoint by `to_plain`; leave out, with a warning, those that
    cannot be.
    """
    written = {}
    for name, value in values.items():
        try:
            written[name] = to_plain(value)
        except UnsafeValueError as error:
            _log.warning(
                "The checkpoint goes without %r, as it holds what cannot be written safely: %s.",
                name,
                error,
            )
    return written


def from_plain(written: Any) -> Any:
    """Restore the result of `to_plain`.

    No class is imported. A subclass of dict, list or tuple that the program has imported itself is
    used; otherwise the contents are returned in a plain one.
    """
    if not isinstance(written, dict):
        return written
    kind = written["kind"]
    items = written["items"]
    if kind == "numpy":
        return items[()]
    cls = _class_of(written["class"])
    if kind == "mapping":
        made = {from_plain(key): from_plain(item) for key, item in items}
        return cls(made) if cls is not None and issubclass(cls, (dict, UserDict)) else made
    parts = (
        items.tolist() if isinstance(items, np.ndarray) else [from_plain(item) for item in items]
    )
    if kind == "list":
        return cls(parts) if cls is not None and issubclass(cls, list) else parts
    if cls is not None and issubclass(cls, tuple):
        return cls(*parts) if hasattr(cls, "_fields") else cls(parts)
    return tuple(parts)


def _numbers(value: list[Any] | tuple[Any, ...]) -> np.ndarray | None:
    """Return integers as an array; None for other values, or an integer that is too large."""
    if set(map(type, value)) != {int}:
        return None
    try:
        return np.array(value, np.int64)
    except OverflowError:
        return None


def _name_of(kind: type, usual: type) -> list[str] | None:
    return None if kind is usual else [kind.__module__, kind.__qualname__]


def _class_of(name: list[str] | None) -> type | None:
    if name is None:
        return None
    found: Any = sys.modules.get(name[0])
    for part in name[1].split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
