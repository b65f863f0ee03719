"""Training arguments as dicts and as text."""

import json
import sys
from dataclasses import fields
from enum import Enum
from typing import Any

from .fields import ArgumentFields


class Serialization(ArgumentFields):
    """The methods of `transformers.TrainingArguments` that write it down; none shows a token."""

    def to_dict(self) -> dict[str, Any]:
        """As the method of that name in the reference, but what is nested is copied, never changed in place.

        Returns:
            All fields by name: members of enumerations as text, configurations as dicts, tokens as a placeholder.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {name: _masked(name, _plain(value)) for name, value in values.items()}

    def to_json_string(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """`to_dict` and the batch sizes, with everything a tracker cannot take turned into text."""
        torch = sys.modules.get("torch")
        kept = (bool, int, float, str, *([torch.Tensor] if torch else []))
        values = self.to_dict()
        values |= {name: getattr(self, name) for name in ("train_batch_size", "eval_batch_size")}
        return {name: value if type(value) in kept else str(value) for name, value in values.items()}

    def __str__(self) -> str:
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        lines = [f"{name}={_masked(name, named[name])},\n" for name in sorted(named)]
        return f"{type(self).__name__}(\n{''.join(lines)})"

    __repr__ = __str__


def _masked(name: str, value: Any) -> Any:
    return f"<{name.upper()}>" if name.endswith("_token") else value


def _plain(value: Any) -> Any:
    """Plain values of the same meaning, as far as there are any."""
    if isinstance(value, Enum):
        return value.value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return _dtype_name(value)
    if isinstance(value, dict):
        return {key: _dtype_name(item) if key == "dtype" else _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for method in ("to_dict", "to_json"):
        if hasattr(value, method) and not isinstance(value, type):
            return _plain(getattr(value, method)())
    return value


def _dtype_name(value: Any) -> Any:
    """`torch.float16` as "float16"."""
    return value if value is None or isinstance(value, str) else str(value).rpartition(".")[2]
