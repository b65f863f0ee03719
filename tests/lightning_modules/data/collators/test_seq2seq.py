"""Batches of pairs of sequences are the reference's, and labels that do not fit are named."""

import copy
import pickle

import numpy as np
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast
from transformers import DataCollatorForSeq2Seq as Reference

from lightrainer import DataCollatorForSeq2Seq


@pytest.fixture(params=["right", "left"])
def tokenizer(request):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 12, "padding_side": request.param}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


@pytest.fixture(scope="module")
def model():
    sizes = {"d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 4, "decoder_ffn_dim": 4}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "max_position_embeddings": 16}
    tokens = {"vocab_size": 9, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    return BartForConditionalGeneration(BartConfig(**sizes, **heads, **tokens))


def samples(tokenizer, kind=list, name="labels"):
    labels = [[5, 6], [7, 8, 4, 5], [6]]
    return [{**tokenizer(text), name: kind(row)} for text, row in zip(["a", "a b b", "b a"], labels, strict=True)]


def assert_same(batch, expected):
    assert list(batch) == list(expected)
    assert type(batch) is type(expected)
    for name, value in expected.items():
        assert type(batch[name]) is type(value)
        if value is not None:
            assert batch[name].dtype == value.dtype
            assert batch[name].shape == value.shape
            assert (batch[name] == value).all()


def arrays(row):
    return np.array(row, dtype=np.int32)


OPTIONS = [
    {},
    {"pad_to_multiple_of": 3},
    {"padding": "longest", "label_pad_token_id": -7},
    {"padding": "max_length", "max_length": 7},
    {"padding": "max_length", "max_length": 7, "pad_to_multiple_of": 4},
    {"padding": "max_length"},
    {"return_tensors": "np"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [list, arrays])
@pytest.mark.parametrize("name", ["labels", "label"])
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays:UserWarning")  # the reference
def test_batches_equal_reference(tokenizer, options, kind, name):
    features = samples(tokenizer, kind, name)
    before = copy.deepcopy(features)
    batch = DataCollatorForSeq2Seq(tokenizer, **options)(features)
    assert_same(batch, Reference(tokenizer, **options)(features))
    assert str(features) == str(before)
    assert_same(
        DataCollatorForSeq2Seq(tokenizer, **options)(features, return_tensors="np"),
        Reference(tokenizer, **options)(features, return_tensors="np"),
    )


def test_decoder_inputs_come_from_the_model(tokenizer, model):
    """And only where the samples have labels."""
    features = samples(tokenizer)
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)(features)
    assert_same(batch, Reference(tokenizer, model=model)(features))
    assert "decoder_input_ids" in batch
    assert "decoder_input_ids" not in DataCollatorForSeq2Seq(tokenizer, model=torch.nn.Linear(1, 1))(features)
    assert "decoder_input_ids" not in DataCollatorForSeq2Seq(tokenizer, model=model)([tokenizer("a")])


@pytest.mark.parametrize("gap", [{}, {"labels": None}], ids=["no column", "None"])
def test_without_labels_there_are_none(tokenizer, model, gap):
    features = [{**tokenizer("a b"), **gap}, {**tokenizer("b"), **gap}]
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)(features)
    assert_same(batch, Reference(tokenizer, model=model)(features))
    assert batch["labels"] is None


@pytest.mark.parametrize("padding", [False, "do_not_pad"])
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays:UserWarning")  # the reference
def test_without_padding_labels_must_be_equally_long(tokenizer, padding):
    features = [{**tokenizer("a b"), "labels": [1, 2]}, {**tokenizer("b a"), "labels": [3, 4]}]
    assert_same(
        DataCollatorForSeq2Seq(tokenizer, padding=padding)(features), Reference(tokenizer, padding=padding)(features)
    )
    features[1]["labels"] = [3]
    with pytest.raises(ValueError, match=r"'labels' of the batch have the lengths \[2, 1\]"):
        DataCollatorForSeq2Seq(tokenizer, padding=padding)(features)


def test_the_comparison_sees_a_wrong_side(tokenizer):
    """Negative control."""
    other = copy.deepcopy(tokenizer)
    other.padding_side = {"left": "right", "right": "left"}[tokenizer.padding_side]
    features = samples(tokenizer)
    with pytest.raises(AssertionError):
        assert_same(DataCollatorForSeq2Seq(tokenizer)(features), Reference(other)(features))


def test_what_does_not_fit_is_named(tokenizer):
    features = samples(tokenizer)
    with pytest.raises(ValueError, match="Sample 1 of the batch has 4 labels, but"):
        DataCollatorForSeq2Seq(tokenizer, padding="max_length", max_length=3)(features)
    del features[2]["labels"]
    with pytest.raises(ValueError, match="Sample 2 of the batch has no 'labels'"):
        DataCollatorForSeq2Seq(tokenizer)(features)
    with pytest.raises(ValueError, match="'tf'"):
        DataCollatorForSeq2Seq(tokenizer)(features, return_tensors="tf")
    with pytest.raises(TypeError, match="`tokenizer` is a dict, which has no method `pad`"):
        DataCollatorForSeq2Seq({})


def test_it_can_be_sent_to_workers(tokenizer):
    again = pickle.loads(pickle.dumps(DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=4)))
    assert again(samples(tokenizer))["labels"].shape == (3, 4)
