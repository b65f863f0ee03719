"""Collators for causal and masked language models."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .base import (
    Batch,
    DataCollatorMixin,
    numpy_collate_batch,
    pad_without_fast_tokenizer_warning,
    padded_rows,
    special_tokens_rows,
    torch_collate_batch,
    without_columns,
)
from .masking import NumpyMasking, TorchMasking

_SPANS = "offset_mapping"
_SPECIAL = "special_tokens_mask"


class PaddedBatch(NamedTuple):
    """A padded batch, with the columns that masking needs."""

    batch: Any
    """The columns of the batch; "input_ids" has the shape (samples, tokens)."""
    special_tokens_mask: Any = None
    """1 for special tokens, shape (samples, tokens); None if the samples do not have the column."""
    spans: np.ndarray | None = None
    """The character span of each token, shape (samples, tokens, 2); None without the column."""


@dataclass
class DataCollatorForLanguageModeling(TorchMasking, NumpyMasking, DataCollatorMixin):
    """Pad token ids, and create the labels of masked or causal language modeling.

    Works like `transformers.DataCollatorForLanguageModeling`, and makes the same batches, because
    random numbers are drawn in the same order. There are three differences from 5.3.0. `seed=0` is
    accepted as a seed, as in 5.23. Workers draw different numbers even if the collator was used
    before they started, as in 5.24. With `whole_word_mask`, samples may have different lengths.

    Raises:
        ValueError: options contradict each other, or `mlm` is True and the tokenizer has no mask
            token.
    """

    tokenizer: Any
    """The tokenizer; provides `pad` and `pad_token_id`, and for masking also `mask_token`,
    `convert_tokens_to_ids` and a length.
    """
    mlm: bool = True
    """True for masked language modeling: masked tokens become the labels. False for causal language
    modeling: all tokens except padding are labels.
    """
    whole_word_mask: bool = False
    """True to mask all tokens of a word or none. Samples need the column "offset_mapping"."""
    mlm_probability: float | None = 0.15
    """Fraction of the tokens, or of the words, that become labels."""
    mask_replace_prob: float = 0.8
    """Fraction of the labels whose tokens are replaced by the mask token."""
    random_replace_prob: float = 0.1
    """Fraction of the labels whose tokens are replaced by random ones; the others are unchanged."""
    pad_to_multiple_of: int | None = None
    """The length is rounded up to a multiple of this number."""
    return_tensors: str = "pt"
    """"pt" for tensors, "np" for arrays."""
    seed: int | None = None
    """Seed of the collator's own generator, to which each dataloader worker adds its id. None uses
    the global generator.
    """

    def __post_init__(self) -> None:
        if self.mlm:
            self._check_mlm()
        elif self.whole_word_mask:
            raise ValueError(
                "whole_word_mask=True needs mlm=True: with mlm=False nothing is masked."
            )
        self.mask_replace_prob = _probability("mask_replace_prob", self.mask_replace_prob)
        self.random_replace_prob = _probability("random_replace_prob", self.random_replace_prob)
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ValueError(
                f"mask_replace_prob={self.mask_replace_prob} and "
                f"random_replace_prob={self.random_replace_prob} add up to more than 1, but they "
                "are shares of the same tokens. Lower one of them."
            )
        if self.whole_word_mask:
            self._prepare_whole_words()
        self.generator: Any = None
        self._generator_pid: int | None = None
        """Id of the process that created the generator; None if it is from a checkpoint."""

    def _check_mlm(self) -> None:
        """Check the options of masked language modeling."""
        if getattr(self.tokenizer, "mask_token", None) is None:
            raise ValueError(
                "`mlm=True` needs a mask token: set `tokenizer.mask_token`, or pass `mlm=False`."
            )
        self.mlm_probability = _probability("mlm_probability", self.mlm_probability)

    def _prepare_whole_words(self) -> None:
        """Set the options that whole-word masking implies, and warn about them."""
        if not getattr(self.tokenizer, "is_fast", True):
            warnings.warn(
                "`whole_word_mask` needs the 'offset_mapping', which slow tokenizers do not give.",
                stacklevel=4,
            )
        if self.mask_replace_prob < 1:
            warnings.warn(
                "`whole_word_mask` sets `mask_replace_prob` to 1 and `random_replace_prob` to 0.",
                stacklevel=4,
            )
            self.mask_replace_prob = 1.0
            self.random_replace_prob = 0.0

    def get_generator(self, seed: int, return_tensors: str | None = None) -> Any:
        """Return a new generator of torch or numpy.

        Args:
            seed: the seed of the generator.
            return_tensors: "pt" or "np"; by default the attribute.
        """
        if (return_tensors or self.return_tensors) == "np":
            return np.random.default_rng(seed)
        import torch

        return torch.Generator().manual_seed(seed)

    def create_rng(self, return_tensors: str | None = None) -> None:
        """Create the generator of the masks; a dataloader worker adds its id to the seed.

        Args:
            return_tensors: "pt" or "np"; by default the attribute.
        """
        assert self.seed is not None, "a generator needs a seed"
        seed = self.seed
        # Do not import torch for this: in a worker of its DataLoader it is already imported.
        torch_data: Any = sys.modules.get("torch.utils.data")
        if torch_data is not None:
            worker = torch_data.get_worker_info()
            if worker is not None:
                seed += worker.id
        self.generator = self.get_generator(seed, return_tensors)
        self._generator_pid = os.getpid()

    def _has_generator(self, return_tensors: str) -> bool:
        """Return whether this process has a generator for tensors or arrays.

        A generator that a worker inherited from its parent process does not count, because all
        workers would draw the same numbers from it, as in transformers before 5.24.
        """
        if self._generator_pid not in (None, os.getpid()):
            return False
        if return_tensors == "np":
            return isinstance(self.generator, np.random.Generator)
        import torch

        return isinstance(self.generator, torch.Generator)

    def torch_call(self, examples: list[Any]) -> Any:
        """Return the batch as tensors, with a column "labels" that is -100 for ignored tokens.

        Args:
            examples: mappings that the tokenizer can pad, or plain sequences of token ids.
        """
        batch, special_tokens_mask, spans = self._batch(examples, "pt")
        if self.mlm:
            batch["input_ids"], batch["labels"] = self.torch_mask_tokens(
                batch["input_ids"], special_tokens_mask, spans
            )
        else:
            batch["labels"] = self._without_padding(batch["input_ids"].clone())
        return batch

    def numpy_call(self, examples: list[Any]) -> Any:
        """Return the batch as arrays, see `torch_call`; random numbers come from numpy.

        Args:
            examples: mappings that the tokenizer can pad, or plain sequences of token ids.
        """
        batch, special_tokens_mask, spans = self._batch(examples, "np")
        if self.mlm:
            batch["input_ids"], batch["labels"] = self.numpy_mask_tokens(
                batch["input_ids"], special_tokens_mask, spans
            )
        else:
            batch["labels"] = self._without_padding(np.copy(batch["input_ids"]))
        return batch

    def _batch(self, features: list[Any], return_tensors: str) -> PaddedBatch:
        """Pad the samples, and create the generator if needed."""
        if self.seed is not None and not self._has_generator(return_tensors):
            self.create_rng(return_tensors)

        # The samples may be plain sequences of token ids.
        if not isinstance(features[0], Mapping):
            collate = torch_collate_batch if return_tensors == "pt" else numpy_collate_batch
            ids = collate(features, self.tokenizer, self.pad_to_multiple_of)
            return PaddedBatch({"input_ids": ids})

        # The spans are padded below, because tokenizers cannot pad them.
        batch = pad_without_fast_tokenizer_warning(
            self.tokenizer,
            without_columns(features, _SPANS),
            return_tensors=return_tensors,
            pad_to_multiple_of=self.pad_to_multiple_of,
        )
        special_tokens_mask = batch.pop(_SPECIAL, None)
        spans = None
        if _SPANS in features[0]:
            spans_of_samples = [sample[_SPANS] for sample in features]
            spans = self._spans(spans_of_samples, batch["input_ids"])
        return PaddedBatch(batch, special_tokens_mask, spans)

    def _spans(self, rows: list[Any], tokens: Any) -> np.ndarray:
        """Return the padded spans, shape (samples, tokens, 2).

        Args:
            rows: for each sample, the start and end (exclusive) of each token in characters.
            tokens: the padded token ids.
        """
        spans = [np.reshape(np.asarray(row), (len(row), 2)) for row in rows]
        return padded_rows(spans, tokens.shape[1], 0, self.tokenizer)

    def _without_padding(self, labels: Any) -> Any:
        """Set the labels of padding to -100 in place, and return the labels."""
        pad = getattr(self.tokenizer, "pad_token_id", None)
        if pad is not None:
            labels[labels == pad] = -100
        return labels


def _probability(name: str, value: float | None) -> float:
    """Return an option as a float, and raise if it is not between 0 and 1."""
    if value is None or not 0 <= value <= 1:
        raise ValueError(f"{name}={value} is not a share: use a number from 0 to 1.")
    return float(value)


@dataclass
class DataCollatorForWholeWordMask(DataCollatorForLanguageModeling):
    """Mask whole words for language modeling; use `DataCollatorForLanguageModeling` instead.

    Works like `transformers.DataCollatorForWholeWordMask`, which is deprecated and was removed in
    later versions.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "DataCollatorForWholeWordMask is deprecated: use "
            "DataCollatorForLanguageModeling(whole_word_mask=True).",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(*args, **kwargs)
        # As in the reference, set these after the constructor, which would otherwise change
        # `mask_replace_prob` and `random_replace_prob`.
        self.mlm = True
        self.whole_word_mask = True


@dataclass
class DataCollatorForSOP(DataCollatorForLanguageModeling):
    """Mask tokens, and keep the sentence order labels.

    Works like `transformers.DataCollatorForSOP`, which is deprecated and was removed in later
    versions. The class of 5.3.0 ignores its arguments and so cannot make a batch; this one accepts
    a tokenizer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "DataCollatorForSOP is deprecated: use DataCollatorForLanguageModeling.",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(*args, **kwargs)

    def __call__(self, examples: list[Any], return_tensors: str | None = None) -> Batch:
        """Return the batch as tensors.

        Args:
            examples: samples with "input_ids", "token_type_ids" and "sentence_order_label"; the
                latter two are tensors.
            return_tensors: None or "pt".

        Returns:
            "input_ids", "labels", "attention_mask" (0 for masked tokens, 1 for all others including
            padding), "token_type_ids" and "sentence_order_label".

        Raises:
            ValueError: `return_tensors` is "np".
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence

        if return_tensors not in (None, "pt"):
            raise ValueError(
                f"`return_tensors` is {return_tensors!r}, but DataCollatorForSOP makes tensors "
                "('pt')."
            )
        tokens = torch_collate_batch([example["input_ids"] for example in examples], self.tokenizer)
        tokens, labels, attention_mask = self.mask_tokens(tokens)
        types = [torch.as_tensor(example["token_type_ids"]) for example in examples]
        orders = [torch.as_tensor(example["sentence_order_label"]) for example in examples]
        padding = self.tokenizer.pad_token_id
        return {
            "input_ids": tokens,
            "labels": labels,
            "attention_mask": attention_mask,
            "token_type_ids": pad_sequence(types, batch_first=True, padding_value=padding),
            "sentence_order_label": torch.stack(orders),
        }

    def mask_tokens(self, inputs: Any) -> tuple[Any, Any, Any]:
        """Mask token ids in place, as for ALBERT.

        By default, of 100 chosen tokens 80 are replaced by the mask and 10 by a random token.

        Args:
            inputs: token ids, shape (samples, tokens).

        Returns:
            Three tensors of that shape: the inputs of the model, the labels, and the attention
            mask, which is 0 for chosen tokens.
        """
        # Special tokens and padding are never chosen.
        never = np.array(special_tokens_rows(self.tokenizer, inputs.tolist()), dtype=bool)
        if self.tokenizer.pad_token is not None:
            never |= (inputs == self.tokenizer.pad_token_id).numpy()
        inputs, labels = self.torch_mask_tokens(inputs, never)
        return inputs, labels, (labels == -100).float()
