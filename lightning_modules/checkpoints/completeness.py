"""Compare the weights in a folder with those of the model that was saved there."""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..common.local_paths import StrPath
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
        model: the user's model, not sharded.
    """

    def __init__(self, model: nn.Module) -> None:
        self.has_adapters = bool(adapters_of(model))
        self.may_have_other_names = is_pretrained(model)  # mixtures of experts, quantized weights
        self.names: dict[str, set[str]] = {}
        """For each weight the names that stand for it: its own, those of tied weights, those in an own `state_dict`."""
        self.trained: set[str] = set()

        # Names of the same memory, also those that an override of `state_dict` gives.
        given: dict[str, Any] = model.state_dict()
        weights = _weights_of(model)
        same: defaultdict[Any, set[str]] = defaultdict(set)
        for name, tensor in itertools.chain(given.items(), weights.items()):
            if isinstance(tensor, Tensor) and identity(tensor) is not None:
                same[identity(tensor)].add(name)

        left_out = own_attribute(model, "_keys_to_ignore_on_save") or ()
        for name, tensor in weights.items():
            of_adapter = self.has_adapters and not is_of_base(model, name)
            frozen_base = self.has_adapters and not tensor.requires_grad
            if name not in left_out and not of_adapter and not frozen_base:
                self.names[name] = {name, *same.get(identity(tensor), ())}
                if tensor.requires_grad:
                    self.trained.add(name)

    def missing_in(self, folder: StrPath) -> list[str]:
        """Return the weights of which no file of the folder has values; empty where its files are of another form."""
        written = set(_names_in(Path(folder)))
        if not written or (self.may_have_other_names and not self.has_adapters and written - self._all_names()):
            return []
        return [name for name, names in self.names.items() if not any(_is_among(one, written) for one in names)]

    def report(self, folder: StrPath) -> None:
        """Warn of the weights that the folder lacks."""
        missing = self.missing_in(folder)
        trained = [name for name in missing if name in self.trained]
        frozen = [name for name in missing if name not in self.trained]
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

    def _all_names(self) -> set[str]:
        return set().union(*self.names.values())


def _weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and saved buffers by name, also those that an own `state_dict` leaves out."""
    saved = {name: value for name, value in nn.Module.state_dict(model).items() if isinstance(value, Tensor)}
    return {**saved, **dict(nn.Module.named_parameters(model, remove_duplicate=False))}


def _names_in(folder: Path) -> Iterator[str]:
    """Yield the names of the weights in a folder and its subfolders, such as those of adapters."""
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.suffix == ".safetensors":
            names, aliases = header_of(file)
            yield from names
            yield from (alias for alias, name in aliases.items() if name in names)
        elif file.suffix == ".bin" and "_model" in file.name:
            yield from load_torch(file, mmap=True)


def _is_among(name: str, written: set[str]) -> bool:
    """Return whether a name, or its end, is among others: overrides save inner modules, whose names lack the start."""
    parts = name.split(".")
    return any(".".join(parts[start:]) in written for start in range(len(parts)))
