"""Structures with more than tensors in them are joined, cut and collected sample by sample."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from lightrainer.lightning_modules.evaluation.collecting import ObjectCollector
from lightrainer.lightning_modules.evaluation.joined_objects import cut_objects, join_objects


class Pair(NamedTuple):
    texts: list
    scores: torch.Tensor


def part(*numbers, width=2):
    """A batch with something for each number."""
    return {
        "texts": [str(number) for number in numbers],
        "pair": Pair([{"n": number} for number in numbers], torch.tensor(numbers).float()),
        "wide": torch.tensor([[number] * width for number in numbers]),
    }


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def test_join_objects_joins_each_part():
    joined = join_objects([part(1, 2), part(3)])
    assert plain(joined) == plain(part(1, 2, 3))
    assert type(joined["pair"]) is Pair


@pytest.mark.parametrize("convert", [torch.tensor, np.array])
def test_rows_of_different_lengths_are_filled_up(convert):
    joined = join_objects([convert([[1, 2]]), convert([[3, 4, 5], [6, 7, 8]])])
    assert joined.tolist() == [[1, 2, -100], [3, 4, 5], [6, 7, 8]]
    assert type(joined) is type(convert([1]))


def test_cut_objects_cuts_all_parts():
    assert plain(cut_objects(part(1, 2, 3), 2)) == plain(part(1, 2))
    assert cut_objects((torch.arange(3), [1, 2, 3]), 1)[1] == [1]


@pytest.mark.parametrize("often", [True, False])
def test_batches_are_collected_on_the_host(often):
    collector = ObjectCollector()
    for batch in (part(1, 2), part(3, width=4), part(4)):
        collector.add(batch)
        if often:
            collector.to_host()
    result = collector.result()
    assert isinstance(result["wide"], np.ndarray)
    assert result["texts"] == ["1", "2", "3", "4"]
    assert result["wide"].tolist() == [
        [1, 1, -100, -100],
        [2, 2, -100, -100],
        [3] * 4,
        [4, 4, -100, -100],
    ]
    assert collector.result() is None


def test_batches_may_stay_apart():
    collector = ObjectCollector(concatenate=False)
    collector.add(part(1, 2))
    collector.add(part(3))
    assert plain(collector.result()) == [plain(part(1, 2)), plain(part(3))]
