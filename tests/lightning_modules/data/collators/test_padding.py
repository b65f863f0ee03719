"""Collators that pad, and the one that flattens: their batches are the reference's, with any
options.
"""

import copy
import dataclasses
import random

import numpy as np
import pytest
import torch
from transformers.data import data_collator as reference

from helpers.tokenization.letter_tokenizer import CASES, assert_same, tokenizer, twin
from lightrainer.lightning_modules.data import collators as ours


def as_kind(draw, row):
    return draw.choice([list, torch.tensor, np.array])(row)


def padding_options(draw):
    return draw.choice(
        [
            {},
            {"padding": "longest"},
            {"padding": "max_length", "max_length": 16},
            {"pad_to_multiple_of": 5},
        ]
    )


@pytest.mark.parametrize("name", ["label", "labels", None])
def test_labels_of_tokens_equal_the_reference(name):
    draw = random.Random(str(name))
    for _ in range(CASES):
        words, options = tokenizer(draw.choice(["right", "left"])), padding_options(draw)
        features = []
        for _ in range(draw.randint(1, 4)):
            ids = draw.choices(range(33), k=draw.randint(1, 12))
            sample = {"input_ids": ids, "token_type_ids": [1] * len(ids)}
            if name:
                sample[name] = as_kind(draw, draw.choices(range(-100, 5), k=len(ids)))
            features.append(sample)
        batches = [
            module.DataCollatorForTokenClassification(instance, label_pad_token_id=-7, **options)(
                copy.deepcopy(features)
            )
            for module, instance in ((ours, twin(words)), (reference, words))
        ]
        assert_same(dict(batches[0]), dict(batches[1]))
        if name != "label":  # of which 5.3.0 cannot make an array
            lists = [
                {**sample, **({name: list(sample[name])} if name else {})} for sample in features
            ]
            arrays = [
                module.DataCollatorForTokenClassification(words, return_tensors="np", **options)(
                    copy.deepcopy(lists)
                )
                for module in (ours, reference)
            ]
            assert_same(dict(arrays[0]), {key: arrays[1][key] for key in arrays[0]})
            assert set(arrays[0]) == set(arrays[1])


def test_labels_called_label_as_arrays():
    """As in 5.23; 5.3.0 fails."""
    features = [{"input_ids": [1, 2], "label": [3, 4]}, {"input_ids": [1], "label": [5]}]
    batch = ours.DataCollatorForTokenClassification(tokenizer(), return_tensors="np")(features)
    assert batch["label"].tolist() == [[3, 4], [5, -100]]
    with pytest.raises(ValueError, match=r"inhomogeneous|Unable"):
        reference.DataCollatorForTokenClassification(tokenizer(), return_tensors="np")(features)


@pytest.mark.parametrize("name", ["label", "labels"])
def test_choices_equal_the_reference(name):
    draw = random.Random(name)
    for _ in range(CASES):
        words, options, choices = (
            tokenizer(draw.choice(["right", "left"])),
            padding_options(draw),
            draw.randint(1, 4),
        )
        features = []
        for _ in range(draw.randint(1, 3)):
            rows = [draw.choices(range(33), k=draw.randint(1, 12)) for _ in range(choices)]
            masks = [[1] * len(row) for row in rows]
            features.append(
                {"input_ids": rows, "attention_mask": masks, name: draw.randrange(choices)}
            )
        original = copy.deepcopy(features)
        batch = ours.DataCollatorForMultipleChoice(twin(words), **options)(features)
        assert features == original, "the samples were changed"
        assert_same(batch, reference.DataCollatorForMultipleChoice(words, **options)(features))
        arrays = ours.DataCollatorForMultipleChoice(words, return_tensors="np", **options)(original)
        assert_same(arrays, {key: value.numpy() for key, value in batch.items()})


def test_choices_without_labels_and_of_different_numbers():
    collator = ours.DataCollatorForMultipleChoice(tokenizer())
    assert collator([{"input_ids": [[1], [2, 3]]}])["input_ids"].shape == (1, 2, 2)
    with pytest.raises(ValueError, match=r"different numbers of choices: \[2, 1"):
        collator([{"input_ids": [[1], [2]]}, {"input_ids": [[1]]}])


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_flattened_batches_equal_the_reference(kind):
    draw = random.Random(kind)
    for _ in range(CASES):
        features, labels = [], draw.random() < 0.5
        for _ in range(draw.randint(1, 5)):
            ids = draw.choices(range(33), k=draw.randint(1, 12))
            sample = {"input_ids": as_kind(draw, ids), "attention_mask": [1] * len(ids)}
            features.append({**sample, "labels": as_kind(draw, ids[::-1])} if labels else sample)
        flags = ("return_position_ids", "return_flash_attn_kwargs", "return_seq_idx")
        options = {flag: draw.random() < 0.5 for flag in flags} | {
            "separator_id": draw.choice([-100, 3])
        }
        call = {"separator_id": draw.choice([None, 9])}
        mine, theirs = (
            module.DataCollatorWithFlattening(return_tensors=kind, **options)(features, **call)
            for module in (ours, reference)
        )
        assert_same(mine, theirs)


def test_flattening_beyond_5_3():
    """5.23 lets places begin elsewhere; empty samples are left out, and are an error alone, as
    in 5.24.
    """
    collator = ours.DataCollatorWithFlattening(position_ids_start=2, return_seq_idx=True)
    batch = collator([{"input_ids": [5, 6]}, {"input_ids": []}, {"input_ids": [7]}])
    assert batch["position_ids"].tolist() == [[2, 3, 2]]
    assert batch["labels"].tolist() == [[-100, 6, -100]]
    assert batch["seq_idx"].tolist() == [[0, 0, 1]]
    with pytest.raises(ValueError, match="All samples of the batch are empty"):
        collator([{"input_ids": []}])
    with pytest.raises(ValueError, match="'tf'"):
        collator([{"input_ids": [1]}], return_tensors="tf")


@pytest.mark.parametrize(
    "name", [name for name in ours.__all__ if name.startswith("DataCollator") and "For" in name]
)
def test_padding_arguments_equal_the_reference(name):
    described = [
        {f.name: f.default for f in dataclasses.fields(getattr(module, name))}
        for module in (ours, reference)
    ]
    assert described[0] == described[1]


@pytest.mark.parametrize("name", ["DataCollatorWithPadding", "DataCollatorForSeq2Seq"])
def test_our_tokenizer_pads_as_that_of_the_reference(name):
    draw = random.Random(name)
    for _ in range(CASES):
        words, options = tokenizer(draw.choice(["right", "left"])), padding_options(draw)
        features = [
            {"input_ids": draw.choices(range(33), k=draw.randint(1, 12)), "labels": 1}
            for _ in range(3)
        ]
        if name == "DataCollatorForSeq2Seq":
            features = [{**each, "labels": each["input_ids"][:6]} for each in features]
        kind = draw.choice(["pt", "np"])
        mine = getattr(ours, name)(twin(words), return_tensors=kind, **options)(
            copy.deepcopy(features)
        )
        assert_same(
            dict(mine),
            dict(getattr(reference, name)(words, return_tensors=kind, **options)(features)),
        )


FRACTIONS = {
    "tokens": (ours.DataCollatorForTokenClassification, {"input_ids": [1, 2], "labels": [1, 1.7]}),
    "choices": (ours.DataCollatorForMultipleChoice, {"input_ids": [[1, 2], [3]], "label": 1.7}),
    "sequences": (
        ours.DataCollatorForSeq2Seq,
        {"input_ids": [1, 2], "labels": torch.tensor([1.0, 1.7])},
    ),
    "flattened": (
        lambda _, **kind: ours.DataCollatorWithFlattening(**kind),
        {"input_ids": [1], "labels": [1, 1.7]},
    ),
}


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("name", FRACTIONS)
def test_padding_refuses_an_index_with_a_fraction(name, kind):
    """Labels of tokens, choices and sequences are indices: 1.7 would become 1."""
    collator, sample = FRACTIONS[name]
    with pytest.raises(ValueError, match=r"whole numbers"):
        collator(tokenizer(), return_tensors=kind)([sample])
