"""Custom batch samplers and loaders are sharded as by `accelerate`."""

import itertools

import accelerate.data_loader as reference
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from lightrainer.lightning_modules.data.batch_samplers import ShardedBatchSampler, last_round_filled
from lightrainer.lightning_modules.data.loaders import EpochLoader, rebuild_loader


class Grouped(BatchSampler):
    """Draws a new order in each epoch, as those of sentence-transformers do."""

    def __init__(self, sampler, batch_size, drop_last):
        super().__init__(sampler, batch_size, drop_last)
        self.epoch = 0
        self.epochs = []

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.epochs.append(epoch)

    def __iter__(self):
        order = [list(batch) for batch in super().__iter__()]
        shift = self.epoch % max(len(order), 1)
        yield from (
            [*order[shift:-1], *order[:shift], *order[-1:]] if len(order) > shift + 1 else order
        )


class Lengths:
    """Says nothing about the size of its batches."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def shares(make, given, world_size, **ways):
    return [
        [list(batch) for batch in make(given, rank, world_size, **ways)]
        for rank in range(world_size)
    ]


def theirs(given, rank, world_size, **ways):
    return reference.BatchSamplerShard(given, num_processes=world_size, process_index=rank, **ways)


def ours(given, rank, world_size, **ways):
    return ShardedBatchSampler(given, rank=rank, world_size=world_size, **ways)


@pytest.mark.parametrize("even_batches", [True, False])
@pytest.mark.parametrize("split_batches", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_are_sharded_as_in_the_reference(even_batches, split_batches, drop_last):
    """Every number of samples up to several rounds, for two and for three processes."""
    options = {"even_batches": even_batches, "split_batches": split_batches}
    for world_size, count in itertools.product((2, 3), range(1, 28)):
        sampler = BatchSampler(range(count), 6 if split_batches else 2, drop_last)
        expected = shares(theirs, sampler, world_size, **options)
        actual = shares(ours, sampler, world_size, **options)
        assert actual == [[batch for batch in share if batch] for share in expected], (
            world_size,
            count,
        )
        if even_batches:
            assert [
                len(ours(sampler, rank, world_size, **options)) for rank in range(world_size)
            ] == list(map(len, actual))


@pytest.mark.parametrize("count", range(1, 8))
def test_batches_of_unknown_size_are_sharded_whole(count):
    sampler = Lengths([[number] * (1 + number % 3) for number in range(count)])
    assert shares(ours, sampler, 3) == shares(theirs, sampler, 3)


def test_batch_sampler_keeps_a_short_batch_in_the_middle():
    """Samplers over several datasets give one at the end of each; the reference leaves out that
    whole round.
    """
    sampler = Lengths([[0, 1], [2], [3, 4], [5, 6]])
    sampler.batch_size, sampler.drop_last = 2, False
    assert shares(ours, sampler, 2) == [[[0, 1], [3, 4]], [[2], [5, 6]]]
    assert shares(theirs, sampler, 2) == [[[3, 4]], [[5, 6]]]  # the control


def test_batch_sampler_of_one_process_yields_all_batches():
    sampler = BatchSampler(range(5), 2, False)
    assert shares(ours, sampler, 1) == [[[0, 1], [2, 3], [4]]]
    assert list(ShardedBatchSampler(sampler, rank=None, world_size=2)) == [[0, 1], [2, 3], [4], [0]]


DATA = TensorDataset(torch.arange(23))
LOADERS = {
    "shuffled": lambda: DataLoader(DATA, batch_size=4, shuffle=True),
    "in order, cut": lambda: DataLoader(DATA, batch_size=4, drop_last=True),
    "batches of torch": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False)
    ),
    "custom batches": lambda: DataLoader(
        DATA, batch_sampler=Grouped(SequentialSampler(DATA), 4, False)
    ),
    "shuffled custom batches": lambda: DataLoader(
        DATA, batch_sampler=Grouped(RandomSampler(DATA), 4, False)
    ),
}


def prepared(loader, rank=0, world_size=1):
    options = {
        "num_processes": world_size,
        "process_index": rank,
        "use_seedable_sampler": True,
        "data_seed": 5,
    }
    return reference.prepare_data_loader(loader, put_on_device=False, **options)


def trace(make, loader, epochs=3, **processes):
    torch.manual_seed(23)
    rebuilt, records = make(loader, **processes), []
    for _ in range(epochs):
        for (batch,) in rebuilt:
            ends = (
                rebuilt.end_of_loader
                if isinstance(rebuilt, EpochLoader)
                else rebuilt.end_of_dataloader
            )
            records.append(
                (batch.tolist(), ends, rebuilt.remainder if ends else None, torch.rand(1).item())
            )
    return records


@pytest.mark.parametrize("name", LOADERS)
def test_rebuilt_loader_equals_the_reference(name):
    """Batches, random numbers and the end-of-loader attributes, over three epochs.

    With several processes only over the first epoch: afterwards the reference does not tell a batch
    sampler its epoch.
    """
    anew = lambda loader, **processes: rebuild_loader(loader, seed=5, **processes)
    assert trace(anew, LOADERS[name]()) == trace(prepared, LOADERS[name]())
    for rank in (0, 1) if name != "shuffled custom batches" else ():
        processes = {"rank": rank, "world_size": 2}
        assert trace(anew, LOADERS[name](), 1, **processes) == trace(
            prepared, LOADERS[name](), 1, **processes
        )


def test_batch_samplers_are_told_their_epoch():
    """In one process and in several."""
    for world_size in (1, 2):
        sampler = Grouped(SequentialSampler(DATA), 4, False)
        loader = rebuild_loader(DataLoader(DATA, batch_sampler=sampler), world_size=world_size)
        orders = [[batch[0].tolist() for batch in loader] for _ in range(2)]
        assert orders[0] != orders[1]
        assert sampler.epochs[-1] == 1


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("seen", [1, 3])
def test_batch_sampler_position_is_restored(name, seen):
    """Restored in the middle of the second epoch, another loader continues with the same
    batches.
    """

    def make():
        torch.manual_seed(23)
        loader = rebuild_loader(LOADERS[name](), seed=5)
        loader.tracked = True
        return loader

    first = make()
    list(first)
    batches = iter(first)
    for _ in range(seen):
        next(batches)
    state = first.state_dict()
    expected = [batch[0].tolist() for batch in batches]
    again = make()
    again.load_state_dict(state)
    assert [batch[0].tolist() for batch in again] == expected
    assert expected
    assert state["handed_out"] == seen
    assert not state["ended"]


@pytest.mark.parametrize("even_batches", [False, True])
def test_last_round_filled_restores_the_sampler(even_batches):
    sampler = ShardedBatchSampler(
        range(5), 2, False, rank=0, world_size=2, even_batches=even_batches
    )
    with last_round_filled(sampler), last_round_filled(None):
        assert sampler.even_batches
    assert sampler.even_batches is even_batches
