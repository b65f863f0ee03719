"""A model that computes in TensorFlow, as torch trains it."""

from __future__ import annotations

from typing import Any

from .module import Compute, KerasModule


class TensorFlowModule(KerasModule):
    """A torch module around a model that computes in TensorFlow: forward pass and gradients there, all else in torch.

    Args:
        model: see `KerasModule`.
        compute: see `KerasModule`.
        xla: have TensorFlow compile the forward pass.
    """

    def __init__(self, model: Any, compute: Compute, *, xla: bool = False) -> None:
        raise NotImplementedError("Models that compute in TensorFlow cannot be trained yet.")
