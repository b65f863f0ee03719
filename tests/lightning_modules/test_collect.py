"""What an evaluation collects is what the reference joins, but each value is copied once."""

import functools
from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch
from transformers import trainer_pt_utils as reference
from transformers.modeling_outputs import SequenceClassifierOutput

from lightrainer.lightning_modules import collect
from lightrainer.lightning_modules.collect import (
    BatchCollector,
    find_batch_size,
    join_batches,
    map_nested,
    nested_detach,
    nested_numpify,
)

Pair = namedtuple("Pair", "first second")
SIZES = [(3, 5), (3, 2), (1, 7), (2, 7), (4, 1)]
"""Rows and columns of five batches."""


def numbers(*shape, dtype=torch.float32):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) * 100).to(dtype)


STRUCTURES = {
    "1-d": lambda rows, columns: numbers(rows),
    "2-d, equal widths": lambda rows, columns: numbers(rows, 4),
    "2-d": lambda rows, columns: numbers(rows, columns),
    "3-d": lambda rows, columns: numbers(rows, columns, 3),
    "4-d": lambda rows, columns: numbers(rows, columns, 2, 2),
    "scalar": lambda rows, columns: numbers(),
    "tuple": lambda rows, columns: (numbers(rows, columns), numbers(rows)),
    "list": lambda rows, columns: [numbers(rows, columns, 2), numbers(rows, columns)],
    "dict": lambda rows, columns: {"logits": numbers(rows, columns), "pooled": numbers(rows, 3)},
    "ordered dict": lambda rows, columns: OrderedDict(b=numbers(rows), a=numbers(rows, columns)),
    "user dict": lambda rows, columns: UserDict(b=numbers(rows), a=numbers(rows, columns)),
    "deep": lambda rows, columns: ({"a": [numbers(rows, columns), (numbers(rows),)]}, numbers(rows, columns, 2)),
    "model output": lambda rows, columns: SequenceClassifierOutput(logits=numbers(rows, columns)),
}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]


def same(first, second):
    """The same types, keys, dtypes and bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return list(first) == list(second) and all(same(first[key], second[key]) for key in first)


def batches_of(name, count=None):
    return [STRUCTURES[name](*size) for size in SIZES[:count]]


def collected(batches, to_host_after=(), concatenate=True):
    """What our collector and the reference's make of the same batches."""
    ours, theirs = BatchCollector(concatenate), reference.EvalLoopContainer(concatenate, padding_index=-100)
    for index, batch in enumerate(batches):
        ours.add(batch)
        theirs.add(batch)
        if index in to_host_after:
            ours.to_host()
            theirs.to_cpu_and_numpy()
    return ours.result(), theirs.get_arrays()


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_join_equals_reference(name, count):
    arrays = [nested_numpify(batch) for batch in batches_of(name, count)]
    expected = functools.reduce(reference.nested_concat, arrays)
    assert same(join_batches(arrays), expected)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("to_host_after", [(), (0,), (1, 2), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("concatenate", [True, False])
def test_collector_equals_reference(name, to_host_after, concatenate):
    assert same(*collected(batches_of(name), to_host_after, concatenate))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("to_host_after", [(), (1, 3)])
def test_precisions_equal_reference(dtype, to_host_after):
    """bfloat16 becomes float32. Equal widths and different ones, where -100 fills up."""
    assert same(*collected([numbers(rows, 4, dtype=dtype) for rows, _ in SIZES], to_host_after))
    if dtype is torch.uint8 and to_host_after:
        return  #
    assert same(*collected([numbers(*size, dtype=dtype) for size in SIZES], to_host_after))


def test_comparison_can_fail():
    """Negative control: another padding, precision, order or type is seen."""
    arrays = [nested_numpify(batch) for batch in batches_of("2-d")]
    expected = functools.reduce(reference.nested_concat, arrays)
    assert not same(join_batches(arrays, padding=0), expected)
    assert not same(join_batches(arrays).astype(np.float64), expected)
    assert not same(join_batches(arrays[::-1]), expected)
    assert not same((expected,), [expected])


@pytest.mark.parametrize("name", [name for name in STRUCTURES if name != "scalar"])
def test_one_batch_equals_reference(name):
    assert same(*collected(batches_of(name, 1)))


def test_scalars_count_as_one_sample_each():
    """One batch too, which the reference leaves without a dimension."""
    for count in (1, 3):
        assert collected([torch.tensor(2.0)] * count)[0].tolist() == [2.0] * count


@pytest.mark.parametrize("padding", [-100, 0, 7.5])
def test_padding_can_be_chosen(padding):
    arrays = [np.ones((2, 1)), np.ones((1, 3))]
    expected = [[1, padding, padding], [1, padding, padding], [1, 1, 1]]
    assert join_batches(arrays, padding).tolist() == expected


def test_nothing_collected():
    for concatenate in (True, False):
        collector = BatchCollector(concatenate)
        collector.to_host()
        assert collector.result() is None


def test_collector_can_be_used_again():
    collector = BatchCollector()
    for _ in range(2):
        collector.add(torch.arange(3))
        collector.to_host()
        collector.add(torch.arange(2))
        assert collector.result().tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    "batches",
    [
        [(np.ones(2), np.ones(2)), (np.ones(2),)],
        [[np.ones(2)], [np.ones(2), np.ones(2)]],
        [{"a": np.ones(2)}, {"b": np.ones(2)}],
        [np.ones((2, 2)), (np.ones(2), np.ones(2))],
        [(np.ones(2),), np.ones((1, 2))],
        [{"a": np.ones(2)}, (np.ones(2),)],
    ],
    ids=["shorter tuple", "longer list", "other key", "array, tuple", "tuple, array", "dict, tuple"],
)
def test_batches_of_different_structure_are_an_error(batches):
    """As the documents say: a TypeError, whatever the difference; nothing is joined by accident."""
    with pytest.raises(TypeError):
        join_batches(batches)


@pytest.mark.parametrize("leaf", ["text", 3, None])
def test_what_cannot_be_joined_is_named(leaf):
    with pytest.raises(TypeError, match=rf"type {type(leaf).__name__} cannot be joined.*ignore_keys"):
        join_batches([(np.ones(2), leaf)] * 2)


class CountingNumpy:
    """numpy, where what is written by the functions that join arrays is counted."""

    def __init__(self):
        self.written = 0

    def __getattr__(self, name):
        value = getattr(np, name)
        return functools.partial(self._count, value) if name in ("concatenate", "full_like") else value

    def _count(self, function, *args, **kwargs):
        result = function(*args, **kwargs)
        self.written += result.nbytes
        return result


@pytest.mark.parametrize("widths", [(4,), (4, 7)], ids=["equal widths", "different widths"])
@pytest.mark.parametrize("count", [10, 40])
def test_each_value_is_copied_once(monkeypatch, widths, count):
    """What is written is as large as the result, however many batches there are; the reference writes far more."""
    batches = [np.ones((8, widths[index % len(widths)])) for index in range(count)]
    ours, theirs = CountingNumpy(), CountingNumpy()
    monkeypatch.setattr(collect, "np", ours)
    monkeypatch.setattr(reference, "np", theirs)
    joined = join_batches(batches)
    assert ours.written == joined.nbytes
    functools.reduce(reference.nested_concat, batches)
    assert theirs.written > count / 3 * joined.nbytes, "negative control: the counter sees a quadratic cost"


@pytest.mark.parametrize("to_host_after", [(), (0, 2), range(5)])
def test_a_batch_goes_to_the_host_once(monkeypatch, to_host_after):
    moved = []
    monkeypatch.setattr(collect, "nested_numpify", lambda batch: moved.append(batch) or batch.numpy())
    batches = batches_of("2-d")
    collector = BatchCollector()
    for index, batch in enumerate(batches):
        collector.add(batch)
        if index in to_host_after:
            collector.to_host()
    collector.result()
    assert [id(batch) for batch in moved] == [id(batch) for batch in batches]


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3, 2),
        np.ones((4, 1)),
        torch.tensor(1.0),
        [],
        {},
        "text",
        None,
        7,
        [torch.tensor(1.0), torch.ones(5)],
        {"a": "text", "b": {"c": torch.tensor(0.0), "d": (None, np.ones(6))}, "e": torch.ones(2)},
        UserDict(a=torch.ones(2, 3)),
        SequenceClassifierOutput(logits=torch.ones(4, 2)),
    ],
    ids=repr,
)
def test_batch_size_equals_reference(value):
    assert find_batch_size(value) == reference.find_batch_size(value)


def test_nested_values_keep_their_types():
    value = {"a": [1, (2, Pair(3, 4))], "b": OrderedDict(c=5)}
    doubled = map_nested(lambda leaf: 2 * leaf, value)
    assert doubled == {"a": [2, (4, Pair(6, 8))], "b": OrderedDict(c=10)}
    assert type(doubled["a"][1][1]) is Pair
    assert type(doubled["b"]) is OrderedDict


def test_named_tuples_are_joined():
    """Which the reference cannot."""
    joined = join_batches([Pair(np.ones(1), np.ones((1, 2))), Pair(np.ones(2), np.ones((2, 2)))])
    assert type(joined) is Pair
    assert (joined.first.shape, joined.second.shape) == ((3,), (3, 2))


def test_detach_and_numpify_equal_reference():
    value = [torch.ones(2, requires_grad=True) * 2, {"a": torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)}]
    detached = nested_detach([*value, "text"])
    assert not detached[0].requires_grad
    assert not detached[1]["a"].requires_grad
    assert detached[2] == "text"
    assert same(nested_numpify(value), reference.nested_numpify(reference.nested_detach(value)))
