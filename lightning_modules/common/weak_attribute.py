"""Provide an attribute that holds a weak reference to its value."""

from __future__ import annotations

import weakref
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class WeakAttribute(Generic[T]):
    """Descriptor that stores a weak reference, for helpers that refer to their owner.

    Without reference cycles, a Trainer is freed immediately after its last use, instead of by the
    garbage collector. It holds a model and an optimizer, which may fill a device.

    Raises:
        ReferenceError: the object no longer exists.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._key = f"_{name}_reference"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        reference: weakref.ref[Any] = instance.__dict__[self._key]
        value = reference()
        if value is None:
            raise ReferenceError(
                f"the {self._name} of {owner.__name__} no longer exists; keep a reference to it."
            )
        return value

    def __set__(self, instance: object, value: T) -> None:
        instance.__dict__[self._key] = weakref.ref(value)
