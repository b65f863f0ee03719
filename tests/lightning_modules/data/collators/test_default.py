"""Batches are the reference's, dtypes included, and what cannot be a batch is explained."""

import logging
import subprocess
import sys
from collections import OrderedDict, UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers import DataCollatorWithPadding as ReferencePadding
from transformers import DefaultDataCollator as ReferenceDefault
from transformers import default_data_collator as reference_collator
from transformers.data.data_collator import DataCollatorMixin
from transformers.trainer_utils import RemoveColumnsCollator as ReferenceRemoveColumns

from lightrainer.lightning_modules.data import collators as ours

FEATURES = {
    "ints": [{"x": [1, 2]}, {"x": [3, 4]}],
    "floats": [{"x": [1.5, 2.0]}, {"x": [3.0, 4.25]}],
    "bools": [{"x": True, "y": [False]}, {"x": False, "y": [True]}],
    "mixed numbers": [{"x": [1, 2.5]}, {"x": [3, 4]}],
    "scalars": [{"x": 1, "y": 0.5}, {"x": 2, "y": 0.25}],
    "nested": [{"x": [[1, 2], [3, 4]]}, {"x": [[5, 6], [7, 8]]}],
    "numpy": [{"x": np.arange(3, dtype=np.int16), "y": np.ones(2, np.float64)} for _ in range(2)],
    "numpy scalars": [{"x": np.float32(0.1)}, {"x": np.float32(0.2)}],
    "bool arrays": [{"x": np.array([True, False])}] * 2,
    "strings and None": [{"x": 1, "text": "a", "gap": None}, {"x": 2, "text": "b", "gap": 3}],
    "label int": [{"x": 1, "label": 0}, {"x": 2, "label": 1}],
    "label bool": [{"label": True}, {"label": False}],
    "label float": [{"label": 0.5}, {"label": 1}],
    "label first int": [{"label": 1}, {"label": 0}],
    "label None": [{"x": 1, "label": None}] * 2,
    "label None with ids": [{"label": None, "label_ids": [1, 2]}] * 2,
    "label list": [{"label": [1, 2]}, {"label": [3, 4]}],
    "label_ids ints": [{"label_ids": [1, 2]}, {"label_ids": [3, 4]}],
    "label_ids floats": [{"label_ids": [1.0, 2.0]}, {"label_ids": [3.0, 4.0]}],
    "label_ids nested": [{"label_ids": [[1], [2]]}] * 2,
    "label and ids": [{"label": 1, "label_ids": [1, 2]}] * 2,
    "labels kept": [{"x": 1, "labels": [1, -100]}, {"x": 1, "labels": [2, 3]}],
    "label and labels": [{"label": 1, "labels": [5]}] * 2,
    "objects": [SimpleNamespace(x=1, label=0), SimpleNamespace(x=2, label=1)],
    "other mappings": [UserDict({"x": [1]}), OrderedDict(x=[2])],
    "encodings": [BatchEncoding({"x": [1], "label": 1})] * 2,
    "one sample": [{"x": [1, 2], "label": 3}],
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


def assert_same(batch, expected):
    assert list(batch) == list(expected)
    for name, value in expected.items():
        assert type(batch[name]) is type(value)
        assert batch[name].dtype == value.dtype
        assert batch[name].shape == value.shape
        assert (batch[name] == value).all()


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


def test_comparison_can_fail():
    """Negative control: another dtype of the same values is seen."""
    with pytest.raises(AssertionError):
        assert_same(ours.default_data_collator([{"x": 1.0}]), reference_collator([{"x": 1}]))


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_numpy_integers_are_class_labels(kind):
    """5.3.0 makes floats of them, which no classification loss takes; 5.23 has whole numbers, and so do we."""
    for features in ([{"label": np.int64(1)}] * 2, [{"label_ids": [np.int32(1), np.int32(2)]}] * 2):
        labels = ours.default_data_collator(features, kind)["labels"]
        assert labels.dtype == (torch.int64 if kind == "pt" else np.int64)
        assert reference_collator(features, kind)["labels"].dtype != labels.dtype


def test_label_arrays_become_whole_number_tensors():
    features = [{"label_ids": np.array([1, 2])}, {"label_ids": np.array([3, 4])}]
    assert_same(ours.default_data_collator(features), {"labels": torch.tensor([[1, 2], [3, 4]])})


@pytest.mark.parametrize("feature", [(1, 2), 3, "text", [1]])
def test_wrong_samples_are_named(feature):
    with pytest.raises(TypeError, match=f"Sample 0 of the batch is a {type(feature).__name__}; expected a mapping"):
        ours.default_data_collator([feature])


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize(
    ("values", "shapes"),
    [
        (([1, 2], [1, 2, 3]), r"\(2,\), \(3,\)"),
        ((torch.ones(2, 2), torch.ones(2, 3)), r"\(2, 2\), \(2, 3\)"),
        ((np.ones(2), np.ones(3)), r"\(2,\), \(3,\)"),
        (([[1], [1, 2]], [[1], [1, 2]]), "ragged"),
    ],
)
def test_sizes_that_differ_are_named(values, shapes, kind):
    with pytest.raises(
        ValueError, match=f"column 'input_ids' .* and shape {shapes}, which gave .*DataCollatorWithPadding"
    ):
        ours.default_data_collator([{"input_ids": value} for value in values], kind)


@pytest.mark.parametrize(
    ("values", "seen"),
    [([{"a": 1}], "dict"), ([1, None], "int, NoneType"), ([[1], None], "list, NoneType"), ([2**70], "int")],
    ids=str,
)
def test_values_that_are_no_numbers_are_named(values, seen):
    with pytest.raises(ValueError, match=f"column 'x' .* of type {seen} and shape .*which gave"):
        ours.default_data_collator([{"x": value} for value in values])


def test_empty_label_ids_are_named():
    with pytest.raises(ValueError, match=r"column 'label_ids' .* of type list and shape .*which gave IndexError"):
        ours.default_data_collator([{"label_ids": []}])


def test_missing_column_is_named():
    with pytest.raises(ValueError, match=r"column 'y' is in sample 0 .* not in sample 1, which has \['x'\]"):
        ours.default_data_collator([{"x": 1, "y": 2}, {"x": 1}])


def test_no_samples_and_unknown_kind():
    with pytest.raises(ValueError, match="no samples"):
        ours.default_data_collator([])
    with pytest.raises(ValueError, match="'tf'"):
        ours.default_data_collator([{"x": 1}], return_tensors="tf")
    with pytest.raises(ValueError, match="'tf'"):
        ours.DefaultDataCollator()([{"x": 1}], return_tensors="tf")


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


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=12)


@pytest.mark.parametrize("label", ["label", "label_ids", "labels"])
@pytest.mark.parametrize(
    "options",
    [{}, {"pad_to_multiple_of": 4}, {"padding": "max_length", "max_length": 7}, {"return_tensors": "np"}],
    ids=str,
)
def test_padding_equals_reference(tokenizer, options, label):
    features = [{**tokenizer(text), label: number} for number, text in enumerate(["a", "a b b", "b a"])]
    expected = ReferencePadding(tokenizer, **options)(features)
    batch = ours.DataCollatorWithPadding(tokenizer, **options)(features)
    assert_same(dict(batch), dict(expected))
    assert batch["labels"].shape == (3,)


def test_padding_gives_no_advice_and_keeps_the_state_of_it(tokenizer, caplog):
    """Fast tokenizers advise against `pad`; a collator has no choice."""
    tokenizer.deprecation_warnings.clear()
    ours.DataCollatorWithPadding(tokenizer)([tokenizer("a")])
    assert "pad" not in caplog.text
    assert tokenizer.deprecation_warnings == {"Asking-to-pad-a-fast-tokenizer": False}


def test_padding_with_any_tokenizer():
    """A plain object with `pad` will do; one without is refused at once."""

    class Plain:
        def pad(self, features, **options):
            return {"label": [feature["label"] for feature in features], "options": options}

    batch = ours.DataCollatorWithPadding(Plain(), max_length=3)([{"label": 1}])
    assert batch.pop("options") == {
        "padding": True,
        "max_length": 3,
        "pad_to_multiple_of": None,
        "return_tensors": "pt",
    }
    assert batch == {"labels": [1]}
    with pytest.raises(TypeError, match="`tokenizer` is a dict, which has no method `pad`"):
        ours.DataCollatorWithPadding({})


def removing(cls, columns=("input_ids", "labels"), **kwargs):
    return cls(list, list(columns), **kwargs)


@pytest.mark.parametrize(
    "features",
    [
        [{"input_ids": 1, "text": "a"}, {"labels": 2, "other": 3}],
        [{"input_ids": 1}],
        [(1, 2), (3, 4)],
        [BatchEncoding({"text": "a"})],
        [{}],
    ],
    ids=str,
)
def test_removed_columns_equal_reference(features):
    assert removing(ours.RemoveColumnsCollator)(features) == removing(ReferenceRemoveColumns)(features)


def test_removed_columns_are_named_once(caplog):
    collator = removing(
        ours.RemoveColumnsCollator, logger=logging.getLogger("x"), model_name="Net", description="training"
    )
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            collator([{"input_ids": 1, "text": "a", "idx": 0}] * 2)
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "training data" in message
    assert "`Net.forward`" in message
    assert message.count("text, idx") == 1


def test_nothing_left_is_an_error():
    collator = removing(ours.RemoveColumnsCollator, model_name="Net", description="training")
    with pytest.raises(ValueError, match="remove_unused_columns=False") as caught:
        collator([{"text": "a", "idx": 0}])
    message = str(caught.value)
    assert "training data" in message
    assert "has: text, idx." in message
    assert "`Net.forward` takes: input_ids, labels." in message


def test_arrays_need_no_torch():
    """Loaded by itself, the module does not import torch, not even to make arrays."""
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('collators', {ours.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec); sys.modules['collators'] = module\n"
        "spec.loader.exec_module(module)\n"
        "assert module.default_data_collator([{'x': 1, 'label': 2}], 'np')['labels'] == [2]\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "values",
    [[1, 1.7], [np.int64(1), np.float64(1.7)], [torch.tensor(1), torch.tensor(1.7)], [True, 1.7], [1, 2, 1.7, 3]],
    ids=str,
)
def test_a_label_with_a_fraction_is_not_cut_off(values):
    """The first one decides what they are, but for that: the reference makes 1 of 1.7."""
    features = [{"label": value} for value in values]
    batch = ours.default_data_collator(features)["labels"]
    assert batch.dtype == torch.float32
    assert batch.tolist() == torch.tensor([float(value) for value in values]).tolist()
    if not isinstance(values[0], torch.Tensor):  # of which the reference and numpy make nothing at all
        arrays = ours.default_data_collator(features, "np")["labels"]
        assert arrays.dtype == np.float32
        assert arrays.tolist() == batch.tolist()


@pytest.mark.parametrize("make", [list, np.array])
@pytest.mark.parametrize("rows", [([1, 2], [3, 4.5]), ([1, 2.5], [3, 4])])
def test_nor_is_one_among_several(rows, make):
    features = [{"label_ids": make(row)} for row in rows]
    for kind in ("pt", "np"):
        assert ours.default_data_collator(features, kind)["labels"].tolist() == [list(row) for row in rows]


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_whole_numbers_stay_integers_as_in_the_reference(kind):
    for features in ([{"label": 1}, {"label": 2.0}], [{"label_ids": [1, 2.0]}, {"label_ids": [3.0, 4]}]):
        batch = ours.default_data_collator(features, kind)
        assert_same(batch, reference_collator(features, kind))
        assert "int64" in str(batch["labels"].dtype)
