"""Batches are the reference's, dtypes included, and what cannot be a batch is explained."""

import itertools
from collections import OrderedDict, UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BatchEncoding
from transformers import DataCollatorWithPadding as ReferencePadding
from transformers import DefaultDataCollator as ReferenceDefault
from transformers import default_data_collator as reference_collator
from transformers.data.data_collator import DataCollatorMixin

from helpers.tokenization.letter_tokenizer import assert_same, tokenizer
from lightrainer.lightning_modules.data import collators as ours

FEATURES = {
    "ints": [{"x": [1, 2]}, {"x": [3, 4]}],
    "floats": [{"x": [1.5, 2.0]}, {"x": [3.0, 4.25]}],
    "mixed numbers": [{"x": [1, 2.5]}, {"x": [3, 4]}],
    "nested": [{"x": [[1, 2], [3, 4]]}, {"x": [[5, 6], [7, 8]]}],
    "numpy": [{"x": np.arange(3, dtype=np.int16), "y": np.ones(2, np.float64)} for _ in range(2)],
    "bool arrays": [{"x": np.array([True, False])}] * 2,
    "strings and None": [{"x": 1, "text": "a", "gap": None}, {"x": 2, "text": "b", "gap": 3}],
    "label int": [{"x": 1, "label": 0}, {"x": 2, "label": 1}],
    "label float": [{"label": 0.5}, {"label": 1}],
    "label None": [{"x": 1, "label": None}] * 2,
    "label None with ids": [{"label": None, "label_ids": [1, 2]}] * 2,
    "label list": [{"label": [1, 2]}, {"label": [3, 4]}],
    "label_ids ints": [{"label_ids": [1, 2]}, {"label_ids": [3, 4]}],
    "label_ids floats": [{"label_ids": [1.0, 2.0]}, {"label_ids": [3.0, 4.0]}],
    "label and ids": [{"label": 1, "label_ids": [1, 2]}] * 2,
    "labels kept": [{"x": 1, "labels": [1, -100]}, {"x": 1, "labels": [2, 3]}],
    "objects": [SimpleNamespace(x=1, label=0), SimpleNamespace(x=2, label=1)],
    "other mappings": [UserDict({"x": [1]}), OrderedDict(x=[2])],
    "encodings": [BatchEncoding({"x": [1], "label": 1})] * 2,
    "no columns": [{}, {}],
    "extra column later": [{"x": 1}, {"x": 2, "y": 3}],
}
TENSORS = {
    "tensors": [{"x": torch.arange(3), "y": torch.ones(2, 2, dtype=torch.bfloat16)}] * 2,
    "label tensor": [{"label": torch.tensor(1)}, {"label": torch.tensor(0)}],
    "label float tensor": [{"label": torch.tensor(1.5)}, {"label": torch.tensor(0.5)}],
    "label_ids tensor": [{"label_ids": torch.tensor([1, 2], dtype=torch.int32)}] * 2,
    "scalar tensors": [{"x": torch.tensor(1.0, dtype=torch.float64)}] * 2,
}
ARRAYS = {
    "label array": [{"label": np.array(1)}, {"label": np.array(0)}],
    "label_ids array": [{"label_ids": np.array([1, 2], dtype=np.int32)}] * 2,
}


@pytest.mark.parametrize("features", (FEATURES | TENSORS).values(), ids=FEATURES | TENSORS)
def test_tensors_equal_reference(features):
    assert_same(ours.default_data_collator(features), reference_collator(features))
    assert_same(ours.DefaultDataCollator()(features), ReferenceDefault()(features))


@pytest.mark.parametrize("features", (FEATURES | ARRAYS).values(), ids=FEATURES | ARRAYS)
def test_arrays_equal_reference(features):
    expected = reference_collator(features, return_tensors="np")
    assert_same(ours.default_data_collator(features, return_tensors="np"), expected)
    assert_same(ours.DefaultDataCollator(return_tensors="np")(features), expected)
    assert_same(ours.DefaultDataCollator()(features, return_tensors="np"), expected)


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_numpy_integers_are_class_labels(kind):
    """5.3.0 makes floats of them, which no classification loss takes; 5.23 has whole numbers,
    and so do we.
    """
    for features in (
        [{"label": np.int64(1)}] * 2,
        [{"label_ids": [np.int32(1), np.int32(2)]}] * 2,
    ):
        labels = ours.default_data_collator(features, kind)["labels"]
        assert labels.dtype == (torch.int64 if kind == "pt" else np.int64)
        assert reference_collator(features, kind)["labels"].dtype != labels.dtype


def test_label_arrays_become_whole_number_tensors():
    features = [{"label_ids": np.array([1, 2])}, {"label_ids": np.array([3, 4])}]
    assert_same(ours.default_data_collator(features), {"labels": torch.tensor([[1, 2], [3, 4]])})


UNEQUAL = {
    "lists": ([1, 2], [1, 2, 3], r"\(2,\), \(3,\)"),
    "tensors": (torch.ones(2, 2), torch.ones(2, 3), r"\(2, 2\), \(2, 3\)"),
    "arrays": (np.ones(2), np.ones(3), r"\(2,\), \(3,\)"),
    "ragged": ([[1], [1, 2]], [[1], [1, 2]], "ragged"),
}


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize(("one", "other", "shapes"), UNEQUAL.values(), ids=UNEQUAL)
def test_sizes_that_differ_are_named(one, other, shapes, kind):
    with pytest.raises(ValueError, match=f"'input_ids' .*{shapes}.*DataCollatorWithPadding"):
        ours.default_data_collator([{"input_ids": one}, {"input_ids": other}], kind)


class Shaped:
    """Has a method of the name that arrays have as an attribute."""

    def shape(self):
        return (2,)


WRONG = [
    *(
        ([feature], TypeError, f"Sample 0 .* {type(feature).__name__}")
        for feature in ((1, 2), 3, "text", [1])
    ),
    ([{"x": {"a": 1}}], ValueError, "'x' .* type dict"),
    ([{"x": [1]}, {"x": None}], ValueError, "'x' .* type list, NoneType"),
    ([{"x": Shaped()}], ValueError, "'x' .* type Shaped and shape ragged"),
    ([{"label_ids": []}], ValueError, "'label_ids' .* type list"),
    (
        [{"x": 1, "y": 2}, {"x": 1}],
        ValueError,
        r"'y' is in sample 0 .* sample 1, which has \['x'\]",
    ),
]


@pytest.mark.parametrize(("samples", "error", "message"), WRONG)
def test_default_collator_names_what_cannot_be_a_batch(samples, error, message):
    with pytest.raises(error, match=message):
        ours.default_data_collator(samples)
    for collate in (ours.default_data_collator, ours.DefaultDataCollator()):
        with pytest.raises(ValueError, match="'tf'"):
            collate([{"x": 1}], return_tensors="tf")


def test_mixin_sends_calls_as_the_reference():
    def make(base):
        class Collator(base):
            return_tensors = "np"

            def torch_call(self, features):
                return ("torch", features)

            def numpy_call(self, features):
                return ("numpy", features)

        return Collator()

    for arguments in ([1],), ([1], "pt"), ([1], "np"):
        assert make(ours.DataCollatorMixin)(*arguments) == make(DataCollatorMixin)(*arguments)
    with pytest.raises(NotImplementedError, match="has no `torch_call`"):
        ours.DataCollatorMixin()([1])


@pytest.mark.parametrize("label", ["label", "label_ids", "labels"])
def test_padding_equals_reference(label, caplog):
    """Without the advice of fast tokenizers against `pad`, as a collator has no choice."""
    words = tokenizer()
    features = [{**words(text), label: number} for number, text in enumerate(["a", "a b b", "b a"])]
    for options in (
        {},
        {"pad_to_multiple_of": 4},
        {"max_length": 7, "padding": "max_length"},
        {"return_tensors": "np"},
    ):
        expected = ReferencePadding(words, **options)(features)
        caplog.clear()
        words.deprecation_warnings.clear()
        batch = ours.DataCollatorWithPadding(words, **options)(features)
        assert_same(dict(batch), dict(expected))
        assert batch["labels"].shape == (3,)
        assert "pad" not in caplog.text
        assert words.deprecation_warnings == {"Asking-to-pad-a-fast-tokenizer": False}


def test_padding_with_any_tokenizer():
    """A plain object with `pad` will do."""

    class Plain:
        def pad(self, features, **options):
            return {"label": [feature["label"] for feature in features], "options": options}

    batch = ours.DataCollatorWithPadding(Plain(), max_length=3)([{"label": 1}])
    options = {
        "padding": True,
        "max_length": 3,
        "pad_to_multiple_of": None,
        "return_tensors": "pt",
    }
    assert batch == {"labels": [1], "options": options}


@pytest.mark.parametrize(
    "values",
    [
        [1, 1.7],
        [np.int64(1), np.float64(1.7)],
        [torch.tensor(1), torch.tensor(1.7)],
        [True, 1.7],
        [1, 2, 1.7, 3],
    ],
    ids=str,
)
def test_default_collator_keeps_label_fractions(values):
    """The first label decides the dtype, except for fractions: the reference turns 1.7 into 1."""
    features = [{"label": value} for value in values]
    batch = ours.default_data_collator(features)["labels"]
    assert batch.dtype == torch.float32
    assert batch.tolist() == torch.tensor([float(value) for value in values]).tolist()
    # of which the reference and numpy make nothing at all
    if not isinstance(values[0], torch.Tensor):
        arrays = ours.default_data_collator(features, "np")["labels"]
        assert arrays.dtype == np.float32
        assert arrays.tolist() == batch.tolist()


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_nor_is_one_among_several(kind):
    """Whole numbers stay integers, as in the reference."""
    for rows, make in itertools.product((([1, 2], [3, 4.5]), ([1, 2.5], [3, 4])), (list, np.array)):
        labels = ours.default_data_collator([{"label_ids": make(row)} for row in rows], kind)[
            "labels"
        ]
        assert labels.tolist() == list(map(list, rows))
    for features in (
        [{"label": 1}, {"label": 2.0}],
        [{"label_ids": [1, 2.0]}, {"label_ids": [3.0, 4]}],
    ):
        batch = ours.default_data_collator(features, kind)
        assert_same(batch, reference_collator(features, kind))
        assert "int64" in str(batch["labels"].dtype)
