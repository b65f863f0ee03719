"""Where a served name is found: `.facade:Trainer` is a name of this package, `torch.optim:AdamW` another's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_OURS = __name__.partition(".")[0]


def targets(homes: dict[str, str]) -> dict[str, str]:
    """A table of names from a shorter one.

    Args:
        homes: For each module the names that it has, separated by spaces; `A=B` serves under the name A what the
            module calls B.

    Returns:
        For each name served its target, `module:name`.
    """
    found = {}
    for home, names in homes.items():
        for written in names.split():
            name, _, own = written.partition("=")
            found[name] = f"{home}:{own or name}"
    return found


def resolve(target: str) -> Any:
    """The object of a target; without a name after the colon the module itself.

    Raises:
        ImportError: Its module cannot be imported.
        AttributeError: The module has no such name.
    """
    home, _, name = target.partition(":")
    found: Any = import_module(_OURS + home if home.startswith(".") else home)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


def written(target: str) -> str:
    """A target as one reads it: `lightrainer.facade.Trainer`."""
    home, _, name = target.partition(":")
    return ".".join(filter(None, ((_OURS + home if home.startswith(".") else home), name)))
