"""Check that a saved model contains all weights of the model."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..common.local_paths import StrPath
from ..common.parameter_rules import plain_name
from ..common.torch_files import load_torch
from ..models.pretrained import is_pretrained
from ..models.wrappers import own_attribute
from .adapters import adapter_names, is_base_weight
from .tied_weights import tensor_key
from .weights import abbreviate, header_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExpectedWeights:
    """Names of the weights that a saved model should contain."""

    names: dict[str, set[str]]
    """For each weight, the names under which a file may store it.

    These are its own name, those of tied weights, and those in an overridden `state_dict`.
    """

    frozen: set[str]
    """The names of weights that are not trained."""

    may_be_renamed: bool
    """Whether the model's class may rename weights when it saves them.

    Mixture-of-experts and quantized models do.
    """


def expected_weights(
    model: nn.Module, gathered: Mapping[str, Any] | None = None
) -> ExpectedWeights:
    """Return the names of the weights that should be saved.

    Frozen base weights of a model with adapters are not included.

    Args:
        model: the user's model.
        gathered: the gathered weights of a sharded model, where one process may not know all names.
    """
    # Collect parameters and persistent buffers, including those that an override of `state_dict`
    # omits. Extra states are not tensors and are ignored.
    weights: dict[str, Any] = {}
    saved: Mapping[str, Any] = {}
    if gathered is not None:
        weights.update(gathered)
    else:
        for name, value in nn.Module.state_dict(model).items():
            if isinstance(value, Tensor):
                weights[name] = value
        weights.update(nn.Module.named_parameters(model, remove_duplicate=False))
        # An override of `state_dict` may use other names.
        saved = model.state_dict()

    # Collect all names of each tensor.
    names_of: dict[Hashable, set[str]] = {}
    for state in (weights, saved):
        for name, value in state.items():
            if isinstance(value, Tensor):
                names_of.setdefault(tensor_key(value), set()).add(name)
    # Tensors without memory have no key; they are not tied to each other.
    names_of.pop(None, None)

    trained: set[str] = set()
    for name, weight in nn.Module.named_parameters(model, remove_duplicate=False):
        if weight.requires_grad:
            trained.add(plain_name(name))
    frozen = {name for name in weights if plain_name(name) not in trained}

    has_adapters = bool(adapter_names(model))
    not_saved = own_attribute(model, "_keys_to_ignore_on_save") or ()
    expected: dict[str, set[str]] = {}
    for name, value in weights.items():
        # PEFT saves adapter weights under other names, and does not save frozen base weights.
        is_saved_by_peft = has_adapters and (name in frozen or not is_base_weight(model, name))
        if name not in not_saved and not is_saved_by_peft:
            expected[name] = names_of.get(tensor_key(value), {name})
    return ExpectedWeights(
        expected, frozen, may_be_renamed=is_pretrained(model) and not has_adapters
    )


def warn_of_missing_weights(expected: ExpectedWeights, folder: StrPath) -> None:
    """Warn of weights that a saved model does not contain.

    Args:
        expected: the weights that it should contain.
        folder: the saved model. Only the headers of its files are read.
    """
    written = set(_names_in(Path(folder)))
    if not written:
        return

    # Unknown names in the files mean that the class has renamed weights. They cannot be compared.
    if expected.may_be_renamed and written.difference(*expected.names.values()):
        return

    trained: list[str] = []
    frozen: list[str] = []
    for name, names in expected.names.items():
        if not written.isdisjoint(names):
            continue
        # An override may save an inner module, without the prefix of its names.
        if any(_is_written_without_prefix(alias, written) for alias in names):
            continue
        if name in expected.frozen:
            frozen.append(name)
        else:
            trained.append(name)

    if trained:
        _log.warning(
            "The saved model lacks %s trained weights: %s. Check your override of `_save`, "
            "`save_pretrained` or `state_dict`.",
            len(trained),
            abbreviate(trained),
        )
    if frozen:
        _log.warning(
            "The saved model lacks %s frozen weights: %s. To load it, build the model with their "
            "values first.",
            len(frozen),
            abbreviate(frozen),
        )


def _names_in(folder: Path) -> Iterator[str]:
    """Yield the names of the weights in a folder and in its subfolders, such as adapters."""
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.suffix == ".safetensors":
            names, aliases = header_of(file)
            yield from names
            # Tied weights are stored under the name of another one.
            for alias, name in aliases.items():
                if name in names:
                    yield alias
        elif file.suffix == ".bin" and "_model" in file.name:
            yield from load_torch(file, mmap=True)


def _is_written_without_prefix(name: str, written: set[str]) -> bool:
    """Return whether a name was written without a prefix of it.

    Overrides may save an inner module, whose names lack the prefix.
    """
    while "." in name:
        _, _, name = name.partition(".")
        if name in written:
            return True
    return False
