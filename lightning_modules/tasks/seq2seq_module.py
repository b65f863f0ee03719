"""A LightningModule that trains on pairs of sequences, and generates in evaluations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ..common.stop_iteration import stop_iteration_surfaces
from ..distributed.sharding import is_sharded
from ..models.generation import generate, padding_token, without_answers
from ..models.inspection import base_of_adapter
from .model_module import ModelSource
from .task_modules import TaskModule

_IGNORED = -100


class Seq2SeqModule(TaskModule):
    """As `Seq2SeqTrainer` with `predict_with_generate`: metrics of validation and test are those of
    generated tokens.

    The losses are those of a forward pass with the labels. Metrics are updated with token ids,
    (samples, length): those that the model's `generate` returned, without a token that starts each
    sequence, and the labels. Both are equally long, tokens filled up with the padding token, labels
    with -100. `BatchMetrics(metrics, prepare=...)` turns them into texts. Without metrics nothing
    is generated but in `predict`, whose batches are what `generate` returned.

    Args:
        model: see `LossModule`; has a method `generate`.
        generation: keyword arguments of `generate`, such as
            `{"max_new_tokens": 40, "num_beams": 4}`; others are those of the model's own
            `generation_config`.
        pad_token_id: fills up sequences, by default what the model's config says.
        kwargs: further arguments of `TaskModule` and `LossModule`. Metrics of the training are
            updated with the most likely token at each position, given the right ones before it.
    """

    def __init__(
        self,
        model: ModelSource = None,
        *,
        generation: dict[str, Any] | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        self.generation = dict(generation or {})
        self.pad_token_id = pad_token_id
        self.keep_hyperparameters(generation=self.generation, pad_token_id=pad_token_id)

    @stop_iteration_surfaces
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Return token ids for a batch, (samples, length)."""
        return self.generate(batch)

    @torch.no_grad()
    def generate(self, batch: Any, **options: Any) -> torch.Tensor:
        """Return token ids for a batch.

        Args:
            batch: columns that the model's `generate` does not take, such as labels, are left out.
                Inputs without names have those of the arguments of `forward`.
            options: keyword arguments of its `generate`; they go before those in `generation`.

        Returns:
            What it returned, (samples, length).

        Raises:
            TypeError: the model has no method `generate`.
        """
        model = self._require_model()
        inputs = {
            name: value
            for name, value in without_answers(self._with_names(batch)).items()
            if value is not None
        }
        return generate(
            model, inputs, {**self.generation, **options}, synced_gpus=is_sharded(model)
        )

    def predictions_of(self, outputs: Any) -> Any:
        """Return the most likely token at each position."""
        predictions = super().predictions_of(outputs)
        logits = predictions[0] if isinstance(predictions, tuple) else predictions
        return logits.argmax(-1)

    def _count(
        self,
        stage: str,
        loader: int,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        *,
        counts: bool,
    ) -> None:
        counted = self._counted[stage]
        if counted.metrics is None:
            return
        tokens = (
            self.predictions_of(outputs)
            if stage == "train"
            else self._without_start(self.generate(batch))
        )
        labels = self._labels(batch)
        if isinstance(labels, torch.Tensor):
            length = max(tokens.shape[-1], labels.shape[-1])
            if tokens.shape[-1] < length:
                tokens = _filled(tokens, length, self._padding())
            labels = _filled(labels, length, _IGNORED)
        counted.update(
            stage, loader, tokens, labels, inputs=batch, loss=loss.detach(), counts=counts
        )

    def _with_names(self, batch: Any) -> Mapping[str, Any]:
        if isinstance(batch, Mapping):
            return batch
        arguments, named = self.positional_inputs(batch, labels=False)
        names = inspect.signature(base_of_adapter(self.model).forward).parameters
        return {**dict(zip(names, arguments, strict=False)), **named}

    def _without_start(self, tokens: torch.Tensor) -> torch.Tensor:
        """Remove the token that starts a sequence, which labels do not have."""
        places = (
            getattr(self.model, "generation_config", None),
            getattr(self.model, "config", None),
        )
        starts = [getattr(place, "decoder_start_token_id", None) for place in places]
        start = next((token for token in starts if token is not None), None)
        return (
            tokens
            if start is None or not tokens.shape[-1] or (tokens[:, 0] != start).any()
            else tokens[:, 1:]
        )

    def _padding(self) -> int:
        return padding_token(None, self.model) if self.pad_token_id is None else self.pad_token_id

    def _predicts_next_token(self) -> bool:
        return False


def _filled(tokens: torch.Tensor, length: int, token: int) -> torch.Tensor:
    filled = tokens.new_full((tokens.shape[0], length), token)
    filled[:, : tokens.shape[-1]] = tokens
    return filled
