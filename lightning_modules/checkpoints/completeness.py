"""Compare the weights in a folder with those of the model that was saved there."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..common.local_paths import StrPath
from ..common.parameter_rules import plain_name
from ..common.torch_files import load_torch
from ..models.inspection import is_pretrained, own_attribute
from .adapters import adapters_of, is_of_base
from .tied_weights import identity
from .weights import header_of, some_of

_log = logging.getLogger(__name__)


class ExpectedWeights:
    """Names of the weights that a saved model should have, read before it is saved.

    Of a model that saves adapters alone the frozen base does not count. Files are compared by names only, so that
    nothing is read but their headers.

    Args:
        model: the user's model.
        gathered: the weights of a model that is spread over processes, of which no process alone knows all names.
    """

    def __init__(self, model: nn.Module, gathered: Mapping[str, Any] | None = None) -> None:
        self.has_adapters = bool(adapters_of(model))
        self.may_have_other_names = is_pretrained(model)  # mixtures of experts, quantized weights
        self.names: dict[str, set[str]] = {}
        """For each weight the names that stand for it: its own, those of tied weights, those in an own `state_dict`."""
        self.frozen = _frozen_names(model)

        named: list[tuple[str, Any]] = []
        if gathered is None:
            weights: Mapping[str, Any] = _weights_of(model)
            # An override of `state_dict` may have its own names.
            named += model.state_dict().items()
        else:
            weights = gathered
        named += weights.items()
        same = _names_of_memory(named)

        left_out = own_attribute(model, "_keys_to_ignore_on_save") or ()
        for name, tensor in weights.items():
            if name not in left_out and self._is_compared(model, name):
                self.names[name] = same.get(identity(tensor), {name})

    def _is_compared(self, model: nn.Module, name: str) -> bool:
        if not self.has_adapters:
            return True
        # PEFT names the weights of adapters otherwise, and leaves out the frozen base.
        return not self._is_frozen(name) and is_of_base(model, name)

    def _is_frozen(self, name: str) -> bool:
        return plain_name(name) in self.frozen

    def missing_in(self, folder: StrPath) -> list[str]:
        """Return the weights of which no file of the folder has values; empty where its files are of another form."""
        written = set(_names_in(Path(folder)))
        if not written or self._has_other_names(written):
            return []
        missing: list[str] = []
        for name, names in self.names.items():
            if not any(_is_among(other, written) for other in names):
                missing.append(name)
        return missing

    def _has_other_names(self, written: set[str]) -> bool:
        """Return whether the class of the model has renamed weights when it saved them."""
        if self.has_adapters or not self.may_have_other_names:
            return False
        return bool(written.difference(*self.names.values()))

    def report(self, folder: StrPath) -> None:
        """Warn of the weights that the folder lacks."""
        trained: list[str] = []
        frozen: list[str] = []
        for name in self.missing_in(folder):
            if self._is_frozen(name):
                frozen.append(name)
            else:
                trained.append(name)

        if trained:
            _log.warning(
                "The saved model lacks %s trained weights, whose values are in no file: %s. Check the `_save`, "
                "`save_pretrained` or `state_dict` that leaves them out.",
                len(trained),
                some_of(trained),
            )
        if frozen:
            _log.warning(
                "The saved model lacks %s frozen weights: %s. To load it, build the model with their values first.",
                len(frozen),
                some_of(frozen),
            )


def _weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and saved buffers by name, also those that an own `state_dict` leaves out."""
    saved = nn.Module.state_dict(model)
    # An extra state may be anything.
    weights = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
    weights.update(nn.Module.named_parameters(model, remove_duplicate=False))
    return weights


def _frozen_names(model: nn.Module) -> set[str]:
    """Return the names of buffers, and of parameters that are not trained."""
    frozen: set[str] = set()
    for name, _ in nn.Module.named_buffers(model, remove_duplicate=False):
        frozen.add(plain_name(name))
    for name, parameter in nn.Module.named_parameters(model, remove_duplicate=False):
        if not parameter.requires_grad:
            frozen.add(plain_name(name))
    return frozen


def _names_of_memory(named: Iterable[tuple[str, Any]]) -> dict[Any, set[str]]:
    """Return all names of each tensor, by its identity."""
    names: defaultdict[Any, set[str]] = defaultdict(set)
    for name, value in named:
        if not isinstance(value, Tensor):
            continue
        key = identity(value)
        if key is not None:
            names[key].add(name)
    return names


def _names_in(folder: Path) -> Iterator[str]:
    """Yield the names of the weights in a folder and its subfolders, such as those of adapters."""
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.suffix == ".safetensors":
            names, aliases = header_of(file)
            yield from names
            # Names of tied weights, which are stored under another one.
            for alias, name in aliases.items():
                if name in names:
                    yield alias
        elif file.suffix == ".bin" and "_model" in file.name:
            yield from load_torch(file, mmap=True)


def _is_among(name: str, written: set[str]) -> bool:
    """Return whether a name, or its end, is among others: overrides save inner modules, whose names lack the start."""
    end = name
    while end:
        if end in written:
            return True
        _, _, end = end.partition(".")
    return False
