"""The loss for each token and the perplexity, exact over uneven batches and over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..internals.lightning_import import torchmetrics
from .metric_inputs import IGNORED


class TokenLoss(torchmetrics.Metric):
    """As `eval_loss`, but each token counts the same: the mean cross entropy of all labels that are not -100.

    `eval_loss` is the mean of the losses of the batches, each repeated for its samples, as the reference has it: tokens
    in batches with few of them count more. Here losses and tokens are summed up, over all batches and processes.

    Args:
        ignore_index: labels that do not count.
        dtype: of the sum; `torch.float32` for devices that know no other, as MPS.
        kwargs: of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    total: Tensor
    tokens: Tensor

    def __init__(self, ignore_index: int = IGNORED, dtype: torch.dtype = torch.float64, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self.add_state("total", torch.zeros((), dtype=dtype), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: logits, shape (..., classes).
            target: class numbers, shape (...): the label of each position, shifted already where that is needed.

        Raises:
            ValueError: the shapes do not go together.
        """
        if preds.shape[:-1] != target.shape:
            raise ValueError(
                f"{type(self).__name__} was given logits of shape {tuple(preds.shape)} and labels of shape "
                f"{tuple(target.shape)}: expected is the shape of the labels, and one more dimension for the classes."
            )
        logits, labels = preds.flatten(0, -2), target.flatten()
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        losses = functional.cross_entropy(logits, labels, ignore_index=self.ignore_index, reduction="none")
        self.total += losses.sum(dtype=self.total.dtype)
        self.tokens += (labels != self.ignore_index).sum()

    def compute(self) -> Tensor:
        """Nats per token; NaN if there was none."""
        return self.total / self.tokens


class TokenPerplexity(TokenLoss):
    """As `torchmetrics.text.Perplexity`, but summed in double precision: the exponential of `TokenLoss`."""

    def compute(self) -> Tensor:
        """How many equally likely tokens the model is as unsure as; NaN if there was none."""
        return super().compute().exp()
