"""Cross entropy with label smoothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["LabelSmoother"]


@dataclass
class LabelSmoother:
    """Compute a cross entropy against labels that are smoothed over all classes.

    Returns the same bits as `transformers.trainer_pt_utils.LabelSmoother`.

    `(1 - epsilon) * nll + epsilon * mean over classes of -log p`, averaged over the labels that
    count: Szegedy et al. (arXiv:1512.00567), section 7.
    """

    epsilon: float = 0.1
    """Share of the weight that is spread evenly over all classes, 0 to 1."""
    ignore_index: int = -100
    """The label of positions that do not count."""

    def __call__(
        self,
        model_output: Any,
        labels: Tensor,
        shift_labels: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the smoothed loss of one batch, a scalar.

        Args:
            model_output: has the logits of shape (..., classes) under "logits", as `.logits` or as
                its first element.
            labels: of shape (...) or (..., 1), int64; never changed.
            shift_labels: compare each position with the label of the next one, as in causal
                language models.
            num_items_in_batch: divisor of the sum, as in transformers 5.15 and later; by default
                the number of labels of this batch that count.
        """
        logits = _logits(model_output)
        if shift_labels:
            logits = logits[..., :-1, :].contiguous()
            labels = labels[..., 1:].contiguous()
        negative_log_probs = -functional.log_softmax(logits, dim=-1)
        # (..., 1), because `gather` needs as many dimensions as the logits have.
        if labels.dim() == negative_log_probs.dim() - 1:
            labels = labels.unsqueeze(-1)

        # -100 is not a valid index: ignored labels read class 0 here, and weigh 0 below.
        ignored = labels.eq(self.ignore_index)
        nll = negative_log_probs.gather(dim=-1, index=labels.clamp(min=0))

        # Summed in fp32, since a half precision sum over a vocabulary overflows.
        over_classes = negative_log_probs.sum(dim=-1, keepdim=True, dtype=torch.float32)

        # The mean over the labels that count; the smoothed part is also a mean over the classes.
        count = _count(num_items_in_batch, ignored)
        classes = negative_log_probs.shape[-1]
        nll_loss = nll.masked_fill(ignored, 0.0).sum() / count
        smoothed_loss = over_classes.masked_fill(ignored, 0.0).sum() / (count * classes)
        return (1 - self.epsilon) * nll_loss + self.epsilon * smoothed_loss


def _count(num_items_in_batch: Tensor | int | None, ignored: Tensor) -> Tensor | int:
    """Return the divisor of the summed losses."""
    if num_items_in_batch is None:
        return ignored.numel() - ignored.long().sum()
    if isinstance(num_items_in_batch, Tensor):
        return num_items_in_batch.to(ignored.device)
    return num_items_in_batch


def _logits(model_output: Any) -> Tensor:
    if isinstance(model_output, Mapping):
        return model_output["logits"]
    logits = getattr(model_output, "logits", None)
    return model_output[0] if logits is None else logits
