"""Build objects from class descriptions such as `{"class_path": "torch.optim.SGD", ...}`."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Mapping
from typing import Any, TypeGuard

from .suggestions import did_you_mean

_CONSTRUCTORS = ("from_pretrained", "from_config", "_from_config")


def is_description(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a class description, as used by `LightningCLI`."""
    return isinstance(value, Mapping) and "class_path" in value


def build_described(
    description: Mapping[str, Any], kind: type, argument: str, *positional: Any
) -> Any:
    """Build the object of a description.

    Args:
        description: "class_path", and optionally "init_args", the keyword arguments.
        kind: the required base class. The path may also end in a constructor such as
            `from_pretrained`. A description in a checkpoint therefore cannot call anything else.
        argument: the argument with the description, for messages.
        positional: arguments that are passed before the keyword arguments.

    Raises:
        ValueError: the class does not exist, or is not a subclass of `kind`.
        TypeError: the object is not a `kind`, or its class does not accept the arguments.
    """
    unknown = [name for name in description if name not in ("class_path", "init_args")]
    if unknown:
        near = did_you_mean(unknown[0], ["init_args"])
        raise ValueError(
            f"`{argument}` has the keys {unknown}; only 'class_path' and 'init_args' are allowed."
            f"{near}"
        )

    path = description["class_path"]
    constructor = resolve(path, argument)
    _require_constructor(constructor, kind, path, argument)
    keywords = description.get("init_args") or {}
    value = constructor(*positional, **keywords)
    if not isinstance(value, kind):
        raise TypeError(
            f"`{argument}`: {path} returned a {type(value).__name__}, expected a {kind.__name__}."
        )
    return value


def resolve(path: object, argument: str) -> Any:
    """Import the class or class method that a dotted path names.

    Raises:
        ValueError: it does not exist.
    """
    try:
        value = None
        if isinstance(path, str) and "." in path:
            value = pydoc.locate(path)
        if value is not None:
            return value
    except pydoc.ErrorDuringImport as error:
        raise ValueError(
            f"`{argument}`: {path!r} cannot be imported: {error}. Repair that module."
        ) from error

    # Suggest a name in the module or class that the path begins with.
    parent, _, name = str(path).rpartition(".")
    near = did_you_mean(name, dir(pydoc.locate(parent)))
    raise ValueError(
        f"`{argument}`: {path!r} is not the path of a class that can be imported, such as "
        f"'torch.nn.Linear'.{near}"
    )


def _require_constructor(value: Any, kind: type, path: str, argument: str) -> None:
    """Check that a value is a subclass of `kind`, or a known constructor of a class."""
    if inspect.isclass(value) and issubclass(value, kind):
        return
    is_class_method = inspect.ismethod(value) and inspect.isclass(value.__self__)
    if is_class_method and value.__name__ in _CONSTRUCTORS:
        return
    raise ValueError(
        f"`{argument}`: {path} is neither a {kind.__name__} nor a constructor "
        f"({', '.join(_CONSTRUCTORS[:2])}) of one."
    )
