"""Base of model outputs that are a dict, a tuple and an object with attributes in one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from ..internals.torch_names import register_output


class ModelOutput(OrderedDict):
    """As `transformers.utils.ModelOutput`: a base for dataclasses whose fields are also accessible
    by key and index.

    Fields that are None do not count. A subclass is a dataclass, all of whose fields but the first
    are None by default; it is made of its fields, or of one mapping, or of pairs of name and value.
    It is registered as a pytree for hooks, DistributedDataParallel and exports.

    Raises:
        TypeError: The subclass is not a dataclass.
        ValueError: It has no field, or several without a default; or it was given something else
            than pairs.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_output(
            cls,
            lambda output: (list(output.values()), list(output.keys())),
            lambda values, names: cls(**dict(zip(names, values, strict=True))),
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Replaced by the dataclass decorator, so it is only reached without it.
        if type(self) is not ModelOutput and not is_dataclass(self):
            raise TypeError(
                f"{type(self).__qualname__} is a ModelOutput, but no dataclass. Put @dataclass "
                "above it."
            )

    def __post_init__(self) -> None:
        items = _fields(self)
        names = [item.name for item in items]
        if not names:
            raise ValueError(f"{type(self).__name__} has no fields.")
        if any(item.default is not None for item in items[1:]):
            raise ValueError(
                f"{type(self).__name__} has fields without a default of None after the first."
            )
        first = getattr(self, names[0])
        alone = all(getattr(self, name) is None for name in names[1:])
        pairs = _pairs(first) if alone else None
        if pairs is None:
            for name in names:
                if getattr(self, name) is not None:
                    self[name] = getattr(self, name)
            return
        setattr(self, names[0], None)
        super().__delitem__(names[0])
        for name, value in pairs:
            setattr(self, name, value)
            if value is not None:
                self[name] = value

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None and name in {item.name for item in _fields(self)}:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise Exception(
            f"The fields of a {type(self).__name__} cannot be added or removed: set an attribute."
        )

    __delitem__: Any = _refuse
    setdefault: Any = _refuse
    pop: Any = _refuse
    update: Any = _refuse

    def __reduce__(self) -> Any:
        if not is_dataclass(self):
            return super().__reduce__()
        make, _, *state = super().__reduce__()
        return make, tuple(getattr(self, item.name) for item in _fields(self)), *state

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of the fields that are not None, in order."""
        return tuple(self[name] for name in self)


def _fields(output: Any) -> tuple[Field[Any], ...]:
    return fields(output)


def _pairs(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the pairs of name and value in a single first field; None if it is a value itself."""
    if (
        value is None
        or isinstance(value, (str, bytes, torch.Tensor, np.ndarray))
        or not isinstance(value, Iterable)
    ):
        return None
    entries = iter(value.items() if isinstance(value, Mapping) else value)
    first = next(entries, None)
    if first is None:
        return []
    if not _is_pair(first):
        return None
    pairs = [first, *entries]
    wrong = next((entry for entry in pairs if not _is_pair(entry)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no pair of a name and a value, as those before it are.")
    return pairs


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str)
