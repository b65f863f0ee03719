"""Streams that can resume from their position, and workers that take the places of others."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from lightrainer.lightning_modules.data.dispatch import DispatchLoader
from lightrainer.lightning_modules.data.loaders import build_loader
from lightrainer.lightning_modules.data.worker_state import (
    ReportingCollate,
    ResumedWorkers,
    is_resumable,
)


def test_stream_of_rows_is_resumable_unless_it_shuffles():
    """A shuffle buffer that is refilled gives another order; a shuffled order of the files alone is
    restored like any other.
    """
    import datasets

    def rows():
        yield from ({"x": step} for step in range(20))

    stream = datasets.IterableDataset.from_generator(rows)
    assert is_resumable(stream)
    assert is_resumable(stream.map(lambda row: row).batch(2))
    shuffled = stream.shuffle(seed=1, buffer_size=4)
    assert not is_resumable(shuffled)
    assert not is_resumable(shuffled.map(lambda row: row).take(3))


@pytest.mark.parametrize("nested", ["interleave", "concatenate", "wrap"])
def test_stream_with_a_shuffling_part_is_not_resumable(nested):
    """Streams that are made of several ones, or of another in an attribute `dataset`."""
    import datasets

    class Wrapping(IterableDataset):
        def __init__(self, dataset):
            self.dataset = dataset

        def __iter__(self):
            return iter(self.dataset)

        def state_dict(self):
            return self.dataset.state_dict()

        def load_state_dict(self, state):
            self.dataset.load_state_dict(state)

    def join(stream):
        other = datasets.IterableDataset.from_generator(rows)
        if nested == "interleave":
            return datasets.interleave_datasets([other, stream], [0.5, 0.5], seed=1)
        if nested == "concatenate":
            return datasets.concatenate_datasets([other, stream])
        return Wrapping(stream)

    def rows():
        yield from ({"x": step} for step in range(20))

    stream = datasets.IterableDataset.from_generator(rows)
    assert is_resumable(join(stream))
    assert not is_resumable(join(stream.shuffle(seed=1, buffer_size=4)))


def test_resumed_workers_call_the_init_function_of_the_loader():
    seeded = ResumedWorkers(
        {"workers": 2, "last": None, "states": []}, lambda worker: torch.manual_seed(1)
    )
    draw = ReportingCollate(lambda samples: torch.rand(()).item(), 2)
    workers = {"num_workers": 2, "worker_init_fn": seeded, "multiprocessing_context": "fork"}
    first, second = DataLoader([1, 2], collate_fn=draw, **workers)
    assert first.batch == second.batch


def rows_of(batches):
    return [batch["row"].tolist() for batch in batches]


def test_stream_of_two_readers_continues_in_one_process():
    """In the order in which the two trained; also where it is interrupted once more."""

    def read(files):
        for file in files:
            yield from ({"row": 10 * file + index} for index in range(6))

    def make(**shares):
        stream = datasets.IterableDataset.from_generator(read, gen_kwargs={"files": [0, 1]})
        loader = build_loader(stream, batch_size=2, **shares)
        loader.tracked = True
        return loader

    datasets = pytest.importorskip("datasets")
    apart = [rows_of(make(rank=rank, world_size=2, dispatch_batches=False)) for rank in range(2)]
    assert apart == [[[0, 1], [2, 3], [4, 5]], [[10, 11], [12, 13], [14, 15]]]
    in_turn = [batch for pair in zip(*apart, strict=True) for batch in pair]

    state = make().state_dict() | {"handed_out": 2, "ended": False, "files_in_turn": [2, 2]}
    alone = make()
    alone.load_state_dict(state)
    batches = iter(alone)
    assert rows_of([next(batches), next(batches)]) == in_turn[2:4]
    again = make()
    again.load_state_dict(alone.state_dict())
    assert rows_of(again) == in_turn[4:]
    assert rows_of(again) == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13], [14, 15]]


class Epochs(IterableDataset):
    """Yields rows whose numbers tell the epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ({"row": 10 * self.epoch + index} for index in range(6))


def test_stream_read_by_no_worker_continues_where_workers_persist():
    """In this process; the next pass is read by the workers."""

    def make(**workers):
        loader = build_loader(Epochs(), batch_size=2, **workers)
        loader.tracked = True
        return loader

    alone = make()
    next(iter(alone))
    context = {"multiprocessing_context": "fork"}
    with_worker = make(num_workers=1, persistent_workers=True, **context)
    with_worker.load_state_dict(alone.state_dict())
    assert rows_of(with_worker) == [[2, 3], [4, 5]]
    assert rows_of(with_worker) == [[10, 11], [12, 13], [14, 15]]
    with_worker.shut_down_workers()


class Rows(IterableDataset):
    def __iter__(self):
        return iter(())


def collate_objects(samples):
    """A dict for each sample, with a row for each of its objects, as models of boxes take them."""
    labels = [{"boxes": torch.zeros(1 + index, 4)} for index in samples]
    return {"labels": labels, "pixel_values": torch.zeros(len(samples), 3)}


def collate_texts(samples):
    return {"texts": [str(index) for index in samples]}


@pytest.mark.parametrize("collate", [collate_objects, collate_texts])
def test_dispatch_loader_shares_the_last_round_of_lists_of_samples(collate):
    loader = DispatchLoader(
        Rows(),
        rank=0,
        world_size=2,
        total=None,
        samples_per_round=6,
        batch_size=3,
        collate_fn=collate,
    )
    batches = [collate(samples) for samples in ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10])]
    first, last = loader._rounds(iter(batches))
    assert first == (batches[:2], 6)

    column = next(iter(batches[0]))
    shares, count = last
    assert count == 5
    assert [len(share[column]) for share in shares] == [3, 3]
    expected = [*batches[2][column], *batches[3][column], batches[0][column][0]]
    joined = [*shares[0][column], *shares[1][column]]
    assert str(joined) == str(expected)
