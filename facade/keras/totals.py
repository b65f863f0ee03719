"""A sum over the values of a loss, as `tf.keras.metrics.Sum` has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Total:
    """As `tf.keras.metrics.Sum`: `train_loss` and `eval_loss` of a `TFTrainer`; holds those of the
    last batch.

    Args:
        to_torch: makes a tensor of torch of that of another library.
    """

    def __init__(self, to_torch: Callable[[Any], torch.Tensor]) -> None:
        self.to_torch = to_torch
        self.value: torch.Tensor | None = None

    def update_state(self, values: Any) -> None:
        """Add values."""
        added = self.to_torch(values).detach().sum()
        self.value = added if self.value is None else self.value + added

    def result(self) -> torch.Tensor:
        """Return the sum, 0 of nothing."""
        return torch.zeros(()) if self.value is None else self.value

    def reset_states(self) -> None:
        """Begin at 0 again."""
        self.value = None

    reset_state = reset_states
