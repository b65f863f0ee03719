"""Resolve targets of served names: `.facade:Trainer` is in this package, `torch.optim:AdamW` in
another.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

_OURS = __name__.partition(".")[0]


def targets(homes: dict[str, str]) -> dict[str, str]:
    """Expand a compact table of names.

    Args:
        homes: For each module the names that it has, separated by spaces; `A=B` serves under the
            name A what the module calls B.

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
    """Return the object of a target; without a name after the colon the module itself.

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
    """Return a target in dotted form: `lightrainer.facade.Trainer`."""
    home, _, name = target.partition(":")
    return ".".join(filter(None, ((_OURS + home if home.startswith(".") else home), name)))


_STRATEGY = {"EvaluationStrategy": ".facade:IntervalStrategy"}
_XLA = {"is_torch_tpu_available": "transformers.utils:is_torch_xla_available"}

RENAMED: dict[str, dict[str, str]] = {
    "transformers": {"AdamW": "torch.optim:AdamW", **_XLA},
    "transformers.optimization": {"AdamW": "torch.optim:AdamW"},
    "transformers.trainer_callback": _STRATEGY,
    "transformers.trainer_utils": _STRATEGY,
    "transformers.training_args": _STRATEGY,
    "transformers.utils": {
        "send_example_telemetry": ".interception.stand_in.versions:send_example_telemetry",
        **_XLA,
    },
}
"""Old names of each module, with the targets of their successors."""

_INSTEAD = {"send_example_telemetry": "It does nothing any more: leave it out."}


def renamed(module: str, name: str) -> Any:
    """Return the successor of an old name with a warning; None if it is not an old name.

    The warning is about the line that asked for the name: this is called by the `__getattr__` of a
    module, directly.

    Args:
        module: The module, in full.
        name: A name that it does not have.
    """
    target = RENAMED.get(module, {}).get(name)
    if target is None:
        return None
    instead = _INSTEAD.get(name, f"{written(target)} is taken in its place: import that.")
    warnings.warn(
        f"{module}.{name} is a name of transformers 4. {instead}", FutureWarning, stacklevel=3
    )
    return resolve(target)
