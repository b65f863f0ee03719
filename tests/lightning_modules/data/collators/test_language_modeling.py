"""Batches of the collators for language models are the reference's bit for bit, drawn from the
same generators.
"""

import copy
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers.data import data_collator as reference

import lightrainer
from helpers.tokenization.letter_tokenizer import CASES, assert_same, tokenizer, twin
from lightrainer.lightning_modules.data import collators as ours


def text(draw):
    return " ".join(
        "".join(draw.choices("abxy", k=draw.randint(1, 3))) for _ in range(draw.randint(1, 9))
    )


def samples_of(draw, words, kind):
    """Samples as lists, tensors, arrays, or mappings with more or fewer columns."""
    texts = [text(draw) for _ in range(draw.randint(1, 4))]
    encoded = [words("[CLS] " + each + " [SEP]") for each in texts]
    special = lambda each: words.get_special_tokens_mask(each["input_ids"], None, True)
    forms = {
        "mappings": dict,
        "encodings": lambda each: each,
        "special": lambda each: {**each, "special_tokens_mask": special(each)},
        "lists": lambda each: each["input_ids"],
        "tensors": lambda each: torch.tensor(each["input_ids"]),
        "arrays": lambda each: np.array(each["input_ids"]),
    }
    return [forms[kind](each) for each in encoded]


def both(name, features, draws, *args, calls=1, **options):
    """The batches of both collators, each from its own copy of the samples and the same state of
    all generators.
    """
    batches = []
    for module in (ours, reference):
        words, samples = args[0], copy.deepcopy(features)
        if module is ours and draws % 2:
            words = twin(words)
        collator = getattr(module, name)(words, *args[1:], **options)
        lightrainer.set_seed(draws)
        outputs = [collator(copy.deepcopy(samples)) for _ in range(calls)]
        batches.append((outputs, [random.random(), np.random.rand(), torch.rand(1).item()]))
    return batches


def assert_both_same(*args, **kwargs):
    (mine, after), (theirs, after_theirs) = both(*args, **kwargs)
    for batch, expected in zip(mine, theirs, strict=True):
        assert_same(batch, expected)
    assert after == after_theirs, "another number of draws"
    return mine


def masking_options(draw):
    mask_share = draw.choice([0.0, 0.2, 0.8, 1.0])
    return {
        "mlm": draw.random() < 0.85,
        "mlm_probability": draw.choice([0, 0.15, 0.5, 1]),
        "mask_replace_prob": mask_share,
        "random_replace_prob": draw.choice([0, (1 - mask_share) / 2, 1 - mask_share]),
        "pad_to_multiple_of": draw.choice([None, 4, 7]),
        "return_tensors": draw.choice(["pt", "np"]),
        "seed": draw.choice([None, None, 1, 42]),
    }


@pytest.mark.parametrize("kind", ["lists", "arrays", "tensors", "mappings", "encodings", "special"])
def test_masked_batches_equal_the_reference_with_any_options(kind):
    draw, masked = random.Random(kind), 0
    for case in range(CASES):
        words, options = tokenizer(draw.choice(["right", "left"])), masking_options(draw)
        if kind == "tensors":
            options["return_tensors"] = "pt"
        features = samples_of(draw, words, kind)
        batches = assert_both_same(
            "DataCollatorForLanguageModeling", features, case, words, calls=2, **options
        )
        masked += sum(int((batch["input_ids"] == words.mask_token_id).sum()) for batch in batches)
    assert masked > CASES


@pytest.mark.filterwarnings("ignore:`whole_word_mask` sets:UserWarning")
@pytest.mark.filterwarnings("ignore:Random token replacement is not supported:UserWarning")
@pytest.mark.parametrize("kind", ["pt", "np"])
def test_whole_words_equal_the_reference(kind):
    draw, words = random.Random(kind), tokenizer()
    for case in range(CASES):
        texts = [text(draw) for _ in range(draw.randint(1, 4))]
        special = draw.random() < 0.5
        encoded = words(
            texts, padding=True, return_offsets_mapping=True, return_special_tokens_mask=special
        )
        features = [
            {name: column[index] for name, column in encoded.items()} for index in range(len(texts))
        ]
        options = {"mlm_probability": draw.choice([0.15, 0.5]), "seed": draw.choice([None, 3])}
        options |= {"whole_word_mask": True, "return_tensors": kind}
        assert_both_same("DataCollatorForLanguageModeling", features, case, words, **options)


@pytest.mark.filterwarnings("ignore:`whole_word_mask` sets:UserWarning")
@pytest.mark.parametrize("side", ["right", "left"])
def test_whole_words_of_samples_of_different_lengths(side):
    """The reference cannot stack their spans; padded by hand it gives the same batch."""
    words = tokenizer(side)
    texts = ["axy b", "a bx cyyx d"]
    features = [dict(words(each, return_offsets_mapping=True)) for each in texts]
    encoded = words(texts, padding=True, return_offsets_mapping=True)
    padded = [{name: column[index] for name, column in encoded.items()} for index in range(2)]
    batches = [
        ours.DataCollatorForLanguageModeling(
            words, whole_word_mask=True, seed=5, mlm_probability=0.5
        )(each)
        for each in (features, padded)
    ]
    assert_same(dict(batches[0]), dict(batches[1]))


@pytest.mark.filterwarnings("ignore:.*DataCollatorForWholeWordMask is deprecated:FutureWarning")
def test_whole_word_collator_of_older_name(tmp_path):
    words = tokenizer()
    encoded = words(["axy bx c dy", "ayyx b c"], padding=True, return_offsets_mapping=True)
    features = [{name: column[index] for name, column in encoded.items()} for index in range(2)]
    for options in (
        {},
        {"mlm": False, "mlm_probability": 0.5},
        {"return_tensors": "np", "seed": 7},
    ):
        assert_both_same("DataCollatorForWholeWordMask", features, 1, words, **options)
    with pytest.warns(FutureWarning, match=r"whole_word_mask=True"):
        lightrainer.DataCollatorForWholeWordMask(words)


SEQUENCES = [{"input_ids": list(range(5, 21 + index % 3))} for index in range(12)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 11])
def test_batches_of_workers_equal_the_reference(workers, seed):
    """Each worker has its own generator: seeded by the seed and its number, or by the loader's
    draw.
    """
    batches = []
    for module in (ours, reference):
        torch.manual_seed(0)
        collator = module.DataCollatorForLanguageModeling(tokenizer(), seed=seed)
        loader = DataLoader(SEQUENCES, batch_size=2, num_workers=workers, collate_fn=collator)
        batches.append([dict(batch) for _ in range(2) for batch in loader])
    for batch, expected in zip(*batches, strict=True):
        assert_same(batch, expected)


def test_workers_draw_different_numbers_after_the_collator_was_used():
    """In versions before 5.24 they inherit its generator, and draw the same."""
    collator = ours.DataCollatorForLanguageModeling(tokenizer(), seed=3)
    sample = {"input_ids": list(range(5, 31))}
    collator([sample])
    first, second = DataLoader([sample] * 2, batch_size=1, num_workers=2, collate_fn=collator)
    assert (first["labels"] != second["labels"]).any()


def test_kind_of_a_call_decides_the_generator():
    """As in 5.24, also after a call of the other kind."""
    sample = {"input_ids": list(range(5, 31))}
    collator = ours.DataCollatorForLanguageModeling(tokenizer(), seed=3)
    expected = ours.DataCollatorForLanguageModeling(tokenizer(), seed=3, return_tensors="np")(
        [sample]
    )
    collator([sample])
    actual = collator([sample], return_tensors="np")
    assert (actual["labels"] == expected["labels"]).all()


def test_zero_is_a_seed():
    """In 5.3.0 it is none; later versions (5.23) have it so."""
    collators = [ours.DataCollatorForLanguageModeling(tokenizer(), seed=0) for _ in range(2)]
    first, second = (
        collator([{"input_ids": list(range(5, 25))}])["labels"] for collator in collators
    )
    assert (first == second).all()


@pytest.mark.parametrize(
    "options",
    [
        *({"mlm_probability": value} for value in (1.5, None)),
        {"mask_replace_prob": -0.1},
        {"random_replace_prob": 2},
        {"mask_replace_prob": 0.8, "random_replace_prob": 0.3},
        {"mlm": False, "whole_word_mask": True},
    ],
    ids=str,
)
def test_options_that_cannot_be(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ours.DataCollatorForLanguageModeling(tokenizer(), **options)
    with pytest.raises(ValueError):  # noqa: PT011 - in other words
        reference.DataCollatorForLanguageModeling(tokenizer(), **options)


def test_masking_names_what_a_tokenizer_lacks():
    with pytest.raises(ValueError, match="needs a mask token"):
        ours.DataCollatorForLanguageModeling(tokenizer(mask_token=None))
    with pytest.raises(ValueError, match="no pad token"):
        ours.DataCollatorForLanguageModeling(tokenizer(pad_token=None), mlm=False)([[5], [6, 7]])
    whole = ours.DataCollatorForLanguageModeling(
        tokenizer(), True, True, mask_replace_prob=1, random_replace_prob=0
    )
    with pytest.raises(ValueError, match="'offset_mapping'"):
        whole([{"input_ids": [5, 6]}])


# --- permutation


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("form", ["lists", "mappings"])
def test_permuted_batches_equal_the_reference(kind, form):
    draw, hidden = random.Random(form), 0
    for case in range(CASES):
        words = tokenizer(draw.choice(["right", "left"]))
        length = 2 * draw.randint(1, 12)
        rows = [
            draw.choices(range(2, 33), k=length - draw.randint(0, 1) * (index > 0))
            for index in range(3)
        ]
        features = rows if form == "lists" else [{"input_ids": row, "other": 1} for row in rows]
        options = {
            "plm_probability": draw.choice([1 / 6, 0.4]),
            "max_span_length": draw.choice([2, 5]),
        }
        options["return_tensors"] = kind
        (batch,) = assert_both_same(
            "DataCollatorForPermutationLanguageModeling", features, case, words, **options
        )
        hidden += int((batch["labels"] != -100).sum())
    assert hidden > CASES


def test_permutation_that_cannot_be_is_refused():
    collator = ours.DataCollatorForPermutationLanguageModeling
    with pytest.raises(ValueError, match="have 3 tokens"):
        collator(tokenizer())([[5, 6, 7]])


# --- sentence order


@pytest.mark.filterwarnings("ignore:.*DataCollatorForSOP is deprecated:FutureWarning")
def test_sentence_order_batches_equal_the_reference():
    """The collator of 5.3.0 forgets its tokenizer, which is set here by hand."""
    words = tokenizer()
    theirs, mine = reference.DataCollatorForSOP(words), ours.DataCollatorForSOP(words)
    theirs.tokenizer = words
    for case in range(20):
        draw = random.Random(case)
        rows = [torch.tensor(draw.choices(range(2, 33), k=draw.randint(2, 14))) for _ in range(3)]
        label = {"sentence_order_label": torch.tensor(case % 2)}
        features = [
            {"input_ids": row, "token_type_ids": torch.zeros_like(row), **label} for row in rows
        ]
        torch.manual_seed(case)
        expected = theirs(copy.deepcopy(features))
        torch.manual_seed(case)
        assert_same(mine(features), expected)
