"""Lengths are measured once, and forgotten with their dataset."""

import gc
import weakref

import pytest

from lightrainer.lightning_modules.data.lengths import LengthCache


class Data:
    def __init__(self, count=3):
        self.count = count

    def __len__(self):
        return self.count


class Measure:
    def __init__(self, lengths):
        self.lengths = lengths
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.lengths


@pytest.mark.parametrize("data", [Data(), [1, 2, 3]])
def test_a_dataset_is_measured_once(data):
    cache, measure = LengthCache(), Measure([1, 2, 3])
    assert [cache.get(data, "a", measure) for _ in range(3)] == [[1, 2, 3]] * 3
    assert measure.calls == 1


@pytest.mark.parametrize("make", [Data, lambda: [1, 2, 3]])
def test_another_dataset_or_column_is_measured_anew(make):
    cache, first, second = LengthCache(), make(), make()
    assert cache.get(first, "a", lambda: [1]) == [1]
    assert cache.get(second, "a", lambda: [2]) == [2]
    assert cache.get(first, "b", lambda: [3]) == [3]
    assert cache.get(first, "a", lambda: pytest.fail("measured again")) == [1]


def test_a_dataset_that_has_grown_is_measured_anew():
    cache = LengthCache()
    for data, grow in ((Data(), lambda data: setattr(data, "count", 4)), ([1], lambda data: data.append(2))):
        assert cache.get(data, "a", lambda: "short") == "short"
        grow(data)
        assert cache.get(data, "a", lambda: "long") == "long"


def test_a_dataset_is_not_kept_alive_and_forgotten_with_its_last_owner():
    cache, data = LengthCache(), Data()
    cache.get(data, "a", lambda: [1])
    gone = weakref.ref(data)
    del data
    gc.collect()
    assert gone() is None
    assert cache._watched == {}


def test_of_lists_only_the_last_few_are_kept():
    """A list that is gone could otherwise be taken for a new one at its place."""
    cache = LengthCache()
    for number in range(20):
        assert cache.get([number], "a", lambda number=number: number) == number
    assert len(cache._held) == 4
