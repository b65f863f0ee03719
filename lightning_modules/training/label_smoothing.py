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
    """Compute the cross entropy with label smoothing.

    The result is bitwise identical to `transformers.trainer_pt_utils.LabelSmoother`.

    The loss is `(1 - epsilon) * nll + epsilon * mean over classes of -log p`, averaged over the
    labels that are not ignored; see Szegedy et al. (arXiv:1512.00567), section 7.
    """

    epsilon: float = 0.1
    """Weight that is distributed evenly over all classes, from 0 to 1."""
    ignore_index: int = -100
    """Label of positions to ignore."""

    def __call__(
        self,
        model_output: Any,
        labels: Tensor,
        shift_labels: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the smoothed loss of a batch, a scalar.

        Args:
            model_output: contains the logits of shape (..., classes) under the key "logits", as the
                attribute `logits` or as the first element.
            labels: int64 labels of shape (...) or (..., 1); not modified.
            shift_labels: whether to compare each position with the label of the next one, as in
                causal language models.
            num_items_in_batch: divisor of the sum, as in transformers 5.15 and later; by default
                the number of labels in this batch that are not ignored.

        Raises:
            ValueError: the labels are not one class for each position of the logits.
        """
        logits = _logits(model_output)
        if shift_labels:
            logits = logits[..., :-1, :].contiguous()
            labels = labels[..., 1:].contiguous()
        negative_log_probs = -functional.log_softmax(logits, dim=-1)
        # (..., 1), because `gather` needs as many dimensions as the logits have.
        if labels.dim() == negative_log_probs.dim() - 1:
            labels = labels.unsqueeze(-1)
        if labels.shape != (*logits.shape[:-1], 1):
            raise ValueError(
                f"Label smoothing needs one class for each row of logits, but the logits have the "
                f"shape {tuple(logits.shape)} and the labels {tuple(labels.shape)}. Set "
                "label_smoothing_factor=0 for several labels per sample."
            )

        # -100 is not a valid index: ignored labels read class 0 here, and are masked below.
        ignored = labels.eq(self.ignore_index)
        nll = negative_log_probs.gather(dim=-1, index=labels.clamp(min=0))

        # Sum in fp32, because a half-precision sum over the vocabulary overflows.
        over_classes = negative_log_probs.sum(dim=-1, keepdim=True, dtype=torch.float32)

        # Average over the labels that are not ignored; the smoothed term also over the classes.
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
