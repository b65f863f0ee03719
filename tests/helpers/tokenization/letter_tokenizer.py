"""A tokenizer that splits text into letters, and a comparison of batches."""

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from lightrainer import PreTrainedTokenizerFast

CASES = 60

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]


def backend():
    numbers = {**{w: i for i, w in enumerate(WORDS)}, "##x": 31, "##y": 32}
    words = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return words


def tokenizer(side="right", **options):
    names = {
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    names |= {"unk_token": "[UNK]", "padding_side": side, "model_max_length": 64, **options}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend(), **names)


def twin(words):
    """Our tokenizer in place of the reference's."""
    options = {"padding_side": words.padding_side, "model_max_length": words.model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=words.backend_tokenizer, **options, **words.special_tokens_map
    )


def assert_same(batch, expected):
    assert list(batch) == list(expected)
    for name, value in expected.items():
        assert type(batch[name]) is type(value), name
        if isinstance(value, (torch.Tensor, np.ndarray)):
            assert batch[name].dtype == value.dtype, name
            assert batch[name].shape == value.shape, name
            assert (batch[name] == value).all(), name
        else:
            assert batch[name] == value, name
