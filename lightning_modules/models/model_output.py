"""Base class of model outputs that can be used as a dict, as a tuple, or by attributes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from ..internals.torch_names import register_output


class ModelOutput(OrderedDict):
    """Base of dataclasses that models return, whose fields are also accessible by key and index.

    Works like `transformers.utils.ModelOutput`.

    Fields that are None are omitted from keys and indices. A subclass must be a dataclass, and all
    fields except the first must default to None. An object is created from the values of its
    fields, from one mapping, or from pairs of name and value. Subclasses are registered as pytrees,
    for hooks, DistributedDataParallel and export.

    Raises:
        TypeError: the subclass is not a dataclass.
        ValueError: it has no fields, or several without a default; or the pairs are invalid.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)

        def flatten(output: ModelOutput) -> tuple[list[Any], list[str]]:
            return list(output.values()), list(output.keys())

        def unflatten(values: Iterable[object], names: Iterable[str]) -> ModelOutput:
            return cls(**dict(zip(names, values, strict=True)))

        register_output(cls, flatten, unflatten)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The dataclass decorator replaces this method, so a subclass that calls it lacks the
        # decorator.
        if type(self) is not ModelOutput and not is_dataclass(self):
            raise TypeError(
                f"{type(self).__qualname__} is a ModelOutput, but not a dataclass. Decorate it "
                "with @dataclass."
            )

    def __post_init__(self) -> None:
        output_fields = _fields(self)
        if not output_fields:
            raise ValueError(f"{type(self).__name__} has no fields: add at least one.")
        if any(output_field.default is not None for output_field in output_fields[1:]):
            raise ValueError(
                f"{type(self).__name__} has fields without a default of None after the first: give "
                "them one."
            )

        # If only the first field is set, it may contain all fields as a mapping or as pairs.
        names = [output_field.name for output_field in output_fields]
        pairs = None
        if all(getattr(self, name) is None for name in names[1:]):
            pairs = _read_pairs(getattr(self, names[0]))
        if pairs is None:
            for name in names:
                value = getattr(self, name)
                if value is not None:
                    self[name] = value
            return

        # Replace the first field by the fields in the pairs.
        setattr(self, names[0], None)
        super().__delitem__(names[0])
        for name, value in pairs:
            setattr(self, name, value)
            if value is not None:
                self[name] = value

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return self.to_tuple()[key]

    def __setattr__(self, name: str, value: object) -> None:
        names = [output_field.name for output_field in _fields(self)]
        if value is not None and name in names:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise for dict methods that would add or remove fields."""
        raise Exception(
            f"The fields of a {type(self).__name__} cannot be added or removed. Set an attribute "
            "instead."
        )

    __delitem__: Any = _refuse
    setdefault: Any = _refuse
    pop: Any = _refuse
    update: Any = _refuse

    def __reduce__(self) -> Any:
        if not is_dataclass(self):
            return super().__reduce__()
        output_class, _, *state = super().__reduce__()
        values = tuple(getattr(self, output_field.name) for output_field in _fields(self))
        return output_class, values, *state

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of the fields that are not None, in order."""
        return tuple(self[name] for name in self)


def _fields(output: Any) -> tuple[Field[Any], ...]:
    """Return the fields of an output: its class is a dataclass, which type checkers cannot see."""
    return fields(output)


def _read_pairs(value: object) -> list[tuple[str, object]] | None:
    """Return the pairs of name and value in the only field that is set; None if it is a plain
    value.
    """
    if isinstance(value, (str, bytes, torch.Tensor, np.ndarray)):
        return None
    if not isinstance(value, Iterable):
        return None
    if isinstance(value, Mapping):
        value = value.items()

    # Check the first entry before reading the others, because an iterator without pairs is a value.
    entries = iter(value)
    first = next(entries, None)
    if first is None:
        return []
    if not _is_pair(first):
        return None
    pairs = [first, *entries]
    for entry in pairs:
        if not _is_pair(entry):
            raise ValueError(
                f"{entry!r} is not a pair of a name and a value, like the entries before it."
            )
    return pairs


def _is_pair(value: object) -> bool:
    """Return whether a value is a pair whose first part is a name."""
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str)
