"""Which linear layers a low-rank optimizer works on: `optim_target_modules`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from torch import nn

from ..common.suggestions import OptimizerNames, did_you_mean

__all__ = ["TargetModules", "target_layers"]

logger = logging.getLogger(__name__)

TargetModules = str | list[str]
"""`all-linear`, a regular expression for whole names of modules, or a list of parts of names and such expressions."""

_SHOWN = 10


def target_layers(name: OptimizerNames, model: nn.Module, targets: TargetModules | None) -> list[str]:
    """Names of the linear layers that are meant, in the order of `named_modules`.

    Of a list, an entry is a part of the name or a regular expression for all of it. Entries that mean no linear layer
    are named in a warning, where the reference passes over those that mean no module at all.

    Args:
        name: the optimizer, for the messages.
        model: its modules are looked through.
        targets: what the user wrote.

    Raises:
        ValueError: when nothing was written, it cannot be read, or means no linear layer; shows those of the model.
        TypeError: when it is neither a text nor a list of them.
    """
    entries = _entries(name, targets)
    modules = dict(model.named_modules())
    linear = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
    if isinstance(targets, str) and targets.replace("_", "-") == "all-linear":
        found = linear
    else:
        parts = not isinstance(targets, str)
        meant = {entry: [path for path in modules if _means(entry, path, parts)] for entry in entries}
        found = [path for path in linear if any(path in paths for paths in meant.values())]
        _warn_of_entries(name, {entry: [path for path in paths if path in linear] for entry, paths in meant.items()})
    if not found:
        raise ValueError(
            f"optim_target_modules={targets!r} names no linear layer of the model, and optim={name.value!r} works on "
            f"these alone.{did_you_mean(entries[0] if entries else '', linear)} Write 'all-linear', a regular "
            f"expression, or a list of parts of names. The model has: {_some(linear)}."
        )
    return found


def _entries(name: OptimizerNames, targets: TargetModules | None) -> list[str]:
    if targets is None:
        raise ValueError(
            f"optim={name.value!r} needs optim_target_modules, the linear layers to work on: 'all-linear', a regular "
            "expression, or a list of parts of names such as ['attn', 'mlp']."
        )
    entries = [targets] if isinstance(targets, str) else targets
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise TypeError(
            f"optim_target_modules must be 'all-linear', a regular expression, or a list of texts, not {targets!r} "
            f"({type(targets).__name__})."
        )
    return entries


def _means(entry: str, path: str, parts: bool) -> bool:
    if parts and entry in path:
        return True
    try:
        return re.fullmatch(entry, path) is not None
    except re.error as error:
        raise ValueError(f"optim_target_modules: {entry!r} is not a regular expression ({error}).") from None


def _warn_of_entries(name: OptimizerNames, layers: dict[str, list[str]]) -> None:
    idle = [entry for entry, paths in layers.items() if not paths]
    if idle and len(idle) < len(layers):
        logger.warning("optim_target_modules: %s names no linear layer, on which alone %r works.", idle, name.value)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(map(repr, listed[:_SHOWN])) + more if listed else "none at all"
