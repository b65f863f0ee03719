"""A running sum of losses, with the methods of `tf.keras.metrics.Sum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Total:
    """The sum of the losses of the last batch, for `train_loss` and `eval_loss` of a `TFTrainer`.

    It has the methods of `tf.keras.metrics.Sum`.

    Args:
        to_torch: converts a tensor of another library to a torch tensor.
    """

    def __init__(self, to_torch: Callable[[Any], torch.Tensor]) -> None:
        self.to_torch = to_torch
        self.value: torch.Tensor | None = None

    def update_state(self, values: object) -> None:
        """Add the values of a tensor to the sum."""
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
