"""Language model metrics that weigh all tokens equally, in any batch and process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..internals.lightning_import import torchmetrics
from .metric_inputs import IGNORED_LABEL


class TokenLoss(torchmetrics.Metric):
    """Compute the mean cross entropy of all labels that are not -100, each with the same weight.

    The metric `eval_loss` is, as in the reference, a mean over samples of the losses of their
    batches, so tokens in batches with few tokens count more. This metric sums up losses and tokens
    over all batches and processes.

    Args:
        ignore_index: the label that does not count.
        dtype: the dtype of the sum; use `torch.float32` for devices without float64, such as MPS.
        kwargs: the keyword arguments of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    total: Tensor
    tokens: Tensor

    def __init__(
        self, ignore_index: int = IGNORED_LABEL, dtype: torch.dtype = torch.float64, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self.add_state("total", torch.zeros((), dtype=dtype, device="cpu"), dist_reduce_fx="sum")
        self.add_state(
            "tokens", torch.zeros((), dtype=torch.int64, device="cpu"), dist_reduce_fx="sum"
        )

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: logits, shape (..., classes).
            target: class numbers, shape (...): the label of each position. For a causal model they
                have to be shifted.

        Raises:
            ValueError: the shapes do not match.
        """
        if preds.shape[:-1] != target.shape:
            raise ValueError(
                f"{type(self).__name__}: logits of {tuple(preds.shape)} do not fit labels of "
                f"{tuple(target.shape)}."
            )
        logits = preds.flatten(0, -2)
        labels = target.flatten()

        # Half precision has too few digits for the logarithm of a probability.
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        losses = functional.cross_entropy(
            logits, labels, ignore_index=self.ignore_index, reduction="none"
        )
        self.total += losses.sum(dtype=self.total.dtype)
        self.tokens += (labels != self.ignore_index).sum()

    def compute(self) -> Tensor:
        """Return the loss in nats per token; NaN if no token counts."""
        return self.total / self.tokens


class TokenPerplexity(TokenLoss):
    """Compute the perplexity: the exponential of `TokenLoss`.

    Works like `torchmetrics.text.Perplexity`, but sums in double precision.

    Args:
        ignore_index: the label that does not count.
        dtype: the dtype of the sum; use `torch.float32` for devices without float64, such as MPS.
        kwargs: the keyword arguments of `torchmetrics.Metric`.
    """

    def compute(self) -> Tensor:
        """Return the perplexity; NaN if no token counts."""
        return super().compute().exp()
