"""Build objects from plain descriptions, as in a YAML file:
`{"class_path": "torch.optim.SGD", ...}`.
"""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from .suggestions import did_you_mean

_CONSTRUCTORS = ("from_pretrained", "from_config", "_from_config")


def is_description(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a class path with arguments, as `LightningCLI` writes them."""
    return isinstance(value, Mapping) and "class_path" in value


def build_described(description: Mapping[str, Any], kind: type, argument: str, *given: Any) -> Any:
    """Build the object of a description.

    Args:
        description: "class_path", and optionally "init_args", the keyword arguments.
        kind: the class must be a subclass of this one, or the path ends in a constructor such as
            `from_pretrained`. So the description in a checkpoint cannot call anything else.
        argument: where the description was given, for messages.
        given: positional arguments that go before.

    Raises:
        ValueError: there is no such class, or it is none of this kind.
        TypeError: what was made is none of this kind, or it takes other arguments.
    """
    unknown = [name for name in description if name not in ("class_path", "init_args")]
    if unknown:
        near = did_you_mean(unknown[0], ["init_args"])
        raise ValueError(
            f"`{argument}` has {unknown}, and not only 'class_path' and 'init_args'.{near}"
        )
    path = description["class_path"]
    made = _checked(resolve(path, argument), kind, path, argument)(
        *given, **(description.get("init_args") or {})
    )
    if not isinstance(made, kind):
        raise TypeError(
            f"`{argument}`: {path} made a {type(made).__name__}, but expected is a {kind.__name__}."
        )
    return made


def resolve(path: Any, argument: str) -> Any:
    """Return the class, or the method of one, that a dotted path names.

    Raises:
        ValueError: there is nothing of this name.
    """
    try:
        if isinstance(path, str) and "." in path and (found := pydoc.locate(path)) is not None:
            return found
    except pydoc.ErrorDuringImport as error:
        raise ValueError(
            f"`{argument}`: {path!r} cannot be imported: {error}. Repair that module."
        ) from error
    near = did_you_mean(
        str(path).rpartition(".")[2], dir(pydoc.locate(str(path).rpartition(".")[0]))
    )
    raise ValueError(
        f"`{argument}`: {path!r} names no class that can be imported, such as "
        f"'torch.nn.Linear'.{near}"
    )


def _checked(found: Any, kind: type, path: str, argument: str) -> Callable[..., Any]:
    if inspect.isclass(found) and issubclass(found, kind):
        return found
    owner = getattr(found, "__self__", None)
    if inspect.ismethod(found) and inspect.isclass(owner) and found.__name__ in _CONSTRUCTORS:
        return found
    raise ValueError(
        f"`{argument}`: {path} is no {kind.__name__}, nor a constructor "
        f"({', '.join(_CONSTRUCTORS[:2])}) of one."
    )
