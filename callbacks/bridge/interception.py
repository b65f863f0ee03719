"""Temporary changes to objects of Lightning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


def wrap_method(undo: ExitStack, owner: object, name: str, wrapper: Callable[..., object]) -> None:
    """Replace a method of one object.

    Args:
        undo: restores the method when it is closed.
        owner: the object; its class stays unchanged.
        name: the name of the method.
        wrapper: called as `wrapper(original, *args, **kwargs)`.
    """
    original = getattr(owner, name)
    was_set_on_object = name in vars(owner)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    # With the methods of `object`, since `nn.Module` has its own.
    object.__setattr__(owner, name, method)
    if was_set_on_object:
        undo.callback(object.__setattr__, owner, name, original)
    else:
        undo.callback(object.__delattr__, owner, name)
