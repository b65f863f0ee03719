"""Resolve targets, which say where the objects of served names are.

A target is a module and a name, such as `.facade:Trainer` for this package, or `torch.optim:AdamW`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def targets(names_of_modules: dict[str, str]) -> dict[str, str]:
    """Expand a compact table of names.

    Args:
        names_of_modules: for each module the names that it provides, separated by spaces. `A=B`
            serves the module's object B under the name A.

    Returns:
        For each served name its target, `module:name`.
    """
    expanded = {}
    for module, names in names_of_modules.items():
        for entry in names.split():
            served_name, _, name_in_module = entry.partition("=")
            expanded[served_name] = f"{module}:{name_in_module or served_name}"
    return expanded


def resolve(target: str) -> Any:
    """Return the object of a target, which is the module itself if no name follows the colon.

    Raises:
        ImportError: the module cannot be imported.
        AttributeError: the module has no such name.
    """
    module_name, name = _split(target)
    result: Any = import_module(module_name)
    if name:
        for attribute in name.split("."):
            result = getattr(result, attribute)
    return result


def dotted(target: str) -> str:
    """Return a target in dotted form, such as `lightrainer.facade.Trainer`."""
    module_name, name = _split(target)
    return f"{module_name}.{name}" if name else module_name


def _split(target: str) -> tuple[str, str]:
    """Return the full name of a target's module, and the name in it."""
    module_name, _, name = target.partition(":")
    if module_name.startswith("."):
        module_name = f"{_PACKAGE}{module_name}"
    return module_name, name


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

_REMEDIES = {"send_example_telemetry": "It does nothing any more: remove the call."}
"""Advice for old names whose successor should not be imported."""


def renamed(module: str, name: str) -> Any:
    """Return the successor of an old name, with a warning; None if it is not an old name.

    Call this directly from the `__getattr__` of a module, so that the warning points at the line
    that uses the name.

    Args:
        module: the full name of the module.
        name: a name that the module does not have.
    """
    target = RENAMED.get(module, {}).get(name)
    if target is None:
        return None
    successor = dotted(target)
    remedy = _REMEDIES.get(name, f"{successor} is used instead: import {successor}.")
    warnings.warn(
        f"{module}.{name} is a name of transformers 4. {remedy}", FutureWarning, stacklevel=3
    )
    return resolve(target)
