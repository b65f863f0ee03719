"""Streams that can resume from their position."""

from lightrainer.lightning_modules.data.worker_state import is_resumable


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
