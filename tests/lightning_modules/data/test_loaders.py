"""A loader gives the batches, and takes the random numbers, of one that accelerate prepared."""

import itertools
import os
import threading

import accelerate.data_loader as reference
import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    get_worker_info,
)
from torch.utils.data._utils import fetch

from lightrainer.lightning_modules.data.iteration import can_be_rebuilt, iterate
from lightrainer.lightning_modules.data.length_grouping import LengthGroupedSampler
from lightrainer.lightning_modules.data.loader_state import with_other_batches
from lightrainer.lightning_modules.data.loaders import EpochLoader, build_loader


class Recorded(Dataset):
    """Remembers which samples were read, and draws a random number for each, as augmentation
    does.
    """

    def __init__(self, count):
        self.count = count
        self.read = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        return {"index": torch.tensor(index), "noise": torch.rand(2)}


class RecordedStream(IterableDataset):
    def __init__(self, count):
        self.count = count
        self.read = []
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        for index in range(self.count):
            self.read.append(index)
            yield {"index": torch.tensor(index), "noise": torch.rand(2)}


def prepared(dataset, batch_size, sampler=None, seed=None, rank=0, world_size=1, **kwargs):
    """The loader that `Accelerator.prepare` makes, as the reference Trainer sets it up."""
    options = {
        "device": torch.device("cpu"),
        "put_on_device": True,
        "use_seedable_sampler": True,
        "data_seed": seed,
    }
    if not isinstance(dataset, IterableDataset):
        options |= {"num_processes": world_size, "process_index": rank}
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, **kwargs)
    return reference.prepare_data_loader(loader, **options)


def ours(dataset, batch_size, **kwargs):
    return build_loader(dataset, batch_size=batch_size, **kwargs)


def trace(make, dataset, batch_size, shuffle=False, epochs=3, **kwargs):
    """Everything that can be seen from outside while a loader is read: batches, reads, random
    numbers, its ends.
    """
    torch.manual_seed(23)
    sampler = RandomSampler(dataset) if shuffle else None
    loader = make(dataset, batch_size, sampler=sampler, **kwargs)
    events = [torch.get_rng_state().tolist()]
    for _ in range(epochs):
        for batch in loader:
            ends = (
                (
                    loader.end_of_loader
                    if isinstance(loader, EpochLoader)
                    else loader.end_of_dataloader
                ),
            )
            ends += (
                (loader.remainder,) if not isinstance(dataset, IterableDataset) or ends[0] else ()
            )
            batch = {name: value.tolist() for name, value in batch.items()}
            events.append(
                (batch, ends, list(getattr(dataset, "read", [])), torch.get_rng_state().tolist())
            )
            torch.rand(1)  # what the model draws falls between the draws of the loader
        events.append(torch.get_rng_state().tolist())
    return events


MAP_STYLE = [
    {},
    {"shuffle": True},
    {"shuffle": True, "seed": 7},
    {"drop_last": True},
    {"shuffle": True, "drop_last": True},
]


@pytest.mark.parametrize("options", MAP_STYLE, ids=str)
@pytest.mark.parametrize("count", [1, 3, 9, 10])
def test_map_style_equals_reference(count, options):
    """Over three epochs, batch by batch: also the generator's state and what was read by then."""
    assert trace(ours, Recorded(count), 3, **options) == trace(
        prepared, Recorded(count), 3, **options
    )


@pytest.mark.parametrize("options", MAP_STYLE, ids=str)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_loader_of_each_process_equals_the_reference(rank, options):
    options = {"seed": 7, **options, "rank": rank, "world_size": 3}
    assert trace(ours, Recorded(22), 3, **options) == trace(prepared, Recorded(22), 3, **options)


@pytest.mark.parametrize("count", [1, 3, 7, 9])
def test_stream_equals_reference(count):
    theirs, stream = RecordedStream(count), RecordedStream(count)
    assert trace(ours, stream, 3) == trace(prepared, theirs, 3)
    assert stream.epochs == theirs.epochs


def test_loader_left_early_starts_again():
    """As in the reference, the epoch counts when it was read to its end."""
    dataset = range(20)
    theirs = prepared(dataset, 4, sampler=RandomSampler(dataset), seed=3)
    loader = build_loader(dataset, batch_size=4, sampler=RandomSampler(dataset), seed=3)
    for limit in (2, None, 3, None):
        expected = [batch.tolist() for batch in itertools.islice(theirs, limit)]
        assert [batch.tolist() for batch in itertools.islice(loader, limit)] == expected
    assert loader.epoch == theirs.iteration == 2
    for epoch in (5, 2):
        theirs.set_epoch(epoch)
        loader.set_epoch(epoch)
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in theirs]


@pytest.mark.parametrize("skip", range(5))
@pytest.mark.parametrize("shuffle", [False, True])
def test_skip_equals_reference_and_loads_no_skipped_sample(skip, shuffle):
    """Batches, random numbers and reads are those of `accelerate.skip_first_batches`; the next
    pass is a whole one.
    """
    traces = []
    for make in (ours, prepared):
        torch.manual_seed(23)
        dataset = Recorded(10)
        loader = make(dataset, 3, sampler=RandomSampler(dataset) if shuffle else None, seed=4)
        if make is ours:
            loader.skip(skip)
            skipping = loader
        else:
            skipping = reference.skip_first_batches(loader, skip) if skip else loader
        batches = [batch["index"].tolist() for batch in skipping]
        traces.append((batches, list(dataset.read), torch.get_rng_state().tolist()))
        if make is ours:
            assert list(dataset.read) == list(itertools.chain.from_iterable(batches))
            assert len(list(loader)) == 4
    assert traces[0] == traces[1]


@pytest.mark.parametrize("world_size", [1, 2])
def test_skip_in_a_stream_reads_and_drops(world_size):
    loader = build_loader(
        RecordedStream(12), batch_size=2, rank=world_size - 1, world_size=world_size
    )
    everything = [batch["index"].tolist() for batch in loader]
    loader.skip(2)
    assert [batch["index"].tolist() for batch in loader] == everything[2:]
    assert [batch["index"].tolist() for batch in loader] == everything


@pytest.mark.parametrize(("count", "expected"), [(12, 0), (13, 1), (17, 5)])
def test_remainder_counts_samples_of_all_processes(count, expected):
    loader = build_loader(range(count), batch_size=2, rank=1, world_size=3)
    assert loader.remainder == expected
    assert (
        build_loader(range(count), batch_size=2, rank=1, world_size=3, drop_last=True).remainder
        == -1
    )


class DrawingSampler:
    """Draws its order before its first index, as `iter` of a sampler may."""

    def __iter__(self):
        return iter(torch.randperm(7).tolist())

    def __len__(self):
        return 7


class Together(Recorded):
    def __getitems__(self, indices):
        torch.rand(1)
        return [self[index] for index in indices]


def drawing(samples):
    return samples, torch.rand(1)


class Iterated:
    """A loader of torch as the Trainer iterates over it."""

    def __init__(self, dataset, **options):
        self.loader = DataLoader(dataset, **options)
        self.generator = self.loader.generator

    def __iter__(self):
        return iterate(self.loader)


WITHOUT_WORKERS = {
    "lazy sampler": (Recorded, lambda: {"shuffle": True, "batch_size": 2}),
    "eager sampler": (Recorded, lambda: {"sampler": DrawingSampler(), "batch_size": 2}),
    "generator": (
        Recorded,
        lambda: {"shuffle": True, "batch_size": 3, "generator": torch.Generator()},
    ),
    "no batches": (Recorded, lambda: {"shuffle": True, "batch_size": None}),
    "batches of a dataset": (Together, lambda: {"shuffle": True, "batch_size": 2}),
    "samples of that dataset": (Together, lambda: {"batch_size": None}),
}


def draws(make, dataset, options):
    """Return the batches of two epochs, the samples read, and the generators after each epoch."""
    torch.manual_seed(5)
    loader = make(dataset, collate_fn=drawing, **options)
    loader_generator = loader.generator or torch.Generator()
    return [
        (
            str(list(loader)),
            dataset.read,
            torch.get_rng_state().tolist(),
            loader_generator.get_state().tolist(),
        )
        for _ in "12"
    ]


@pytest.mark.parametrize("case", WITHOUT_WORKERS)
def test_draws_are_those_of_torch(case):
    """Those of sampler, dataset and collator take turns, after that of the seed of workers."""
    kind, options = WITHOUT_WORKERS[case]
    counted = {**options(), "total": 7, "samples_per_round": 1}
    expected = draws(DataLoader, kind(7), options())
    assert draws(EpochLoader, kind(7), counted) == expected
    assert draws(Iterated, kind(7), options()) == expected


class Holds:
    def __init__(self, value):
        self.value = value


ONE_WORKER = {"num_workers": 1, "multiprocessing_context": "fork"}
UNSENDABLE = {
    "a function": lambda: lambda: 1,
    "a lock": threading.Lock,
    "a generator": lambda: (item for item in ()),
    "an object with a lock": lambda: Holds([threading.Lock()]),
}


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the collator is not importable by a spawned process"
)
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("name", UNSENDABLE)
def test_loader_batch_that_a_worker_cannot_send_raises(name, tracked):
    """torch's workers lose the error, and the training waits for the batch for ever."""

    def collate(samples):
        return {"x": torch.tensor(samples), "extra": UNSENDABLE[name]()}

    loader = build_loader(list(range(8)), batch_size=4, collate_fn=collate, **ONE_WORKER)
    if tracked:
        loader.tracked = True
    with pytest.raises(TypeError, match=r"cannot send its batch.*num_workers=0"):
        next(iter(loader))


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the collator is not importable by a spawned process"
)
def test_loader_of_the_user_batch_that_a_worker_cannot_send_raises():
    loader = DataLoader(
        list(range(8)), batch_size=4, collate_fn=lambda samples: threading.Lock(), **ONE_WORKER
    )
    collate = loader.collate_fn
    with pytest.raises(TypeError, match=r"cannot send its batch.*num_workers=0"):
        next(iterate(loader))
    assert loader.collate_fn is collate


class LoaderOfPairs(DataLoader):
    def __iter__(self):
        batches = super().__iter__()
        return zip(batches, batches, strict=True)


def test_loader_iterated_by_the_user_equals_the_loader():
    batches = list(iterate(LoaderOfPairs(list(range(4)))))
    assert [[batch.tolist() for batch in pair] for pair in batches] == [[[0], [1]], [[2], [3]]]


@pytest.mark.parametrize("patch", ["class", "subclass"])
def test_loaders_are_rebuilt_unless_torch_is_patched(monkeypatch, patch):
    """Tools that measure programs patch the methods of `DataLoader` itself."""
    original = DataLoader.__iter__
    patched = DataLoader if patch == "class" else LoaderOfPairs
    monkeypatch.setattr(patched, "__iter__", lambda loader: original(loader))

    assert can_be_rebuilt(DataLoader(list(range(4))))
    assert not can_be_rebuilt(LoaderOfPairs(list(range(4))))


class NestedFetcher(fetch._MapDatasetFetcher):
    """Reads batches of several bins, as packing libraries set it."""

    def fetch(self, possibly_batched_index):
        read = super().fetch
        if isinstance(possibly_batched_index[0], list):
            return [read(indices) for indices in possibly_batched_index]
        return read(possibly_batched_index)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_are_read_by_the_fetcher_that_a_library_sets(monkeypatch, workers):
    monkeypatch.setattr(fetch, "_MapDatasetFetcher", NestedFetcher)
    batches = [[[0, 1], [2]], [3, 4]]
    loader = DataLoader(range(5), batch_sampler=batches, collate_fn=list, num_workers=workers)
    assert list(iterate(loader)) == list(loader) == batches


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the collator is not importable by a spawned process"
)
def test_loader_sends_batches_of_many_kinds():
    def collate(samples):
        return Holds(
            [torch.tensor(samples), np.array(samples), "text", {"set": {1}, "bytes": b"x"}, print]
        )

    loader = build_loader(list(range(8)), batch_size=4, collate_fn=collate, **ONE_WORKER)
    tensor, array, *others = next(iter(loader)).value
    assert tensor.tolist() == array.tolist() == [0, 1, 2, 3]
    assert others == ["text", {"set": {1}, "bytes": b"x"}, print]


def shuffled(**options):
    data = range(12)
    loader = build_loader(data, batch_size=2, sampler=RandomSampler(data), **options)
    loader.tracked = True
    return loader


def epochs_of(loader, count):
    return [[batch.tolist() for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("batches_yielded", [0, 2, 6])
def test_resumed_order_is_that_of_the_seed_in_the_state(batches_yielded):
    """Another seed of the arguments does not matter."""
    whole = epochs_of(shuffled(seed=3), 2)
    first = shuffled(seed=3)
    list(itertools.islice(first, batches_yielded))
    resumed = shuffled(seed=4)
    resumed.load_state_dict(first.state_dict())
    assert epochs_of(resumed, 1) == [whole[0][batches_yielded:] or whole[1]]


def test_state_before_the_resumed_iteration_is_the_loaded_one():
    """As where a training is interrupted again before it reads a batch."""
    first = shuffled(seed=3)
    list(itertools.islice(first, 2))
    state = first.state_dict()
    resumed = shuffled(seed=3)
    resumed.load_state_dict(state)
    again = shuffled(seed=3)
    again.load_state_dict(resumed.state_dict())
    assert epochs_of(again, 2) == epochs_of(resumed, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="spawned workers take seconds")
@pytest.mark.parametrize("tracked", [False, True])
def test_skip_with_persistent_workers(tracked):
    """Other workers read the rest of an epoch; the persistent ones read the whole epochs around
    it.
    """
    whole = epochs_of(shuffled(seed=3), 4)
    options = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = shuffled(seed=3, **options)
    loader.tracked = tracked
    read = epochs_of(loader, 1)
    loader.skip(3)
    read += epochs_of(loader, 2)
    loader.shut_down_workers()
    assert read == [whole[0], whole[1][3:], whole[2]]


class InEpoch(Dataset):
    """Samples that are the number of the epoch, and whether the worker's dataset is this one."""

    def __init__(self):
        self.epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.epoch, get_worker_info().dataset is self


class TableInEpoch(InEpoch):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class StreamInEpoch(InEpoch, IterableDataset):
    def __iter__(self):
        # Read when the iteration begins, not with its first sample.
        return iter([(self.epoch, get_worker_info().dataset is self)] * 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="spawned workers take seconds")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("sharing", [{}, {"rank": 1, "world_size": 2}], ids=["alone", "shared"])
@pytest.mark.parametrize("data", [InEpoch, TableInEpoch, StreamInEpoch])
def test_set_epoch_reaches_workers(data, sharing, persistent):
    workers = {
        "num_workers": 1,
        "persistent_workers": persistent,
        "multiprocessing_context": "fork",
    }
    loader = build_loader(
        data(), batch_size=2, collate_fn=lambda samples: samples, **workers, **sharing
    )
    is_wrapped = data is StreamInEpoch and bool(sharing)
    batches_of_epochs = [list(loader) for _ in range(3)]
    loader.shut_down_workers()
    for epoch, batches in enumerate(batches_of_epochs):
        assert batches
        for batch in batches:
            assert batch == [(epoch, not is_wrapped)] * 2


def test_set_epoch_does_not_reach_persistent_workers_of_the_reference():
    """Negative control: there each epoch reads what the first one read."""
    workers = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = prepared(InEpoch(), 2, **workers, collate_fn=lambda samples: torch.tensor(samples))
    epochs = [[int(row[0]) for batch in loader for row in batch] for _ in range(2)]
    loader.base_dataloader._iterator._shutdown_workers()
    assert epochs == [[0] * 4, [0] * 4]


def test_loader_of_similar_lengths_keeps_its_order_in_other_batches():
    """Samples are grouped as before, so that none is left out of the epoch."""
    lengths = [1 + index * 7 % 11 for index in range(64)]

    def make(batch_size):
        sampler = LengthGroupedSampler(batch_size, lengths=lengths)
        loader = build_loader(range(64), batch_size=batch_size, sampler=sampler)
        loader.tracked = True
        return loader

    torch.manual_seed(3)
    order = torch.cat(list(make(2))).tolist()
    torch.manual_seed(3)
    loader = make(2)
    batches = iter(loader)
    consumed = torch.cat([next(batches) for _ in range(6)]).tolist()

    resumed = make(4)
    resumed.load_state_dict(with_other_batches(loader.state_dict(), 3))
    assert consumed + torch.cat(list(resumed)).tolist() == order
