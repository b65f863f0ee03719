"""Workers tell how each batch leaves them, and others go on in their place."""

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from lightrainer.lightning_modules.data.worker_state import (
    ENDED,
    Fetched,
    ReportingCollate,
    ResumedWorkers,
    WorkerStates,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the datasets are not importable elsewhere")


def drawn() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


class Draws(Dataset):
    """Samples of random numbers, and the worker that drew them."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return [index, get_worker_info().id, *drawn()]


class Batches(Draws):
    """Loads many samples at once, and must not be asked for none."""

    def __getitems__(self, indices):
        assert indices
        return [self[index] for index in indices]


class Counting(IterableDataset):
    """Each worker counts for itself; `stop` makes some of them end early."""

    def __init__(self, stop: int = 8, odd: bool = False):
        self.position, self.stop, self.odd = 0, stop, odd

    def __iter__(self):
        while self.position < self.stop:
            self.position += 1
            yield [self.position, get_worker_info().id, *drawn()]

    def state_dict(self):
        return {"position": object() if self.odd and self.position > 2 else self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def identity(samples):
    return samples


def loader(dataset, init=None, workers=2, **options):
    torch.manual_seed(5)
    if not isinstance(dataset, IterableDataset):
        options.setdefault("sampler", range(16))
    return DataLoader(
        dataset,
        batch_size=2,
        collate_fn=ReportingCollate(identity, 2),
        num_workers=workers,
        worker_init_fn=init,
        multiprocessing_context="fork" if workers else None,
        **options,
    )


def read(batches, count=None):
    """Batches, and how the workers were left."""
    states, seen = WorkerStates(), []
    for fetched in batches:
        assert isinstance(fetched, Fetched)
        seen.append(states.take(fetched))
        if len(seen) == count:
            break
    return seen, states.state_dict(2)


def test_a_worker_that_draws_nothing_has_no_news():
    """The first batch reports it once."""

    class Still(Draws):
        def __getitem__(self, index):
            return index

    news = [fetched.news for fetched in loader(Still())]
    assert [bool(one) for one in news] == [True, True] + [False] * 6


def test_a_stream_that_ended_is_not_read_on():
    """The last, shorter batch says so; and one whose state cannot be written down counts as ended as well."""
    _, state = read(loader(Counting(stop=3)))
    assert [worker["dataset"] for _, worker in state["states"]] == [ENDED, ENDED]
    _, odd = read(loader(Counting(odd=True)), 4)
    assert [worker["dataset"] for _, worker in odd["states"]] == [ENDED, ENDED]


def test_blanks_load_nothing():
    """An empty batch gives a turn to a worker, and no more."""
    blanks = DataLoader(
        Batches(),
        batch_sampler=[[], [3, 4]],
        collate_fn=ReportingCollate(identity, 2),
        num_workers=2,
        worker_init_fn=ResumedWorkers({"workers": 2, "last": 0, "states": []}, None),
        multiprocessing_context="fork",
    )
    first, second = blanks
    assert (first.batch, first.worker, first.news) == (None, 0, {})
    assert [sample[:2] for sample in second.batch] == [[3, 1], [4, 1]]


def test_the_loaders_own_init_function_is_called():
    """In the worker's new place, before its generators are set."""
    samples, _ = read(loader(Draws(), ResumedWorkers({"workers": 2, "last": None, "states": []}, _seeded)))
    assert samples[0][0][2] == samples[1][0][2], "both workers were seeded alike"


def _seeded(worker_id):
    torch.manual_seed(1)
