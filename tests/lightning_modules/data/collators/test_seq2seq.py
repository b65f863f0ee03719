"""Batches of pairs of sequences are the reference's, and labels that do not fit are named."""

import copy
import pickle

import numpy as np
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration
from transformers import DataCollatorForSeq2Seq as Reference

from helpers.tokenization.letter_tokenizer import assert_same, tokenizer
from lightrainer import DataCollatorForSeq2Seq


@pytest.fixture(params=["right", "left"])
def words(request):
    return tokenizer(request.param)


@pytest.fixture(scope="module")
def model():
    sizes = {
        "d_model": 4,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 4,
        "decoder_ffn_dim": 4,
    }
    heads = {
        "encoder_attention_heads": 1,
        "decoder_attention_heads": 1,
        "max_position_embeddings": 16,
    }
    tokens = {
        "vocab_size": 9,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "decoder_start_token_id": 3,
    }
    return BartForConditionalGeneration(BartConfig(**sizes, **heads, **tokens))


def samples(words, kind=list, name="labels"):
    labels = [[5, 6], [7, 8, 4, 5], [6]]
    return [
        {**words(text), name: kind(row)}
        for text, row in zip(["a", "a b b", "b a"], labels, strict=True)
    ]


OPTIONS = [
    {},
    {"pad_to_multiple_of": 3},
    {"padding": "longest", "label_pad_token_id": -7},
    {"padding": "max_length", "max_length": 7, "pad_to_multiple_of": 4},
    {"padding": "max_length"},
    {"return_tensors": "np"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "kind", [list, lambda row: np.array(row, dtype=np.int32)], ids=["lists", "arrays"]
)
@pytest.mark.parametrize("name", ["labels", "label"])
# the reference
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays:UserWarning")
def test_batches_equal_reference(words, options, kind, name):
    features = samples(words, kind, name)
    before = copy.deepcopy(features)
    batch = DataCollatorForSeq2Seq(words, **options)(features)
    assert_same(batch, Reference(words, **options)(features))
    assert str(features) == str(before)
    batch = DataCollatorForSeq2Seq(words, **options)(features, return_tensors="np")
    assert_same(batch, Reference(words, **options)(features, return_tensors="np"))


def test_decoder_inputs_come_from_the_model(words, model):
    """And only where the samples have labels."""
    features = samples(words)
    batch = DataCollatorForSeq2Seq(words, model=model)(features)
    assert_same(batch, Reference(words, model=model)(features))
    assert "decoder_input_ids" in batch
    assert "decoder_input_ids" not in DataCollatorForSeq2Seq(words, model=torch.nn.Linear(1, 1))(
        features
    )
    assert "decoder_input_ids" not in DataCollatorForSeq2Seq(words, model=model)([words("a")])


@pytest.mark.parametrize("gap", [{}, {"labels": None}], ids=["no column", "None"])
def test_seq2seq_collator_without_labels(words, model, gap):
    features = [{**words("a b"), **gap}, {**words("b"), **gap}]
    batch = DataCollatorForSeq2Seq(words, model=model)(features)
    assert_same(batch, Reference(words, model=model)(features))
    assert batch["labels"] is None


@pytest.mark.parametrize("padding", [False, "do_not_pad"])
# the reference
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays:UserWarning")
def test_seq2seq_collator_without_padding_needs_equal_labels(words, padding):
    features = [{**words("a b"), "labels": [1, 2]}, {**words("b a"), "labels": [3, 4]}]
    collate = DataCollatorForSeq2Seq(words, padding=padding)
    assert_same(collate(features), Reference(words, padding=padding)(features))
    features[1]["labels"] = [3]
    with pytest.raises(ValueError, match=r"'labels' .*\[2, 1\]"):
        collate(features)


def test_seq2seq_collator_names_what_does_not_fit(words):
    features = samples(words)
    del features[2]["labels"]
    with pytest.raises(ValueError, match="Sample 2 of the batch has no 'labels'"):
        DataCollatorForSeq2Seq(words)(features)


def test_seq2seq_collator_can_be_sent_to_workers(words):
    again = pickle.loads(pickle.dumps(DataCollatorForSeq2Seq(words, pad_to_multiple_of=4)))
    assert again(samples(words))["labels"].shape == (3, 4)
