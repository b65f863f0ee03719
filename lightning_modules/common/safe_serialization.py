"""Convert nested data to tensors and plain values, which can be loaded with `weights_only`."""

from __future__ import annotations

import logging
import sys
from collections import UserDict, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .torch_files import NUMBER_CODES

_log = logging.getLogger(__name__)

_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)

_FACTORIES: dict[str | None, type[Any]] = {
    cls.__name__: cls for cls in (bool, int, float, complex, str, bytes, list, tuple, dict, set)
}
"""Factories of a `defaultdict` that can be saved, by name."""

_ARRAY_LENGTH = 64
"""Minimum length of a list of integers that is saved as an array.

Loading the state of Python's RNG as single integers would be slow.
"""


class UnsafeValueError(TypeError):
    """Data cannot be converted to plain values."""


def to_plain(value: Any) -> Any:
    """Convert tensors, arrays of numbers, plain values, and dicts, lists and tuples of them.

    Classes derived from dict, list and tuple, such as named tuples, are converted too.

    Raises:
        UnsafeValueError: it contains a value of another kind, or a `defaultdict` whose factory is
            not a built-in class such as int.
    """
    # Check exact types, because the pickle of a subclass, such as an enumeration, names its class.
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is torch.Tensor:
        return value
    if kind is np.ndarray and value.dtype.char in NUMBER_CODES:
        return value
    if kind is np.str_:
        return str(value)
    if isinstance(value, np.generic) and value.dtype.char in NUMBER_CODES:
        return {"kind": "numpy", "items": np.asarray(value)}
    if isinstance(value, (dict, UserDict)):
        items = [[to_plain(key), to_plain(item)] for key, item in value.items()]
        plain = {"kind": "mapping", "class": _name_of(kind, dict), "items": items}
        if isinstance(value, defaultdict):
            plain["factory"] = _name_of_factory(value.default_factory)
        return plain
    if isinstance(value, (list, tuple)):
        base = list if isinstance(value, list) else tuple
        items = None
        if len(value) >= _ARRAY_LENGTH:
            items = _numbers(value)
        if items is None:
            items = [to_plain(item) for item in value]
        return {"kind": base.__name__, "class": _name_of(kind, base), "items": items}
    contents = ""
    if isinstance(value, np.ndarray):
        contents = f" of {value.dtype}"
    raise UnsafeValueError(
        f"a {kind.__module__}.{kind.__qualname__}{contents} is neither a tensor nor a plain value"
    )


def plain_entries(values: Mapping[str, object]) -> dict[str, object]:
    """Convert the entries of a checkpoint by `to_plain`.

    Entries that cannot be converted are omitted with a warning.
    """
    plain: dict[str, Any] = {}
    for name, value in values.items():
        try:
            plain[name] = to_plain(value)
        except UnsafeValueError as error:
            _log.warning(
                "The checkpoint is written without %r, whose value cannot be saved safely: %s.",
                name,
                error,
            )
    return plain


def from_plain(plain: object) -> Any:
    """Restore the result of `to_plain`.

    No class is imported. Subclasses of dict, list and tuple are used if the program has imported
    them; otherwise the built-in class is used.
    """
    if not isinstance(plain, dict):
        return plain
    kind = plain["kind"]
    items = plain["items"]
    if kind == "numpy":
        return items[()]
    cls = _class_of(plain["class"])
    if kind == "mapping":
        contents: Any = {from_plain(key): from_plain(item) for key, item in items}
        if cls is defaultdict:
            return defaultdict(_FACTORIES.get(plain.get("factory")), contents)
        base = (dict, UserDict)
    else:
        # Integers were written as an array.
        if isinstance(items, np.ndarray):
            contents = items.tolist()
        else:
            contents = [from_plain(item) for item in items]
        base = list
        if kind == "tuple":
            contents = tuple(contents)
            base = tuple
    if cls is None or not issubclass(cls, base):
        return contents
    return _rebuilt(contents, cls)


def _rebuilt(contents: Any, cls: Any) -> Any:
    """Convert contents to a class, or return them unchanged if it does not accept them."""
    try:
        # A named tuple expects separate arguments.
        if hasattr(cls, "_fields"):
            return cls(*contents)
        rebuilt = cls(contents)
    except Exception:
        # The constructor has other parameters.
        return contents
    if len(rebuilt) != len(contents):
        return contents
    for rebuilt_item, saved in zip(rebuilt, contents, strict=True):
        # `torch.Size` copies its numbers.
        if rebuilt_item is not saved and not (isinstance(saved, int) and rebuilt_item == saved):
            return contents
    return rebuilt


def _name_of_factory(factory: Any) -> str | None:
    """Return the name of a `defaultdict`'s factory."""
    if factory is None:
        return None
    name = getattr(factory, "__name__", None)
    if _FACTORIES.get(name) is not factory:
        raise UnsafeValueError(
            f"a defaultdict with the factory {factory!r} is not a plain value; its factory may be "
            "one of int, float, list, dict, ..."
        )
    return name


def _numbers(value: list[Any] | tuple[object, ...]) -> np.ndarray | None:
    """Convert integers to an array; None for other values or integers that are too large."""
    if set(map(type, value)) != {int}:
        return None
    try:
        return np.array(value, np.int64)
    except OverflowError:
        return None


def _name_of(kind: type, usual: type) -> list[str] | None:
    """Return module and name of a class, or None for the default class."""
    if kind is usual:
        return None
    return [kind.__module__, kind.__qualname__]


def _class_of(name: list[str] | None) -> type | None:
    """Return a class by module and name, or None if the module has not been imported."""
    if name is None:
        return None
    module, qualified_name = name
    value: Any = sys.modules.get(module)
    for part in qualified_name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, type):
        return None
    return value
