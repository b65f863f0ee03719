"""The collator for masked language models that also tell whether two sentences are in their order."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from .base import Batch, special_tokens_rows
from .language_modeling import DataCollatorForLanguageModeling
from .stacking import torch_collate_batch

__all__ = ["DataCollatorForSOP"]


@dataclass
class DataCollatorForSOP(DataCollatorForLanguageModeling):
    """As `transformers.DataCollatorForSOP`, which is deprecated and gone in later versions; here it takes a tokenizer.

    That of 5.3.0 forgets its arguments, so it cannot make a single batch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "DataCollatorForSOP is deprecated: use DataCollatorForLanguageModeling.", FutureWarning, stacklevel=2
        )
        super().__init__(*args, **kwargs)

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Batch:
        """The batch as tensors.

        Args:
            features: samples with "input_ids", "token_type_ids" and "sentence_order_label", the latter two tensors.
            return_tensors: None or "pt".

        Returns:
            "input_ids", "labels", "attention_mask" (1 where nothing is masked, also for padding), "token_type_ids" and
            "sentence_order_label".
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence

        if return_tensors not in (None, "pt"):
            raise ValueError(f"`return_tensors` is {return_tensors!r}, but DataCollatorForSOP makes tensors ('pt').")
        tokens = torch_collate_batch([feature["input_ids"] for feature in features], self.tokenizer)
        tokens, labels, attention = self.mask_tokens(tokens)
        types = [torch.as_tensor(feature["token_type_ids"]) for feature in features]
        return {
            "input_ids": tokens,
            "labels": labels,
            "attention_mask": attention,
            "token_type_ids": pad_sequence(types, batch_first=True, padding_value=self.tokenizer.pad_token_id),
            "sentence_order_label": torch.stack(
                [torch.as_tensor(feature["sentence_order_label"]) for feature in features]
            ),
        }

    def mask_tokens(self, inputs: Any) -> tuple[Any, Any, Any]:
        """Mask as ALBERT does: 80 of 100 chosen tokens become the mask, 10 any other token; `inputs` are changed.

        Args:
            inputs: token ids, shape (samples, tokens).

        Returns:
            what the model sees, what it has to guess, and the mask of attention, 0 for chosen tokens.
        """
        import torch

        labels = inputs.clone()
        never = torch.tensor(special_tokens_rows(self.tokenizer, labels.tolist()), dtype=torch.bool)
        padding = labels.eq(self.tokenizer.pad_token_id) if self.tokenizer.pad_token is not None else False
        chances = torch.full(labels.shape, float(self.mlm_probability or 0))
        chosen = torch.bernoulli(chances.masked_fill_(never | padding, 0.0)).bool()
        labels[~chosen] = -100
        masked = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & chosen
        inputs[masked] = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        other = torch.bernoulli(torch.full(labels.shape, 0.5)).bool() & chosen & ~masked
        tokens = torch.randint(len(self.tokenizer), labels.shape, dtype=torch.long)
        inputs[other] = tokens[other].to(inputs.dtype)
        return inputs, labels, (~chosen).float()
