"""Samples and their order in every process equal those of accelerate."""

import itertools
from types import SimpleNamespace

import accelerate.data_loader as reference
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from transformers import trainer_pt_utils

from lightrainer.lightning_modules.data.batch_samplers import ShardedBatchSampler, SkipBatchSampler
from lightrainer.lightning_modules.data.length_grouping import LengthGroupedSampler
from lightrainer.lightning_modules.data.samplers import (
    IterableShard,
    SeedableRandomSampler,
    SharedOrderSampler,
)

EVERY_SHARDING = list(itertools.product(range(26), range(1, 5), (False, True), (False, True)))
"""Length of the dataset, batch size, drop_last, even_batches."""


def reference_batches(sampler, batch_size, drop_last, even_batches, rank, world_size):
    batches = BatchSampler(sampler, batch_size, drop_last)
    if world_size == 1:  # accelerate leaves the loader of a single process as it is
        return batches
    return reference.BatchSamplerShard(batches, world_size, rank, even_batches=even_batches)


def our_batches(sampler, batch_size, drop_last, even_batches, rank, world_size, **options):
    options |= {"rank": rank, "world_size": world_size, "even_batches": even_batches}
    return ShardedBatchSampler(sampler, batch_size, drop_last, **options)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sharded_batches_equal_reference(world_size):
    """Indices and lengths, for every rank, and again in a second epoch of the same sampler."""
    for (count, *options), rank in itertools.product(EVERY_SHARDING, range(world_size)):
        case = (count, *options, rank)
        expected = reference_batches(SequentialSampler(range(count)), *options, rank, world_size)
        ours = our_batches(SequentialSampler(range(count)), *options, rank, world_size)
        expected_batches = list(expected)
        assert list(ours) == expected_batches, case
        assert list(ours) == expected_batches, case
        assert len(ours) == len(expected), case


def of_epoch(sampler, epoch):
    sampler.set_epoch(epoch)
    return sampler


def generator(epoch):
    return torch.Generator().manual_seed(epoch)


LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6]

SHUFFLED = {
    "seeded": lambda epoch: (
        of_epoch(reference.SeedableRandomSampler(range(21), data_seed=5), epoch),
        of_epoch(SeedableRandomSampler(range(21), seed=5), epoch),
    ),
    "plain": lambda epoch: [RandomSampler(range(21), generator=generator(epoch)) for _ in range(2)],
    "agreed": lambda epoch: (
        RandomSampler(range(21), generator=generator(epoch)),
        SharedOrderSampler(RandomSampler(range(21), generator=generator(epoch))),
    ),
    "grouped": lambda epoch: (
        trainer_pt_utils.LengthGroupedSampler(2, lengths=LENGTHS, generator=generator(epoch)),
        LengthGroupedSampler(2, lengths=LENGTHS, generator=generator(epoch)),
    ),
}


@pytest.mark.parametrize("kind", SHUFFLED)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_sharded_batches_follow_the_order_of_the_sampler(kind, world_size):
    """The last round is filled up from the start of this epoch's order; a position is reached
    without reading.
    """
    for drop_last, even_batches, rank, epoch in itertools.product(
        (False, True), (False, True), range(world_size), range(2)
    ):
        theirs, sampler = SHUFFLED[kind](epoch)
        expected = list(reference_batches(theirs, 2, drop_last, even_batches, rank, world_size))
        ours = our_batches(sampler, 2, drop_last, even_batches, rank, world_size)
        assert list(ours) == expected
        ours = our_batches(SHUFFLED[kind](epoch)[1], 2, drop_last, even_batches, rank, world_size)
        assert list(SkipBatchSampler(ours, 2)) == expected[2:]


@pytest.mark.parametrize(
    "options", [{}, {"replacement": True}, {"replacement": True, "num_samples": 40}]
)
@pytest.mark.parametrize("count", [1, 10, 100])
def test_random_order_equals_reference(count, options):
    """Several epochs in turn, then an earlier one again; the global generator is left alone."""
    theirs = reference.SeedableRandomSampler(range(count), data_seed=11, **options)
    ours = SeedableRandomSampler(range(count), seed=11, **options)
    before = torch.get_rng_state()
    for epoch in (0, 1, 2, 3, 7, 1):
        theirs.set_epoch(epoch)
        ours.set_epoch(epoch)
        expected = list(theirs)
        assert list(ours) == expected
        assert list(ours) == expected, "a second pass over the same epoch"
    assert len(ours) == len(theirs)
    assert torch.equal(torch.get_rng_state(), before)


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count
        self.read = 0

    def __iter__(self):
        for index in range(self.count):
            self.read += 1
            yield index


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_split_batches_equal_reference(world_size):
    """Of every batch each rank gets its part, filled up from the first batch."""
    for count, share, drop_last, even_batches in itertools.product(
        range(26), (1, 2, 3), (False, True), (False, True)
    ):
        for rank in range(world_size):
            batches = BatchSampler(range(count), share * world_size, drop_last)
            options = {"split_batches": True, "even_batches": even_batches}
            expected = reference.BatchSamplerShard(batches, world_size, rank, **options)
            ours = our_batches(
                range(count),
                share * world_size,
                drop_last,
                even_batches,
                rank,
                world_size,
                split_batches=True,
            )
            assert list(ours) == list(expected), (count, share, drop_last, even_batches, rank)
            assert len(ours) == len(list(ours)), (
                "the reference counts batches that a rank does not get"
            )
            assert ours.batch_size == expected.batch_size


def dispatched(count, batch_size, world_size, drop_last, split_batches=False, map_style=False):
    """Return the batches that accelerate's main process sends, by its own code as process 0 of
    several.

    Returns:
        A list of batches for each rank, and the remainder.
    """

    def cut(batch, where, process_index, num_processes):
        if (where.start, where.stop) == (0, num_processes) and not filler and not drop_last:
            filler.append(batch[where])  # what the last round is filled up with
            return filler[0]
        size = where.stop - where.start
        return [batch[rank * size : (rank + 1) * size].tolist() for rank in range(num_processes)]

    filler = []
    data = {"dataset": Stream(count), "batch_size": batch_size, "drop_last": drop_last}
    if map_style:
        data = {
            "dataset": range(count),
            "batch_sampler": BatchSampler(range(count), batch_size, drop_last),
        }
    loader = reference.DataLoaderDispatcher(
        **data, split_batches=split_batches, _drop_last=drop_last, slice_fn=cut
    )
    loader.state = SimpleNamespace(
        process_index=0, num_processes=world_size, device=torch.device("cpu")
    )
    rounds = list(loader)
    return [[batches[rank] for batches in rounds] for rank in range(world_size)], loader.remainder


def our_shares(count, batch_size, world_size, drop_last, **options):
    shards = [
        IterableShard(
            Stream(count),
            batch_size,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            **options,
        )
        for rank in range(world_size)
    ]
    batches = [
        [batch.tolist() for batch in DataLoader(shard, batch_size=shard.samples_per_rank)]
        for shard in shards
    ]
    return batches, {shard.last_round for shard in shards}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_shares_of_a_stream_equal_reference(world_size, drop_last, split):
    """Batches of every rank, and how many samples of the last round are no filling.

    A stream with fewer samples than processes is left out: the reference gives some of them an
    empty batch. With drop_last, one shorter than a round is an error in the reference.
    """
    for count, batch_size in itertools.product(range(1, 20), range(1, 5)):
        if count < (world_size * batch_size if drop_last else world_size):
            continue
        case = (count, batch_size * world_size if split else batch_size, world_size, drop_last)
        expected, remainder = dispatched(*case, split_batches=split)
        ours, last_round = our_shares(*case, split_batches=split)
        assert ours == expected, case
        assert drop_last or last_round == {remainder}, case


@pytest.mark.parametrize("split_batches", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_rounds_that_one_process_reads_for_all_equal_reference(
    world_size, drop_last, split_batches
):
    """The batches of all ranks in turn; map-style, so that what process 0 reads for the others
    is known beforehand.
    """
    for count, share in itertools.product(range(1, 20), range(1, 4)):
        if count < (world_size * share if drop_last else world_size):
            continue
        size = share * world_size if split_batches else share
        expected, _ = dispatched(count, size, world_size, drop_last, split_batches, map_style=True)
        options = {"rank": None, "world_size": world_size, "split_batches": split_batches}
        ours = ShardedBatchSampler(range(count), size, drop_last, **options)
        in_turn = list(ours)
        assert [in_turn[rank::world_size] for rank in range(world_size)] == expected, (
            count,
            share,
        )
        assert len(ours) == len(in_turn)
        assert list(ours) == in_turn


@pytest.mark.parametrize("split_batches", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_whole_rounds_of_a_stream_equal_reference(drop_last, split_batches):
    """Processes that read for themselves fill the last round with the start of the stream."""
    for count, share, world_size in itertools.product(range(1, 20), range(1, 4), (2, 3)):
        size = share * world_size if split_batches else share
        shards = [
            reference.IterableDatasetShard(
                Stream(count), size, drop_last, world_size, rank, split_batches
            )
            for rank in range(world_size)
        ]
        expected = [
            [batch.tolist() for batch in DataLoader(shard, batch_size=share)] for shard in shards
        ]
        ours, _ = our_shares(
            count, size, world_size, drop_last, split_batches=split_batches, fill_round=True
        )
        assert ours == expected, (count, share, world_size)


class SizedStream(Stream):
    def __len__(self):
        return self.count


@pytest.mark.parametrize(
    "options", [{}, {"drop_last": True}, {"fill_round": True}, {"split_batches": True}], ids=str
)
def test_share_of_a_stream_knows_its_length_where_the_stream_does(options):
    for count, rank in itertools.product(range(20), range(2)):
        shard = IterableShard(SizedStream(count), 4, rank=rank, world_size=2, **options)
        assert len(shard) == len(list(shard)), count
    with pytest.raises(TypeError, match="len"):
        len(IterableShard(Stream(3), 4, rank=0, world_size=2))


def test_stream_with_fewer_samples_than_processes_is_repeated():
    """No process gets an empty batch."""
    batches, last_round = our_shares(2, 3, 4, drop_last=False)
    assert batches == [[[0]], [[1]], [[0]], [[1]]]
    assert last_round == {2}


def test_stream_is_read_no_further_than_needed():
    """A stream may be endless: a round is read when its first sample is asked for."""
    shard = IterableShard(Stream(100), 2, rank=1, world_size=2)
    samples = iter(shard)
    assert shard.dataset.read == 0
    assert [next(samples), next(samples)] == [2, 3]
    assert shard.dataset.read == 4


class DrawingStream(IterableDataset):
    """Draws its samples from its own generator."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        return iter(torch.randint(1000, (8,), generator=self.generator).tolist())


def test_generator_of_a_stream_is_seeded_with_the_epoch():
    """All processes read the same stream from any generators, as with accelerate's
    IterableDatasetShard.
    """
    for epoch in range(3):
        shards = [
            IterableShard(DrawingStream(rank), 2, rank=rank, world_size=2) for rank in range(2)
        ]
        shard_of = reference.IterableDatasetShard
        theirs = [
            shard_of(DrawingStream(rank), 2, num_processes=2, process_index=rank)
            for rank in range(2)
        ]
        for shard in shards + theirs:
            shard.set_epoch(epoch)
        assert [list(shard) for shard in shards] == [list(shard) for shard in theirs]


def test_stream_that_knows_epochs_seeds_itself():
    stream = DrawingStream(5)
    stream.set_epoch = lambda epoch: None
    shard = IterableShard(stream, 8, rank=0, world_size=1)
    shard.set_epoch(1)
    assert list(shard) == list(DrawingStream(5))
