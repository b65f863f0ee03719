"""Arrays that grow are those that the reference joins, written once and with no second copy in memory."""

import functools
import subprocess
import sys
from collections import OrderedDict, UserDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
from same_values import same
from transformers import trainer_pt_utils as reference

from lightrainer.lightning_modules.evaluation import preallocated_arrays as module
from lightrainer.lightning_modules.evaluation.preallocated_arrays import PreallocatedArray, growing

Pair = namedtuple("Pair", "first second")
SIZES = [(3, 5), (3, 2), (1, 7), (2, 7), (4, 1), (2, 9), (1, 3)]
"""Rows and columns of seven batches, wider and narrower in turn."""


def numbers(*shape, dtype="float32"):
    return (np.random.default_rng(sum(shape)).random(shape) * 100).astype(dtype)


STRUCTURES = {
    "1-d": lambda rows, columns: numbers(rows),
    "2-d, equal widths": lambda rows, columns: numbers(rows, 4),
    "2-d": lambda rows, columns: numbers(rows, columns),
    "2-d, integers": lambda rows, columns: numbers(rows, columns, dtype="int64"),
    "2-d, truth": lambda rows, columns: numbers(rows, columns, dtype="int64") % 2 == 0,
    "3-d": lambda rows, columns: numbers(rows, columns, 3),
    "4-d": lambda rows, columns: numbers(rows, columns, 2, 2),
    "tuple": lambda rows, columns: (numbers(rows, columns), numbers(rows)),
    "list": lambda rows, columns: [numbers(rows, columns, 2), numbers(rows, columns)],
    "dict": lambda rows, columns: {"logits": numbers(rows, columns), "pooled": numbers(rows, 3)},
    "ordered dict": lambda rows, columns: OrderedDict(b=numbers(rows), a=numbers(rows, columns)),
    "user dict": lambda rows, columns: UserDict(b=numbers(rows), a=numbers(rows, columns)),
    "deep": lambda rows, columns: ({"a": [numbers(rows, columns), (numbers(rows),)]}, numbers(rows, columns, 2)),
}


@pytest.fixture(params=[2**20, 1], ids=["", "row by row"])
def chunk(request, monkeypatch):
    """Bytes moved at a time: more than there are, or the least."""
    monkeypatch.setattr(module, "CHUNK", request.param)


def joined(batches, padding=-100, rows=None):
    grown = growing(batches[0], rows, padding)
    for batch in batches[1:]:
        grown.add(batch)
    return grown.result()


def batches_of(name, count=None):
    return [STRUCTURES[name](*size) for size in SIZES[:count]]


@pytest.mark.parametrize("name", STRUCTURES)
def test_equals_the_reference(chunk, name):
    """The expected number of rows changes nothing: the seven batches have 16."""
    different = []
    for count in (2, 3, 5, 7):
        arrays = batches_of(name, count)
        expected = functools.reduce(reference.nested_concat, arrays)
        different += [(count, rows) for rows in (None, 1, 16, 40) if not same(joined(arrays, rows=rows), expected)]
    assert different == []


def test_the_comparison_can_fail():
    """Negative control: another padding, precision, order or type is seen."""
    arrays = batches_of("2-d")
    expected = functools.reduce(reference.nested_concat, arrays)
    assert not same(joined(arrays, padding=0), expected)
    assert not same(joined(arrays).astype(np.float64), expected)
    assert not same(joined(arrays[::-1]), expected)
    assert not same((expected,), [expected])


@pytest.mark.parametrize("widths", [(4, 4, 4), (4, 2, 4), (2, 4, 4), (4, 4, 2)], ids=str)
def test_precisions_that_differ(widths):
    """With equal lengths the wider type wins, where they are not the first one, as in the reference."""
    arrays = [numbers(2, width, dtype=dtype) for width, dtype in zip(widths, ("<f4", "<f8", "<f4"), strict=True)]
    assert same(joined(arrays), functools.reduce(reference.nested_concat, arrays))


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
def test_another_structure_is_an_error(batches):
    """A TypeError, whatever the difference; nothing is joined by accident."""
    with pytest.raises(TypeError, match=r"cannot be joined.*eval_do_concat_batches=False"):
        joined(batches)


@pytest.mark.parametrize("other", [(2, 3), (2, 3, 5), (2,), (2, 3, 4, 1)], ids=str)
def test_another_shape_is_an_error(other):
    with pytest.raises(ValueError, match=r"cannot be joined.*eval_do_concat_batches=False"):
        joined([np.ones((2, 3, 4)), np.ones(other)])


@pytest.mark.parametrize("leaf", ["text", 3, None])
def test_what_cannot_be_joined_is_named(leaf):
    with pytest.raises(TypeError, match=rf"type {type(leaf).__name__} cannot be joined.*ignore_keys"):
        joined([(np.ones(2), leaf)] * 2)


class Writing:
    """Counts what a growing array writes."""

    def __init__(self, monkeypatch):
        self.bytes = 0
        write = PreallocatedArray._write

        def counted(array, rows, batch):
            self.bytes += rows.nbytes
            write(array, rows, batch)

        monkeypatch.setattr(PreallocatedArray, "_write", counted)


@pytest.mark.parametrize("rows", [None, 320], ids=["unknown", "expected"])
@pytest.mark.parametrize("widths", [(4,), (7, 4)], ids=["equal widths", "different widths"])
def test_each_value_is_written_once(monkeypatch, widths, rows):
    writing = Writing(monkeypatch)
    found = joined([np.ones((8, widths[index % len(widths)])) for index in range(40)], rows=rows)
    assert writing.bytes == found.nbytes


def test_a_value_is_written_twice_at_most(monkeypatch):
    """The worst case: each batch is wider than all before it."""
    writing = Writing(monkeypatch)
    found = joined([np.ones((8, 1 + index)) for index in range(40)])
    assert writing.bytes <= 2 * found.nbytes


PEAK = """
import re, sys
import numpy as np
from lightrainer.lightning_modules.evaluation.preallocated_arrays import growing

def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

def batch(index):
    return np.full((8, 16000 if index == wide else 15900), index, dtype=np.float32)

how, rows, wide = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3])
base = most()
if how == "grown":
    made = growing(batch(0), rows)
    for index in range(1, 250):
        made.add(batch(index))
    result = made.result()
else:
    result = np.concatenate([batch(0)[:, :15900] * 1 for index in range(250)])
print((most() - base) * 1024 / result.nbytes)
"""


def peak_memory(how, rows=None, wide=0):
    """Growth of a process of its own, in sizes of the result: 128 MB, as smaller ones the C library may copy."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the most memory that a process had is read where Linux says it")
    command = [sys.executable, "-c", PEAK, how, repr(rows), str(wide)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(("rows", "wide"), [(None, 249), (2000, 0), (5000, 150)])
def test_no_second_copy_in_memory(rows, wide):
    """The widest batch comes last, where all rows move once, first, or after more than half."""
    assert peak_memory("grown", rows, wide) < 1.3


def test_a_second_copy_would_be_seen():
    """Negative control: batches that are kept, and joined at the end."""
    assert peak_memory("concatenated") > 1.9


def test_any_shapes(chunk):
    """Of rows, lengths and what follows, among them nothing at all."""
    different = []
    for seed in range(30):
        generator = np.random.default_rng(seed)
        rest = [(), (3,), (2, 2), (0,)][seed % 4]
        sizes = generator.integers([0, 0], [5, 12], size=(9, 2))
        arrays = [generator.random((*size, *rest)).astype(np.float32) for size in sizes]
        expected = functools.reduce(reference.nested_concat, arrays)
        if not same(joined(arrays, rows=[None, 3, 50][seed % 3]), expected):
            different.append(seed)
    assert different == []
