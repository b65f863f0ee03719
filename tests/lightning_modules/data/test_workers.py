"""What a worker of a data loader cannot send is an error where it is waited for, and names the thing."""

import contextlib
import importlib.util
import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lightrainer.lightning_modules.data.epoch_loader import EpochLoader
from lightrainer.lightning_modules.data.lengths import sample_lengths
from lightrainer.lightning_modules.data.loaders import build_loader, rebuild_loader
from lightrainer.lightning_modules.data.workers import __spec__ as spec_of_workers
from lightrainer.lightning_modules.data.workers import iterate
from lightrainer.lightning_modules.training.accumulation import WindowLoader

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the datasets are not importable elsewhere")

# So that a loader which waits in vain is a failure here.
SECONDS = 20


class Counting(Dataset):
    def __init__(self, count: int = 8):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.sample(index)

    def sample(self, index):
        return {"x": float(index)}


class Calling(Counting):
    """Samples with a function that cannot be pickled in one of them."""

    def sample(self, index):
        return {"x": float(index), "more": [0, (lambda: 0) if index >= 4 else 1]}


class Failing(Counting):
    """Raises an exception whose class nobody else can import."""

    def sample(self, index):
        class OwnError(Exception):
            pass

        raise OwnError(f"no sample {index}")


class FailingLater(Failing):
    def sample(self, index):
        return {"x": [index]} if index < 4 else super().sample(index)


class Stream(IterableDataset):
    def __init__(self, of: Counting):
        self.of = of

    def __iter__(self):
        return (self.of[index] for index in range(8))


class Evasive:
    """Refuses to be pickled, and to be looked at."""

    def __reduce__(self):
        raise RuntimeError("not me")

    def __getattribute__(self, name):
        if name == "__dict__":
            raise RuntimeError("nor my parts")
        return object.__getattribute__(self, name)


def kept(samples):
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def loader_of(dataset, **options):
    options = {"num_workers": 1, "timeout": SECONDS, "collate_fn": kept, **options}
    return build_loader(dataset, batch_size=2, **options)


def read(loader):
    try:
        return list(iterate(loader))
    finally:
        if isinstance(loader, EpochLoader):
            loader.end_workers()


WAYS = {
    "map-style": lambda data: loader_of(data),
    "stream": lambda data: loader_of(Stream(data)),
    "several persistent": lambda data: loader_of(data, num_workers=2, persistent_workers=True),
    "out of order": lambda data: loader_of(data, num_workers=2, in_order=False),
    "told to fork": lambda data: loader_of(data, multiprocessing_context="fork"),
    "made by torch": lambda data: DataLoader(data, 2, num_workers=1, timeout=SECONDS, collate_fn=kept),
    "made by torch, dealt out": lambda data: rebuild_loader(WAYS["made by torch"](data)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_cannot_be_pickled(way):
    named = r"cannot send its batch: batch\['more'\]\[0\]\[1\] is a function \(Calling.sample.<locals>.<lambda>\)"
    with pytest.raises(TypeError, match=named):
        read(WAYS[way](Calling()))


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_that_cannot_be_pickled(way):
    # Both workers fail at once: out of order, either may be the first that is heard.
    first = "[02]" if way == "out of order" else "0"
    with pytest.raises(RuntimeError, match=rf"(?s)Caught Failing.*OwnError in DataLoader worker.*no sample {first}"):
        read(WAYS[way](Failing()))


@pytest.mark.parametrize("way", WAYS)
def test_what_can_be_sent_arrives(way):
    batches = read(WAYS[way](Counting()))
    assert sorted(value for batch in batches for value in batch["x"]) == [float(index) for index in range(8)]


def test_a_tracked_loader_whose_workers_tell_how_they_were_left():
    loader = loader_of(Calling())
    loader.track()
    windows = WindowLoader(loader, accumulation=1, batches=4, windows=4, read=lambda it, n: ([next(it)], None))
    with pytest.raises(TypeError, match=r"batch\['more'\]\[0\]\[1\] is a function"):
        list(windows)


def test_batches_before_it_arrive():
    batches = iterate(DataLoader(Calling(), 2, num_workers=1, timeout=SECONDS, collate_fn=kept))
    assert [next(batches)["x"], next(batches)["x"]] == [[0.0, 1.0], [2.0, 3.0]]
    with pytest.raises(TypeError, match="cannot send its batch"):
        next(batches)


def test_an_object_that_cannot_be_looked_at_either():
    loader = loader_of(Counting(), collate_fn=lambda samples: {"x": Evasive()})
    with pytest.raises(TypeError, match=r"Evasive.*RuntimeError: not me"):
        read(loader)


def test_indices_that_cannot_be_sent_to_a_worker():
    class Batches:
        def __iter__(self):
            yield from ((index for index in (start, start + 1)) for start in range(0, 8, 2))

        def __len__(self):
            return 4

    loader = DataLoader(Counting(), batch_sampler=Batches(), num_workers=1, timeout=SECONDS, collate_fn=kept)
    with pytest.raises(TypeError, match=r"(?s)indices cannot be sent to a worker.*batch is a generator"):
        read(loader)


@pytest.mark.parametrize("method", [None, "fork"])
def test_the_loader_is_left_as_it_was(method):
    loader = DataLoader(Counting(), 2, num_workers=1, collate_fn=kept, multiprocessing_context=method)
    given = loader.multiprocessing_context
    read(loader)
    assert loader.multiprocessing_context is given


def test_processes_that_measure_lengths(monkeypatch):
    monkeypatch.setattr("lightrainer.lightning_modules.data.lengths.WORTH_WORKERS", 1)
    with pytest.raises(RuntimeError, match=r"(?s)OwnError in DataLoader worker.*no sample 4"):
        sample_lengths(FailingLater(), "x", workers=1)


def test_a_spawned_worker():
    """A queue that travels to another Python says so too: of a function, which `contextmanager` makes of anything."""
    data = TensorDataset(torch.arange(4.0))
    loader = loader_of(data, multiprocessing_context="spawn", timeout=120, collate_fn=contextlib.contextmanager)
    with pytest.raises(TypeError, match="batch is a function"):
        read(loader)


def test_a_torch_that_calls_the_errors_of_workers_otherwise(monkeypatch):
    monkeypatch.delattr("torch._utils.ExceptionWrapper")
    workers = importlib.util.module_from_spec(spec_of_workers)
    spec_of_workers.loader.exec_module(workers)
    loader = WAYS["made by torch"](Counting())
    given = loader.multiprocessing_context
    with workers.telling_queues(loader):
        assert loader.multiprocessing_context is given
        assert len(list(loader)) == 4
