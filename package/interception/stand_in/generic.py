"""Small things of `transformers.utils` that scripts with a model of their own use."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any


class ContextManagers:
    """As `transformers.utils.ContextManagers`: several context managers, entered together."""

    def __init__(self, context_managers: list[AbstractContextManager[Any]]) -> None:
        self.context_managers = context_managers
        self.stack = ExitStack()

    def __enter__(self) -> None:
        for manager in self.context_managers:
            self.stack.enter_context(manager)

    def __exit__(self, *args: Any) -> None:
        self.stack.__exit__(*args)


def strtobool(val: str) -> int:
    """As `transformers.utils.strtobool`: 1 for yes, 0 for no.

    Raises:
        ValueError: It is neither.
    """
    word = val.lower()
    if word in {"y", "yes", "t", "true", "on", "1"}:
        return 1
    if word in {"n", "no", "f", "false", "off", "0"}:
        return 0
    raise ValueError(f"{val!r} is neither true nor false. Write yes or no.")


def flatten_dict(d: MutableMapping[str, Any], parent_key: str = "", delimiter: str = ".") -> dict[str, Any]:
    """As `transformers.utils.flatten_dict`: one level, with the keys of all levels joined."""
    return dict(_flattened(d, parent_key, delimiter))


def _flattened(values: MutableMapping[str, Any], above: str, delimiter: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}{delimiter}{key}" if above else str(key)
        if value and isinstance(value, MutableMapping):
            yield from _flattened(value, name, delimiter)
        else:
            yield name, value


def to_py_obj(obj: Any) -> Any:
    """As `transformers.utils.to_py_obj`: lists and numbers in the place of tensors and arrays."""
    if hasattr(obj, "tolist"):
        return obj.tolist()
    if isinstance(obj, (list, tuple)):
        return [to_py_obj(part) for part in obj]
    return {key: to_py_obj(part) for key, part in obj.items()} if hasattr(obj, "items") else obj


def to_numpy(obj: Any) -> Any:
    """As `transformers.utils.to_numpy`: arrays in the place of tensors, lists and numbers."""
    import numpy as np

    if hasattr(obj, "detach"):
        return obj.detach().cpu().numpy()
    if hasattr(obj, "items"):
        return {key: to_numpy(part) for key, part in obj.items()}
    return np.array(obj) if isinstance(obj, (list, tuple)) else obj
