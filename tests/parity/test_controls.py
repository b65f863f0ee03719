"""Negative controls: what must differ differs, and the comparison notices one bit."""

import copy

import numpy as np
import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, assert_same, run
from helpers.parity.parity_datasets import point_data, points
from helpers.parity.parity_models import Classifier

CASE = Case(Classifier, point_data, {"eval_strategy": "epoch"}, test=lambda: points(7, seed=21))


@pytest.mark.parametrize("part", ["weights", "history", "predictions", "random_state", "output"])
def test_controls_find_one_flipped_bit(ours, tmp_path, part):
    """The last bit of one number in any part of the results."""
    first = run(ours, CASE, tmp_path)
    first.trainer = None
    second = copy.deepcopy(first)
    assert_same(first, second)
    if part == "weights":
        second.weights["first.weight"].view(torch.int32)[3, 2] ^= 1
    elif part == "history":
        second.history[2]["loss"] = float(np.nextafter(second.history[2]["loss"], 9.0))
    elif part == "predictions":
        second.predictions.view(np.int32)[6, 1] ^= 1
    elif part == "random_state":
        second.random_state["torch"][100] ^= 1
    else:
        second.output["training_loss"] = float(np.nextafter(second.output["training_loss"], 9.0))
    with pytest.raises(AssertionError, match=f"1 differences.*\n{part}"):
        assert_same(first, second)


LEFTS = [
    *(
        (0.0, -0.0),
        (1, 1.0),
        (1.0, np.float64(1.0)),
        ([1], [1, 2]),
        ((1,), [1]),
        ({"a": 1}, {"b": 1}),
    ),
    *(
        (torch.zeros(2), other)
        for other in (torch.zeros(1, 2), torch.zeros(2, dtype=torch.float64))
    ),
    *((np.array([np.nan, 1.0]), np.array([np.nan, 2.0])), (None, 0.0), (float("nan"), 1.0)),
]


@pytest.mark.parametrize(("left", "right"), LEFTS)
def test_controls_comparison_sees_differences(left, right):
    assert differences(left, right)
    assert not differences(left, copy.deepcopy(left))
