"""Snapshot of a model and its training state in main memory, to start from it again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..checkpoints.writing import snapshot
from ..common.seeding import capture_rng_state, restore_rng_state


class TrainingSnapshot:
    """Snapshot of weights, buffers, modes, optimizer, schedule and random generators.

    It holds a copy of all trainable weights, all buffers and the state of the optimizer in main memory. Frozen weights
    are not copied; if any of them was changed, `lost` names it.

    Args:
        model: the model.
        optimizer: an optimizer, or None.
        scheduler: a learning rate schedule, or None.
        distributed: several processes train, each on its device; see `capture_rng_state`.
    """

    def __init__(self, model: nn.Module, optimizer: Any, scheduler: Any, *, distributed: bool = False) -> None:
        self.distributed = distributed
        self._modes = [(module, module.training) for module in model.modules()]
        weights = {name: weight for name, weight in model.named_parameters() if not is_lazy(weight)}
        self._trained = [(weight, _copied(weight)) for weight in weights.values() if weight.requires_grad]
        self._frozen = {name: (weight, weight._version) for name, weight in weights.items() if not weight.requires_grad}
        self._buffers = [
            (module, name, buffer, None if buffer is None or is_lazy(buffer) else _copied(buffer))
            for module in model.modules()
            for name, buffer in module._buffers.items()
        ]
        parts = [part for part in (optimizer, scheduler) if part is not None]
        self._states = [(part, snapshot(part.state_dict())) for part in parts]
        self._generators = capture_rng_state(distributed)

    @property
    def lost(self) -> list[str]:
        """Return the names of frozen weights that have been changed since."""
        return [name for name, (weight, version) in self._frozen.items() if weight._version != version]

    def restore(self) -> None:
        """Restore everything; gradients are set to None."""
        for module, training in self._modes:
            module.training = training
        with torch.no_grad():
            for weight, copy in self._trained:
                weight.copy_(copy)
                weight.requires_grad_(True)
            for module, name, buffer, copy in self._buffers:
                module._buffers[name] = buffer
                if buffer is not None and copy is not None:
                    buffer.copy_(copy)
        for weight, _ in self._trained:
            weight.grad = None
        for weight, _ in self._frozen.values():
            weight.requires_grad_(False).grad = None
        for part, state in self._states:
            part.load_state_dict(snapshot(state))
        restore_rng_state(self._generators, self.distributed)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
