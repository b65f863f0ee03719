"""Read weights and optimizer states of stage 0 of ZeRO, without DeepSpeed.

A single process writes whole states. In float32 they are those of the Trainer's optimizer. With
half precision DeepSpeed also keeps a float32 copy of each trained parameter, without its name.
Source: `FP16_UnfusedOptimizer.state_dict` of DeepSpeed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..common.local_paths import StrPath
from .zero_files import WHOLE_MODEL_NAME, load_file, saved_states


class ReplicatedStates:
    """States of a checkpoint of stage 0, with the interface of `ZeroStates`.

    Args:
        folder: the folder of the checkpoint.

    Attributes:
        folder: DeepSpeed's folder in it.
        weights: all weights by their names in the model; trained ones have the precision of the
            optimizer.
        tied: for each tied weight, the name of the weight whose memory it shares.

    Raises:
        ValueError: the folder has no such states, they are damaged, or the copies in float32 are
            not those of the weights.
    """

    def __init__(self, folder: StrPath) -> None:
        # Files.
        saved = saved_states(folder)
        if saved is None or saved.processes is not None:
            raise ValueError(f"{folder} has no states of DeepSpeed's stage 0.")
        self.folder = Path(folder, saved.tag)
        content = load_file(self.folder / WHOLE_MODEL_NAME)
        module = content.get("module")
        optimizer = content.get("optimizer")
        if not isinstance(module, Mapping) or not isinstance(optimizer, Mapping):
            raise ValueError(
                f"{self.folder} is damaged, or not what DeepSpeed writes: it has no weights or no "
                "states."
            )
        if "fp32_groups_flat" in optimizer:
            raise ValueError(
                f"{self.folder} has the flat copies of one of DeepSpeed's fused optimizers, which "
                "are not supported. Resume in stage 0, or write a checkpoint in stage 1."
            )
        self._optimizer = optimizer

        # Weights. In half precision, use the float32 copies of those that were trained.
        tensors = {name: value for name, value in module.items() if isinstance(value, torch.Tensor)}
        self.tied = _tied(tensors)
        copies = itertools.chain.from_iterable(optimizer.get("fp32_groups", []))
        self.weights: dict[str, torch.Tensor] = tensors | self._named(copies, tensors)

    def _named(
        self, copies: Iterable[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the float32 copies by name: each belongs to the weight that it rounds to."""
        unnamed = [name for name in weights if name not in self.tied]
        named: dict[str, torch.Tensor] = {}
        for copy in copies:
            # Copies have the order of the weights, so the first of the shape usually matches.
            matching = (name for name in unnamed if _rounds_to(copy, weights[name]))
            name = next(matching, None)
            if name is None:
                raise ValueError(
                    f"{self.folder} is damaged: a copy of {list(copy.shape)} in float32 belongs to "
                    "no weight."
                )
            unnamed.remove(name)
            named[name] = copy
        return named

    def whole_optimizer(self) -> dict[str, Any]:
        """Return the `state_dict` of the optimizer."""
        return dict(self._optimizer.get("optimizer_state_dict", self._optimizer))

    @property
    def scaler(self) -> tuple[str, dict[str, Any]] | None:
        """Return class name and attributes of the loss scaler; None if its scale is constant."""
        if self._optimizer.get("dynamic_loss_scale") is not True:
            return None
        return "DynamicLossScaler", dict(self._optimizer)


def _rounds_to(copy: torch.Tensor, weight: torch.Tensor) -> bool:
    return copy.shape == weight.shape and torch.equal(copy.to(weight.dtype), weight)


def _tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return for each tensor that shares the memory of an earlier one the name of the latter."""
    first: dict[tuple[int, torch.Size], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        source = first.setdefault((tensor.data_ptr(), tensor.shape), name)
        if source != name:
            tied[name] = source
    return tied
