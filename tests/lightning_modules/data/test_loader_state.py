"""A loader goes on from its state: in a fresh process, to the same batches and the same random numbers."""

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler

from lightrainer.lightning_modules.common.safe_serialization import from_plain, to_plain
from lightrainer.lightning_modules.data.loaders import EpochLoader, build_loader

COUNT = 14


def noise() -> float:
    return float(torch.rand(())) + random.random() + float(np.random.rand())


class Noisy(Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.seen.append(index)
        return index + noise()


class Stream(IterableDataset):
    def __iter__(self):
        return (index + noise() for index in range(COUNT))


class Stateful(Stream):
    position = 0
    reads = 0

    def __iter__(self):
        while self.position < COUNT:
            self.position += 1
            self.reads += 1
            yield self.position + noise()
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Opaque:
    """A batch that cannot be in a checkpoint."""

    def __init__(self, samples):
        self.samples = samples

    def __eq__(self, other):
        return self.samples == other.samples


def shuffled(**options) -> EpochLoader:
    data = Noisy()
    return made(data, sampler=RandomSampler(data), seed=3, **options)


def unseeded(**options) -> EpochLoader:
    data = Noisy()
    return made(data, sampler=RandomSampler(data), seedable=False, **options)


def own_generator(**options) -> EpochLoader:
    data = Noisy()
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(8))
    return made(data, sampler=sampler, seedable=False, **options)


def stream(**options) -> EpochLoader:
    return made(Stream(), **options)


def stateful(**options) -> EpochLoader:
    return made(Stateful(), **options)


def made(data, **options) -> EpochLoader:
    loader = build_loader(data, batch_size=2, **{"collate_fn": list, **options})
    loader.track()
    return loader


def scramble() -> None:
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)


def used(batch):
    """Draw as a training step does between batches."""
    return batch, noise()


def read(loader, epochs=2):
    return [used(batch) for _ in range(epochs) for batch in loader]


def interrupted(make, after, **options):
    """Read so many batches, then go on with a fresh loader from what a file would hold."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    first, seen = make(**options), []
    while len(seen) < after:
        for batch in first:
            seen.append(used(batch))
            if len(seen) == after:
                break
    state = from_plain(to_plain(first.state_dict()))
    rng = torch.get_rng_state(), random.getstate(), np.random.get_state()
    scramble()

    def restore():
        torch.set_rng_state(rng[0])
        random.setstate(rng[1])
        np.random.set_state(rng[2])

    fresh = make(**options)
    assert fresh.load_state_dict(state, restore)
    seen += [used(batch) for batch in fresh]
    return seen + (read(fresh, 1) if after < 7 else []), fresh


@pytest.mark.parametrize("collate", [list, Opaque])
@pytest.mark.parametrize("make", [shuffled, unseeded, own_generator, stream, stateful])
@pytest.mark.parametrize("after", [1, 3, 6, 9])
def test_it_goes_on_from_everywhere(make, after, collate):
    """Two epochs of 7 batches; also where the batch read ahead has to be read again."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    whole = read(make(collate_fn=collate))
    assert interrupted(make, after, collate_fn=collate)[0] == whole


@pytest.mark.parametrize("make", [shuffled, stream])
def test_without_the_state_it_goes_on_elsewhere(make):
    """Negative control: skipping alone, with the generators where they were, gives other numbers."""
    torch.manual_seed(0)
    whole = read(make(), 1)
    torch.manual_seed(0)
    first = make()
    for _, batch in zip(range(3), first, strict=False):
        used(batch)
    rest = make()
    rest.skip(3)
    assert read(rest, 1) != whole[3:]


def test_nothing_is_loaded_that_was_seen():
    """Nor the batch that was read ahead: it is in the state."""
    torch.manual_seed(0)
    whole = shuffled()
    read(whole, 1)
    _, fresh = interrupted(shuffled, 3)
    assert fresh.dataset.seen[:6] == whole.dataset.seen[8:]


def test_a_stream_with_a_state_is_not_read_again():
    _, fresh = interrupted(stateful, 9)
    assert fresh.dataset.reads == COUNT - 2 * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the dataset is not importable by a spawned process")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("make", [shuffled, stateful])
def test_it_goes_on_with_workers(make, persistent):
    """An odd batch, so that it is the second worker's turn; the next epoch begins with the first one again."""
    options = {"num_workers": 2, "persistent_workers": persistent, "multiprocessing_context": "fork"}
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    first = make(**options)
    whole = read(first)
    seen, fresh = interrupted(make, 3, **options)
    assert seen == whole
    for loader in (first, fresh):
        loader.end_workers()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the dataset is not importable by a spawned process")
def test_workers_that_were_there_before_draw_no_seed():
    """Persistent workers begin once; a loader in whose place they were goes on with their random numbers."""
    options = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    torch.manual_seed(0)
    first = made(Noisy(), **options)
    list(first)
    states = from_plain(to_plain(first.worker_states))
    before = torch.get_rng_state()
    expected = list(first)
    assert torch.equal(torch.get_rng_state(), before)
    fresh = made(Noisy(), **options)
    assert fresh.worker_states is None
    fresh.had_workers(states)
    assert list(fresh) == expected
    assert torch.equal(torch.get_rng_state(), before)
    for loader in (first, fresh):
        loader.end_workers()
