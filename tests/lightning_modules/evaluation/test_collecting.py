"""Collected values equal those that the reference joins, and each is copied once."""

from collections import OrderedDict, UserDict, namedtuple
from itertools import product

import numpy as np
import pytest
import torch
from transformers import trainer_pt_utils as reference
from transformers.modeling_outputs import SequenceClassifierOutput

from helpers.comparing.bit_differences import same_bits
from lightrainer.lightning_modules.common.nested import (
    count_rows,
    find_batch_size,
    map_nested,
    nested_detach,
    nested_numpify,
)
from lightrainer.lightning_modules.evaluation import collecting as collect
from lightrainer.lightning_modules.evaluation.collecting import BatchCollector, LossCollector

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
    "truth": lambda rows, columns: numbers(rows, columns) > 50,
    "scalar": lambda rows, columns: numbers(),
    "tuple": lambda rows, columns: (numbers(rows, columns), numbers(rows)),
    "list": lambda rows, columns: [numbers(rows, columns, 2), numbers(rows, columns)],
    "dict": lambda rows, columns: {"logits": numbers(rows, columns), "pooled": numbers(rows, 3)},
    "ordered dict": lambda rows, columns: OrderedDict(b=numbers(rows), a=numbers(rows, columns)),
    "user dict": lambda rows, columns: UserDict(b=numbers(rows), a=numbers(rows, columns)),
    "deep": lambda rows, columns: (
        {"a": [numbers(rows, columns), (numbers(rows),)]},
        numbers(rows, columns, 2),
    ),
    "model output": lambda rows, columns: SequenceClassifierOutput(logits=numbers(rows, columns)),
}
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.bool,
]


def batches_of(name, count=None):
    return [STRUCTURES[name](*size) for size in SIZES[:count]]


def collected(batches, to_host_after=(), concatenate=True, rows=None):
    """Return the results of both collectors for the same batches."""
    ours, theirs = (
        BatchCollector(concatenate, rows),
        reference.EvalLoopContainer(concatenate, padding_index=-100),
    )
    for index, batch in enumerate(batches):
        ours.add(batch)
        theirs.add(batch)
        if index in to_host_after:
            ours.to_host()
            theirs.to_cpu_and_numpy()
    return ours.result(), theirs.get_arrays()


@pytest.mark.parametrize("name", STRUCTURES)
def test_collector_equals_reference(name):
    """Whatever number of rows is expected."""
    cases = product([(), (0,), (1, 2), (0, 1, 2, 3, 4)], [True, False], [None, 1, 13, 40])
    assert [case for case in cases if not same_bits(*collected(batches_of(name), *case))] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("to_host_after", [(), (1, 3)])
def test_precisions_equal_reference(dtype, to_host_after):
    """bfloat16 becomes float32. Equal widths and different ones, where -100 fills up."""
    assert same_bits(
        *collected([numbers(rows, 4, dtype=dtype) for rows, _ in SIZES], to_host_after)
    )
    assert same_bits(*collected([numbers(*size, dtype=dtype) for size in SIZES], to_host_after))


@pytest.fixture
def moved(monkeypatch):
    """The batches that were copied to the host."""
    copied = []
    for name in ("nested_numpify", "to_numpy"):
        monkeypatch.setattr(collect, name, lambda batch: copied.append(batch) or batch.numpy())
    return copied


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


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ({"x": torch.ones(3, 2), "texts": ["a"] * 3}, 3),
        ({"labels": [torch.ones(5), torch.ones(2)], "texts": ["a", "b"]}, 2),
        ({"labels": [{"boxes": torch.ones(7, 4)}] * 2, "images": torch.ones(2, 3, 8, 8)}, 2),
        ({"crops": [torch.ones(4, 3), torch.ones(4, 2)]}, 4),
        ({"left": ["a", "b", "c"], "right": ["d", "e", "f"]}, 3),
        ({"scale": torch.tensor(1.0), "inputs": {"x": torch.ones(6, 2)}}, 6),
        ((torch.ones(2, 3), ["a", "b"]), 2),
        ({"texts": "abc"}, None),
    ],
    ids=repr,
)
def test_rows_of_a_batch_are_counted(batch, rows):
    assert count_rows(batch) == rows


def test_nested_values_keep_their_types():
    value = {"a": [1, (2, Pair(3, 4))], "b": OrderedDict(c=5)}
    doubled = map_nested(lambda leaf: 2 * leaf, value)
    assert doubled == {"a": [2, (4, Pair(6, 8))], "b": OrderedDict(c=10)}
    assert type(doubled["a"][1][1]) is Pair
    assert type(doubled["b"]) is OrderedDict


def test_detach_and_numpify_equal_reference():
    value = [
        torch.ones(2, requires_grad=True) * 2,
        {"a": torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)},
    ]
    detached = nested_detach([*value, "text"])
    assert not detached[0].requires_grad
    assert not detached[1]["a"].requires_grad
    assert detached[2] == "text"
    assert same_bits(
        nested_numpify(value), reference.nested_numpify(reference.nested_detach(value))
    )


def test_collecting_writes_host_batches_in_place():
    """The tensor of a model may be used again for its next batch; in the reference too, which
    copies later.
    """
    buffer = torch.zeros(2, 3)
    collector = BatchCollector(rows=4)
    for value in (1.0, 2.0):
        collector.add(buffer.fill_(value))
    assert collector.result().tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2


def test_collecting_keeps_device_batches_until_needed(moved, monkeypatch):
    """As the documents say of `eval_accumulation_steps`."""
    monkeypatch.setattr(collect, "_is_on_host", lambda batch: False)
    collector = BatchCollector()
    for _ in range(3):
        collector.add(torch.ones(2))
    assert not moved
    collector.to_host()
    assert len(moved) == 3
    assert collector.result().shape == (6,)


LOSSES = {
    "numbers": lambda index: numbers() + index,
    "several a batch": lambda index: numbers(3) + index,
    "more and more": lambda index: numbers(index + 1),
    "half precision": lambda index: numbers(dtype=torch.bfloat16) + index,
    "double precision": lambda index: numbers(dtype=torch.float64) + index,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("on_host", [True, False], ids=["", "as on a device"])
def test_losses_equal_reference(monkeypatch, name, on_host):
    """Repeated for the samples of a batch, of which the last one has fewer."""
    keep_on_device(monkeypatch, on_host)
    cases = product([True, False], [None, 2, 4], [(), (0, 3), range(6)])
    assert [case for case in cases if not same_bits(*collected_losses(name, *case))] == []


def keep_on_device(monkeypatch, on_host):
    if on_host:
        return
    monkeypatch.setattr(collect, "_is_on_host", lambda loss: False)
    # What a collector asks of another tensor in the host's memory, once it has one.
    monkeypatch.setattr(LossCollector, "add", lambda self, loss: self._pending.append(loss))


def collected_losses(name, concatenate, last, to_host_after):
    ours = LossCollector(concatenate)
    theirs = reference.EvalLoopContainer(concatenate, padding_index=-100)
    for index in range(6):
        loss = LOSSES[name](index).repeat(4)
        if index == 5:
            loss = loss[:last]
        ours.add(loss)
        theirs.add(loss)
        if index in to_host_after:
            ours.to_host()
            theirs.to_cpu_and_numpy()
    result = ours.result()
    assert ours.result() is None, "it can be used again"
    return result, theirs.get_arrays()


@pytest.mark.parametrize("on_host", [True, False], ids=["", "as on a device"])
def test_losses_of_a_function_that_gathers_one_number(monkeypatch, on_host):
    keep_on_device(monkeypatch, on_host)
    collector = LossCollector()
    for index in range(3):
        collector.add(torch.tensor(float(index)))
    assert collector.result().tolist() == [0.0, 1.0, 2.0]


def test_losses_on_a_device_are_moved_once(moved, monkeypatch):
    keep_on_device(monkeypatch, on_host=False)
    collector = LossCollector()
    for _ in range(3):
        collector.add(torch.ones(2))
    assert collector.result().tolist() == [1.0] * 6
    assert len(moved) == 1
