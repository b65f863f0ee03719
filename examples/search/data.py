"""A small task with something to find: which of three numbers is the largest."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def points(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return the samples with eight numbers, of which the first three decide."""
    features = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return [{"x": x, "labels": x[:3].argmax()} for x in features]


class Model(nn.Module):
    """Two layers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Logits, and the loss where there are labels."""
        logits = self.second(torch.tanh(self.first(x)))
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}
