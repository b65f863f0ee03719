"""Options of a command line that was written for transformers 4, such as `--evaluation_strategy epoch`."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterable, Sequence
from typing import Any

from ..arguments import old_style
from ..arguments.unknown import NamesItsArguments
from .options import to_bool


def old_names(kind: Any) -> set[str]:
    """The names of transformers 4 that a dataclass takes besides its fields; none where they are not accepted."""
    if not old_style.accepted() or not issubclass(kind, NamesItsArguments):
        return set()
    return set(kind._old_names())


def add_old_options(parser: ArgumentParser, kinds: Iterable[Any], words: Sequence[str]) -> None:
    """Add to a parser the old options that a command line has, and no others, so that its help stays as it is.

    Args:
        parser: The parser.
        kinds: Its dataclasses.
        words: The command line.
    """
    from ..arguments.old_names import OLD_NAMES

    written = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    taken = {text.lstrip("-").replace("-", "_") for action in parser._actions for text in action.option_strings}
    for name in sorted((written & OLD_NAMES.keys()) - taken):
        if not any(name in old_names(kind) for kind in kinds):
            continue
        flags = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        convert = OLD_NAMES[name].kind
        if convert is None:
            parser.add_argument(*flags, nargs="?", const=True, type=to_bool, default=SUPPRESS, help=SUPPRESS)
        else:
            parser.add_argument(*flags, type=convert, default=SUPPRESS, help=SUPPRESS)
