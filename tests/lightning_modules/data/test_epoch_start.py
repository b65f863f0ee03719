"""A loader that knows nothing about itself is brought to where it was by its generators."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader

from lightrainer.lightning_modules.data.loader_state import EpochStart, begin_after, begin_again


def loader(own: bool) -> DataLoader:
    return DataLoader(range(20), shuffle=True, generator=torch.Generator().manual_seed(3) if own else None)


def order(of) -> list[int]:
    return [int(batch) for batch in of]


def scramble() -> None:
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)


def test_an_order_comes_again():
    """The order is the same, drawn from the global generator or from one of its own, and in a fresh loader."""
    for own in (False, True):
        first = loader(own)
        order(first)  # not the first epoch
        beginning = EpochStart(first)
        expected = order(first)
        drawn = random.random(), np.random.rand()
        state = beginning.state_dict()
        scramble()
        fresh = loader(own)
        assert order(fresh) != expected
        begin_again(fresh, state)
        assert order(fresh) == expected
        assert (random.random(), np.random.rand()) == drawn


def test_the_next_order_comes_too():
    """With a generator of its own, from where that was when the state was taken."""
    first = loader(own=True)
    beginning = EpochStart(first)
    order(first)
    state = beginning.state_dict()
    expected = order(first)
    fresh = loader(own=True)
    assert order(fresh) != expected
    begin_after(fresh, state)
    assert order(fresh) == expected
