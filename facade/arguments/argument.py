"""Declare one training argument: its default, its help, and its counterpart in Lightning or lightrainer."""

from dataclasses import Field, field
from typing import Any

COUNTERPARTS: dict[Field[Any], str] = {}
"""Counterpart of each field, kept apart from its metadata, which libraries pass on to argparse."""


def argument(default: Any, help: str, becomes: str, *, repr: bool = True, **metadata: Any) -> Any:
    """Return the field of a training argument.

    Args:
        default: the default; `list` stands for a new list.
        help: a sentence for `--help` and the documentation.
        becomes: the counterpart.
        repr: as in `dataclasses.field`.
        **metadata: for argparse, such as `metavar` and `choices`.
    """
    choice: dict[str, Any] = {"default_factory": list} if default is list else {"default": default}
    made = field(**choice, repr=repr, metadata={"help": help, **metadata})
    COUNTERPARTS[made] = becomes
    return made
