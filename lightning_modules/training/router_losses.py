"""The scale of the losses with which mixtures of experts of transformers balance their experts."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .micro_batch_loss import MicroBatchLoss, divide_mean


class RouterLosses:
    """Scales the balancing losses of a model's mixtures of experts, as the means that they are.

    With `output_router_logits=True` such a model adds `aux_loss`, a mean over the micro-batch, to
    a sum of losses that it has divided by the items of the full step. Unscaled, this mean would be
    added once for each micro-batch of each rank.

    The loss is corrected where it is computed, in the outputs of the model itself, because a module
    around the model may return nothing but the sum.

    Args:
        models: modules that may add such a loss.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._micro_batch: MicroBatchLoss | None = None
        self._factor = 1
        self._last_scaled: Tensor | None = None

    @contextmanager
    def scaled(self, micro_batch: MicroBatchLoss, factor: int) -> Iterator[None]:
        """Scale the balancing losses of the forward passes in the block.

        Args:
            micro_batch: the micro-batch; if its loss is a mean, `MicroBatchLoss` scales all of it.
            factor: the loss is multiplied by it after the forward pass.
        """
        self._micro_batch = micro_batch
        self._factor = factor
        handles = []
        for model in self._models:
            handles.append(model.register_forward_hook(self._scale, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._micro_batch = None
            self._last_scaled = None

    def _scale(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> None:
        """Replace the loss in the outputs of a model; a forward hook."""
        micro_batch = self._micro_batch
        if micro_batch is None or kwargs.get("num_items_in_batch") is None or micro_batch.is_mean:
            return
        if not isinstance(outputs, MutableMapping):
            return
        loss = outputs.get("loss")
        aux_loss = outputs.get("aux_loss")
        coefficient = _coefficient(model)
        if coefficient is None or not isinstance(loss, Tensor) or not isinstance(aux_loss, Tensor):
            return

        # A module that returns the outputs of the model inside, and has its config, is called too.
        if aux_loss is self._last_scaled:
            return
        self._last_scaled = aux_loss

        mean = coefficient * aux_loss.to(loss)
        share = divide_mean(mean, micro_batch.divisor) / self._factor
        outputs["loss"] = loss + (share - mean)


def router_losses_of(model: nn.Module) -> RouterLosses | None:
    """Return the balancing losses of a model or the models inside; None if it has none."""
    models = []
    for module in model.modules():
        if _coefficient(module) is not None:
            models.append(module)
    if not models:
        return None
    return RouterLosses(models)


def _coefficient(model: nn.Module) -> float | None:
    """Return the coefficient of the balancing loss of a model; None for other modules."""
    # Models with images or audio have it in the config of their language model.
    config = getattr(model, "config", None)
    text_config = getattr(config, "text_config", config)
    coefficient = getattr(text_config, "router_aux_loss_coef", None)

    # JetMoE has another name for it.
    coefficient = getattr(model, "aux_loss_coef", coefficient)
    coefficient = getattr(model, "router_aux_loss_coef", coefficient)
    if isinstance(coefficient, (int, float)):
        return coefficient
    return None
