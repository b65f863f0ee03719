"""A sum over the values of a loss, as `tf.keras.metrics.Sum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Total:
    """As `tf.keras.metrics.Sum`: `train_loss` and `eval_loss` of a `TFTrainer`, of the last batch.

    Args:
        to_torch: converts a tensor of another library to one of torch.
    """

    def __init__(self, to_torch: Callable[[Any], torch.Tensor]) -> None:
        self.to_torch = to_torch
        self.value: torch.Tensor | None = None

    def update_state(self, values: object) -> None:
        """Add values."""
        total = self.to_torch(values).detach().sum()
        if self.value is not None:
            total = self.value + total
        self.value = total

    def result(self) -> torch.Tensor:
        """Return the sum; 0 without values."""
        if self.value is None:
            return torch.zeros(())
        return self.value

    def reset_states(self) -> None:
        """Reset the sum to 0."""
        self.value = None

    reset_state = reset_states
