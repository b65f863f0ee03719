"""Samples of batches of any form: cut out, and joined."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from lightrainer.lightning_modules.common.batch_rows import join_rows, slice_rows
from lightrainer.lightning_modules.common.nested import count_rows, map_nested


class Pair(NamedTuple):
    inputs: object
    labels: object


def rows(start, stop):
    return torch.arange(start, stop)[:, None].repeat(1, 2)


def texts(start, stop):
    return [str(index) for index in range(start, stop)]


def objects(start, stop):
    """Return a dict for each sample, with a row for each of its objects."""
    return [{"boxes": torch.full((index + 1, 4), index)} for index in range(start, stop)]


BATCHES = {
    "tensor": rows,
    "tuple": lambda *samples: (rows(*samples), rows(*samples)),
    "named tuple": lambda *samples: Pair(rows(*samples), rows(*samples)),
    "inputs in a tuple": lambda *samples: ((rows(*samples), rows(*samples)), rows(*samples)),
    "inputs, one of them missing": lambda *samples: ((rows(*samples), None), rows(*samples)),
    "texts": lambda *samples: {"texts": texts(*samples)},
    "texts in a list": lambda *samples: [{"x": rows(*samples)}, texts(*samples)],
    "arrays": lambda *samples: {"x": rows(*samples).numpy(), "scale": np.array(2.0)},
    "values of the batch": lambda *samples: {
        "x": rows(*samples),
        "scale": torch.tensor(2.0),
        "n": 3,
    },
    "objects": lambda *samples: {"x": rows(*samples), "labels": objects(*samples)},
    "objects in a list": lambda *samples: [rows(*samples), objects(*samples)],
}


def described(batch):
    """Return a batch with its tensors as lists, which can be compared."""

    def plain(leaf):
        return leaf.tolist() if hasattr(leaf, "tolist") else leaf

    return map_nested(plain, batch)


@pytest.mark.parametrize("form", BATCHES)
def test_slice_rows_of_a_batch(form):
    make = BATCHES[form]
    for start, stop in [(0, 1), (1, 3), (2, 5), (0, 5)]:
        sliced = slice_rows(make(0, 5), start, stop)
        assert described(sliced) == described(make(start, stop))
        assert type(sliced) is type(make(0, 1))


@pytest.mark.parametrize("form", BATCHES)
def test_join_rows_of_batches(form):
    make = BATCHES[form]
    joined = join_rows([make(0, 3), make(3, 4), make(4, 7)])
    assert described(joined) == described(make(0, 7))
    assert count_rows(joined) == 7
    # A single sample, with a single object.
    assert described(join_rows([make(1, 3), make(0, 1)])) == described(
        join_rows([make(1, 2), make(2, 3), make(0, 1)])
    )


def test_slice_rows_keeps_two_inputs_of_two_samples():
    """The tuple of inputs has as many entries as there are samples."""
    batch = ((rows(0, 2), rows(0, 2)), rows(0, 2))
    assert described(slice_rows(batch, 0, 1)) == described(((rows(0, 1), rows(0, 1)), rows(0, 1)))


def test_join_rows_with_several_texts_of_each_sample():
    batches = [{"x": rows(0, 2), "texts": texts(0, 4)}, {"x": rows(2, 3), "texts": texts(4, 6)}]
    assert join_rows(batches)["texts"] == texts(0, 6)
