"""The order of an epoch: that of torch and of accelerate, in one array."""

import tracemalloc

import numpy as np
import pytest
import torch

from lightrainer.lightning_modules.data.batch_samplers import ShardedBatchSampler, SkipBatchSampler
from lightrainer.lightning_modules.data.length_grouping import LengthGroupedSampler
from lightrainer.lightning_modules.data.order import in_sequence, random_order
from lightrainer.lightning_modules.data.samplers import SeedableRandomSampler

MILLION = 1_000_000


def seeded():
    return torch.Generator().manual_seed(5)


COUNTS = [1, 2, 3, 10, 2**14 - 1, 2**14, 2**14 + 1, 5 * 2**14 + 7]


@pytest.mark.parametrize("count", [0, *COUNTS, MILLION])
def test_random_order_equals_randperm(count):
    ours = seeded()
    theirs = seeded()
    order = random_order(count, ours)
    assert order.dtype == np.int32
    assert (
        order.tolist()
        == list(in_sequence(order))
        == torch.randperm(count, generator=theirs).tolist()
    )
    assert torch.equal(ours.get_state(), theirs.get_state())


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
    "grouped": lambda: LengthGroupedSampler(8, lengths=LENGTHS),
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_order_is_never_a_list(kind, world_size):
    """The numbers of a list take 40 bytes a sample; the memory of torch, 4 bytes a sample, is
    not counted here.
    """

    def make():
        batches = ShardedBatchSampler(
            SAMPLERS[kind](), 8, False, rank=world_size - 1, world_size=world_size
        )
        return SkipBatchSampler(batches, len(batches) // 2)

    assert peak_of(make) < 10 * MILLION
