"""LightningModule for sequence-to-sequence models, which generates in evaluations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ..common.stop_iteration import stop_iteration_guard
from ..distributed.sharding import is_sharded
from ..models.generation import generate, padding_token, without_answers
from ..models.wrappers import base_of_adapter
from .model_module import ModelSource
from .task_modules import TaskModule

_IGNORED = -100


class Seq2SeqModule(TaskModule):
    """Train sequence-to-sequence models, with metrics of generated tokens.

    Validation and test generate, like `Seq2SeqTrainer(predict_with_generate=True)`. Training
    metrics use the most likely token at each position given the correct preceding tokens (teacher
    forcing). All losses are computed by a forward pass with the labels.

    Metrics receive predictions and labels, both as token ids of shape (samples, length).
    Predictions are the result of the model's `generate`, without the start token of each sequence.
    Both are padded to the same length, predictions with the padding token, labels with -100. Use
    `BatchMetrics(metrics, prepare=...)` to decode them. Without metrics only `predict` generates;
    it returns the result of `generate`.

    Args:
        model: as in `LossModule`; must have a method `generate`.
        generation: keyword arguments of `generate`, such as
            `{"max_new_tokens": 40, "num_beams": 4}`; others default to the model's
            `generation_config`.
        pad_token_id: the padding token; by default that of the model's config.
        kwargs: arguments of `TaskModule` and `LossModule`.
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

    @stop_iteration_guard
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        """Return generated token ids for a batch.

        Args:
            batch: as in `generate`.
            batch_idx: its number in the loader.
            dataloader_idx: number of the loader.

        Returns:
            Shape (samples, length).
        """
        return self.generate(batch)

    @torch.no_grad()
    def generate(self, batch: Any, **options: Any) -> torch.Tensor:
        """Return token ids for a batch.

        Args:
            batch: the batch. Columns that the model's `generate` does not accept, such as labels,
                are omitted. The parts of an unnamed batch are named after the parameters of
                `forward`.
            options: keyword arguments of `generate`; they override `generation`.

        Returns:
            Token ids, (samples, length).

        Raises:
            TypeError: the model has no method `generate`.
        """
        model = self._require_model()
        columns = without_answers(self._with_names(batch))
        inputs = {name: value for name, value in columns.items() if value is not None}
        generation = {**self.generation, **options}
        return generate(model, inputs, generation, synced_gpus=is_sharded(model))

    def predictions_of(self, outputs: Any) -> Any:
        """Return the most likely token at each position."""
        logits = super().predictions_of(outputs)
        if isinstance(logits, tuple):
            logits = logits[0]
        return logits.argmax(-1)

    def _metric_inputs(self, stage: str, batch: object, outputs: object) -> tuple[Any, Any]:
        """Return tokens and labels, padded to the same length."""
        if stage == "train":
            tokens = self.predictions_of(outputs)
        else:
            tokens = self._strip_start_token(self.generate(batch))

        labels = self._labels(batch)
        if isinstance(labels, torch.Tensor):
            length = max(tokens.shape[-1], labels.shape[-1])
            if tokens.shape[-1] < length:
                tokens = _pad(tokens, length, self._padding_token())
            labels = _pad(labels, length, _IGNORED)
        return tokens, labels

    def _with_names(self, batch: object) -> Mapping[str, object]:
        if isinstance(batch, Mapping):
            return batch
        args, kwargs = self.positional_inputs(batch, labels=False)
        names = inspect.signature(base_of_adapter(self.model).forward).parameters
        # Further parameters of `forward` keep their defaults.
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _strip_start_token(self, tokens: torch.Tensor) -> torch.Tensor:
        """Remove the start token of each sequence, which labels do not have."""
        start = None
        for name in ("generation_config", "config"):
            config = getattr(self.model, name, None)
            start = getattr(config, "decoder_start_token_id", None)
            if start is not None:
                break

        # An override of `generate` may return sequences without it. The synchronization by `any` is
        # negligible compared with generating.
        if start is None or not tokens.shape[-1] or (tokens[:, 0] != start).any():
            return tokens
        return tokens[:, 1:]

    def _padding_token(self) -> int:
        if self.pad_token_id is None:
            return padding_token(None, self.model)
        return self.pad_token_id

    def _predicts_next_token(self) -> bool:
        """Return False, because the labels of a decoder are aligned with its logits."""
        return False


def _pad(tokens: torch.Tensor, length: int, padding: int) -> torch.Tensor:
    padded = tokens.new_full((tokens.shape[0], length), padding)
    padded[:, : tokens.shape[-1]] = tokens
    return padded
