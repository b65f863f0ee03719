"""The order of an epoch: that of torch and of accelerate, in one array."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler

from lightrainer.lightning_modules.data.batch_samplers import ShardedBatchSampler
from lightrainer.lightning_modules.data.length_grouping import LengthGroupedSampler
from lightrainer.lightning_modules.data.order import CHUNK, order_of, random_order
from lightrainer.lightning_modules.data.samplers import SeedableRandomSampler, SharedOrderSampler

MILLION = 1_000_000


def seeded():
    return torch.Generator().manual_seed(5)


COUNTS = [1, 2, 3, 10, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7]


@pytest.mark.parametrize("count", [0, *COUNTS, MILLION])
def test_random_order_equals_randperm(count):
    ours = seeded()
    theirs = seeded()
    order = random_order(count, ours)
    assert order.dtype == np.int32
    assert order.tolist() == torch.randperm(count, generator=theirs).tolist()
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_plain_random_sampler_draws_its_seed_from_the_global_generator():
    torch.manual_seed(3)
    expected = list(RandomSampler(range(100))), torch.rand(1)
    torch.manual_seed(3)
    order = order_of(RandomSampler(range(100)))
    assert (order.tolist(), torch.rand(1)) == expected


@pytest.mark.parametrize("count", COUNTS)
def test_epochs_of_a_plain_random_sampler_equal_torch(count):
    """Several epochs of one generator, which is left as torch leaves it."""
    theirs, ours = (RandomSampler(range(count), generator=seeded()) for _ in range(2))
    for _ in range(3):
        assert order_of(ours).tolist() == list(theirs)
        assert torch.equal(ours.generator.get_state(), theirs.generator.get_state())


class Reversed(SeedableRandomSampler):
    def __iter__(self):
        return reversed(range(len(self)))


def test_an_override_of_a_sampler_gives_the_order():
    batches = ShardedBatchSampler(Reversed(range(5), seed=1), 2, False)
    assert list(batches) == [[4, 3], [2, 1], [0]]


def peak_of(make):
    tracemalloc.start()
    try:
        batches = make()
        assert len(next(iter(batches))) == 8
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


LENGTHS = torch.arange(MILLION, dtype=torch.int32) % 999

SAMPLERS = {
    "seeded": lambda: SeedableRandomSampler(range(MILLION), seed=0),
    "plain": lambda: RandomSampler(range(MILLION)),
    "agreed": lambda: SharedOrderSampler(RandomSampler(range(MILLION), generator=torch.Generator())),
    "grouped": lambda: LengthGroupedSampler(8, lengths=LENGTHS),
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_an_order_is_never_a_list(kind, world_size):
    """The numbers of a list take 40 bytes a sample; the memory of torch, 4 bytes a sample, is not counted here."""

    def make():
        batches = ShardedBatchSampler(SAMPLERS[kind](), 8, False, rank=world_size - 1, world_size=world_size)
        batches.skip = len(batches) // 2
        return batches

    assert peak_of(make) < 10 * MILLION
