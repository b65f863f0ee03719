"""Arrays that grow are those that the reference joins, written once and with no second copy in
memory.
"""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import trainer_pt_utils as reference

from helpers.comparing.bit_differences import same_bits
from lightrainer.lightning_modules.evaluation import preallocated_arrays as module
from lightrainer.lightning_modules.evaluation.preallocated_arrays import (
    PreallocatedArray,
    preallocate,
)


def numbers(*shape, dtype="float32"):
    return (np.random.default_rng(sum(shape)).random(shape) * 100).astype(dtype)


@pytest.fixture(params=[2**20, 1], ids=["", "row by row"])
def chunk(request, monkeypatch):
    """Bytes moved at a time: more than there are, or the least."""
    monkeypatch.setattr(module, "CHUNK", request.param)


def joined(batches, rows=None):
    grown = preallocate(batches[0], rows)
    for batch in batches[1:]:
        grown.add(batch)
    return grown.result()


@pytest.mark.parametrize("widths", [(4, 4, 4), (4, 2, 4), (2, 4, 4), (4, 4, 2)], ids=str)
def test_precisions_that_differ(widths):
    """With equal lengths the wider type wins, where they are not the first one, as in the
    reference.
    """
    arrays = [
        numbers(2, width, dtype=dtype)
        for width, dtype in zip(widths, ("<f4", "<f8", "<f4"), strict=True)
    ]
    assert same_bits(joined(arrays), functools.reduce(reference.nested_concat, arrays))


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
    ids=[
        "shorter tuple",
        "longer list",
        "other key",
        "array, tuple",
        "tuple, array",
        "dict, tuple",
    ],
)
def test_preallocated_tree_of_another_structure_raises(batches):
    """A TypeError, whatever the difference; nothing is joined by accident."""
    with pytest.raises(TypeError, match="eval_do_concat_batches=False"):
        joined(batches)


def test_preallocated_array_of_other_shapes_raises():
    for other in ((2, 3), (2, 3, 5), (2,), (2, 3, 4, 1)):
        with pytest.raises(ValueError, match="eval_do_concat_batches=False"):
            joined([np.ones((2, 3, 4)), np.ones(other)])
    for leaf in ("text", 3, None):
        with pytest.raises(TypeError, match=rf"type {type(leaf).__name__} .*ignore_keys"):
            joined([(np.ones(2), leaf)] * 2)


def test_preallocated_array_writes_each_value_once(monkeypatch):
    """Or twice, in the worst case, in which each batch is wider than all before it."""
    written, write = [], PreallocatedArray._write
    noted = lambda array, rows, batch: (written.append(rows.nbytes), write(array, rows, batch))
    monkeypatch.setattr(PreallocatedArray, "_write", noted)
    for widths, times in ([4] * 40, 1), ([7, 4] * 20, 1), (range(1, 41), 2):
        written.clear()
        result = joined([np.ones((8, width)) for width in widths])
        assert result.nbytes <= sum(written) <= times * result.nbytes


PEAK = """
import re, sys
import numpy as np
from lightrainer.lightning_modules.evaluation.preallocated_arrays import preallocate

def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

def batch(index):
    return np.full((8, 16000 if index == wide else 15900), index, dtype=np.float32)

rows, wide = eval(sys.argv[1]), int(sys.argv[2])
base = most()
made = preallocate(batch(0), rows)
for index in range(1, 250):
    made.add(batch(index))
result = made.result()
print((most() - base) * 1024 / result.nbytes)
"""


@pytest.mark.parametrize(("rows", "wide"), [(None, 249), (2000, 0), (5000, 150)])
def test_preallocated_array_makes_no_second_copy(rows, wide):
    """Of 128 MB, as smaller ones the C library may copy.

    The widest batch comes last, where all rows move once, first, or after more than half.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    command = [sys.executable, "-c", PEAK, repr(rows), str(wide)]
    assert float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 1.3


def test_arrays_of_any_shapes_are_joined(chunk):
    """Of rows, lengths and what follows, among them nothing at all."""
    for seed in range(30):
        generator = np.random.default_rng(seed)
        trailing = [(), (3,), (2, 2), (0,)][seed % 4]
        sizes = generator.integers([0, 0], [5, 12], size=(9, 2))
        arrays = [generator.random((*size, *trailing)).astype(np.float32) for size in sizes]
        expected = functools.reduce(reference.nested_concat, arrays)
        assert same_bits(joined(arrays, rows=[None, 3, 50][seed % 3]), expected), seed
