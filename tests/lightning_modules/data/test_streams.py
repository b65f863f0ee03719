"""Streams that can resume from their position."""

import pytest

from lightrainer.lightning_modules.data.worker_state import is_resumable


class Both:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Half:
    def state_dict(self):
        return {}


@pytest.mark.parametrize(("dataset", "expected"), [(Both(), True), (Half(), False), ([], False)])
def test_it_takes_both_methods(dataset, expected):
    assert is_resumable(dataset) == expected


def test_a_stream_of_rows_unless_it_shuffles():
    """A buffer that is filled anew gives another order; that of the files alone is remembered as well as any."""
    import datasets

    def rows():
        yield from ({"x": step} for step in range(20))

    stream = datasets.IterableDataset.from_generator(rows)
    assert is_resumable(stream)
    assert is_resumable(stream.map(lambda row: row).batch(2))
    shuffled = stream.shuffle(seed=1, buffer_size=4)
    assert not is_resumable(shuffled)
    assert not is_resumable(shuffled.map(lambda row: row).take(3))
