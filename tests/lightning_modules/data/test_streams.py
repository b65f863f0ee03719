"""Streams that can resume from their position, and workers that take the places of others."""

import torch
from torch.utils.data import DataLoader

from lightrainer.lightning_modules.data.worker_state import ReportingCollate, ResumedWorkers, is_resumable


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


def test_resumed_workers_call_the_init_function_of_the_loader():
    seeded = ResumedWorkers({"workers": 2, "last": None, "states": []}, lambda worker: torch.manual_seed(1))
    draw = ReportingCollate(lambda samples: torch.rand(()).item(), 2)
    workers = {"num_workers": 2, "worker_init_fn": seeded, "multiprocessing_context": "fork"}
    first, second = DataLoader([1, 2], collate_fn=draw, **workers)
    assert first.batch == second.batch
