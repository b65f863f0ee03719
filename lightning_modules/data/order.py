"""Order of the samples of an epoch: one array of 4 bytes a sample, drawn as far as it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler

CHUNK = 2**14
"""Samples that are drawn, or made Python numbers, at a time."""

DRAWN_AT_ONCE = (2**32 - 1) // 20
"""Number of samples from which `torch.randperm` takes 64 bits a sample, and settles the first sample last."""


class Order(NamedTuple):
    """Order of an epoch.

    Attributes:
        values: the indices of the samples, or whatever a sampler gives.
        draw: makes the first `stop` values final; None if all of them are.
    """

    values: np.ndarray
    draw: Callable[[int], None] | None = None

    def in_sequence(self) -> Iterator[int]:
        """Yield the values as Python numbers."""
        for start in range(0, len(self.values), CHUNK):
            if self.draw is not None:
                self.draw(start + CHUNK)
            yield from self.values[start : start + CHUNK].tolist()


class OrderedSampler(Sampler[int]):
    """Sampler whose order of an epoch is an array."""

    def epoch_order(self) -> Order:
        """Draw the order of the next epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return self.epoch_order().in_sequence()


def order_of(sampler: Any) -> Order | None:
    """Draw the order of a sampler's next epoch; None if it has to be read sample by sample."""
    if isinstance(sampler, OrderedSampler) and type(sampler).__iter__ is OrderedSampler.__iter__:
        return sampler.epoch_order()
    if type(sampler) is not RandomSampler or not is_permutation(sampler):
        return None
    count, generator = sampler.num_samples, sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        return random_order(count, torch.Generator().manual_seed(seed))
    order = random_order(count, generator)
    for _ in range(2):  # torch draws a second order, of which it takes nothing
        _advance(generator, count)
    return order


def is_permutation(sampler: RandomSampler) -> bool:
    """Return whether a sampler gives each sample once."""
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def random_order(count: int, generator: torch.Generator) -> Order:
    """Return the order of `torch.randperm(count, generator=generator)`, drawn as far as it is read.

    Args:
        count: number of samples.
        generator: gives the order by its present state; it stays as it is.
    """
    own = torch.Generator()
    own.set_state(generator.get_state())
    if count >= DRAWN_AT_ONCE:
        return Order(torch.randperm(count, generator=own, dtype=index_type(count), device="cpu").numpy())
    shuffle = _Shuffle(count, own)
    return Order(shuffle.values, shuffle.draw)


def index_type(count: int) -> torch.dtype:
    """Return the type of an index of so many samples."""
    return torch.int32 if count < 2**31 else torch.int64


class _Shuffle:
    """Shuffle of Fisher and Yates as in `torch.randperm`, a chunk at a time.

    Sample `i` changes places with a random one of those from `i` on, after which position `i` is final.
    """

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.values = np.arange(count, dtype=np.int32)
        self.generator = generator
        self._final = 0

    def draw(self, stop: int) -> None:
        """Make the first `stop` values final."""
        while self._final < min(stop, len(self.values)):
            start, count = self._final, len(self.values)
            own = np.arange(start, min(start + CHUNK, count))
            others = own + _random_numbers(self.generator, len(own)) % (count - own)
            self._exchange(start, others)
            self._final += len(own)

    def _exchange(self, start: int, others: np.ndarray) -> None:
        """Exchange positions `start`, `start + 1`, ... with those in `others`, as if one after the other."""
        values = self.values
        dependent = others < start + len(others)
        dependent[others[dependent] - start] = True
        ordered = np.sort(others)
        dependent |= np.isin(others, ordered[1:][ordered[1:] == ordered[:-1]])
        apart = np.flatnonzero(~dependent)
        here, there = apart + start, others[apart]
        values[here], values[there] = values[there], values[here]
        at: Any = values.data
        in_turn = np.flatnonzero(dependent)
        for one, other in zip((in_turn + start).tolist(), others[in_turn].tolist(), strict=True):
            at[one], at[other] = at[other], at[one]


def _random_numbers(generator: torch.Generator, count: int) -> np.ndarray:
    """Draw numbers of 32 bits, in the order in which `torch.randperm` does; an even number of draws."""
    pairs = (
        torch.empty(-(-count // 2), dtype=torch.int64, device="cpu")
        .random_(-(2**63), None, generator=generator)
        .numpy()
    )
    return np.stack([pairs >> 32 & 0xFFFFFFFF, pairs & 0xFFFFFFFF], axis=1).reshape(-1)[:count]


def _advance(generator: torch.Generator, count: int) -> None:
    """Advance a generator as `torch.randperm` does for so many samples."""
    draws = 2 * count if count >= DRAWN_AT_ONCE else max(count - 1, 0)
    for start in range(0, draws - 1, CHUNK):
        _random_numbers(generator, min(CHUNK, draws - start) // 2 * 2)
    if draws % 2:
        torch.empty(1, dtype=torch.int32, device="cpu").random_(generator=generator)
