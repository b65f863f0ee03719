"""Samplers with the same order in every process, and shards of streams, as in the reference."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, Sampler, get_worker_info

from ..common.collectives import broadcast_from_rank_zero
from .batch_samplers import even_shares, share_of
from .order import in_sequence, random_order


class SeedableRandomSampler(RandomSampler):
    """As `accelerate.data_loader.SeedableRandomSampler`: the order depends on the seed and the
    epoch alone.

    Args:
        data_source: the dataset, anything with a length.
        seed: seed of epoch 0; epoch `e` is drawn with `seed + e`.
        replacement: draw with replacement.
        num_samples: number of draws, by default the length of the dataset.
    """

    def __init__(
        self,
        data_source: Sized,
        *,
        seed: int,
        replacement: bool = False,
        num_samples: int | None = None,
    ):
        super().__init__(data_source, replacement, num_samples)
        self.seed = seed
        self.epoch = 0

    @classmethod
    def like(cls, sampler: RandomSampler, seed: int) -> SeedableRandomSampler:
        """Return the seedable counterpart of a plain `RandomSampler`."""
        # however many there are in a later epoch
        takes_all = sampler.num_samples == len(sampler.data_source)
        num_samples = None if takes_all else sampler.num_samples
        return cls(
            sampler.data_source,
            seed=seed,
            replacement=sampler.replacement,
            num_samples=num_samples,
        )

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch at the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        if self.replacement or self.num_samples != len(self.data_source):
            return iter(
                RandomSampler(self.data_source, self.replacement, self.num_samples, generator)
            )
        return in_sequence(random_order(self.num_samples, generator))

    def state_dict(self) -> dict[str, int]:
        """Return the seed, so that an epoch is finished in its order where the arguments have
        another one by then.
        """
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the seed."""
        self.seed = state["seed"]


class IterableShard(IterableDataset):
    """This process's shard of a stream: every process reads all of it and keeps its part of each
    round.

    The stream must be the same on every process: either it has `set_epoch`, or an attribute
    `generator` (a `torch.Generator`), which is seeded with the epoch; the documents of the
    reference ask for the same. The last, shorter round is split evenly, filled up with the first
    samples of the stream, as the reference does it where its first process reads for all; with
    `fill_round` it is filled up to a whole one, as where each reads for itself.

    Args:
        dataset: the stream.
        batch_size: samples per process and step; with `split_batches`, of all processes together.
        rank: index of this process.
        world_size: number of processes.
        drop_last: leave out the last, shorter round.
        split_batches: a round is one batch, of which every process gets a part.
        fill_round: make the last round as long as all others.

    Attributes:
        last_round: samples in the round before its filling, also where a worker process reads; -1
            before the first, and with several workers, each of which has a last round of its own.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        drop_last: bool = False,
        split_batches: bool = False,
        fill_round: bool = False,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.share = share_of(batch_size, world_size, split_batches)
        self.fill_round = fill_round
        self.epoch = 0
        # a worker writes it, its parent reads it
        self._last_round = torch.tensor(-1, device="cpu").share_memory_()

    @property
    def last_round(self) -> int:
        """Return the samples in the round before its filling; see the class."""
        return int(self._last_round)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, in the stream as well if it has `set_epoch`."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        rounds, rest = divmod(len(self.dataset), self.share * self.world_size)
        if self.drop_last or rest == 0:
            return rounds * self.share
        return rounds * self.share + (
            self.share if self.fill_round else -(-rest // self.world_size)
        )

    def __iter__(self) -> Iterator[Any]:
        self._seed_generator()
        size = self.share * self.world_size
        start: list[Any] = []
        workers = get_worker_info()
        alone = workers is None or workers.num_workers == 1
        stream = iter(self.dataset)
        while chunk := list(itertools.islice(stream, size)):
            start = start or chunk
            self._last_round.fill_(len(chunk) if alone else -1)
            if len(chunk) < size and self.drop_last:
                return
            if self.fill_round:
                chunk += itertools.islice(itertools.cycle(start), size - len(chunk))
            yield from even_shares(chunk, start[: self.world_size], self.world_size)[self.rank]

    def _seed_generator(self) -> None:
        generator = getattr(self.dataset, "generator", None)
        if not hasattr(self.dataset, "set_epoch") and isinstance(generator, torch.Generator):
            generator.manual_seed(self.epoch)


class FilesInTurn(IterableDataset):
    """A stream of several files, in the order in which processes trained it that each read their
    share of the files.

    Args:
        dataset: a `datasets.IterableDataset`.
        processes: among which its files were shared out.
        batch_size: samples that each of them took at a time.
    """

    def __init__(self, dataset: Any, processes: int, batch_size: int) -> None:
        self.shares = [
            dataset.shard(num_shards=processes, index=index) for index in range(processes)
        ]
        self.batch_size = batch_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all shares."""
        for share in self.shares:
            share.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        streams = [iter(share) for share in self.shares]
        while True:
            batches = [list(itertools.islice(stream, self.batch_size)) for stream in streams]
            if not all(batches):  # all processes stop where the first one ends
                return
            yield from itertools.chain.from_iterable(batches)


def shared_in_turn(dataset: Any, processes: int, batch_size: int) -> Any:
    """Return a stream, or this process's share of it, as `FilesInTurn`."""
    if not isinstance(dataset, IterableShard):
        return FilesInTurn(dataset, processes, batch_size)
    share = copy.copy(dataset)
    share.dataset = FilesInTurn(dataset.dataset, processes, batch_size)
    return share


class SharedOrderSampler(Sampler[int]):
    """Sampler with the order that process 0 draws, on every process.

    Each process advances its own generator as if it were alone. All processes have to iterate
    together.

    Args:
        sampler: has an attribute `generator`, one on the CPU; None stands for torch's global one.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        own = self.sampler.generator
        state = torch.get_rng_state() if own is None else own.get_state()
        of_first_process = broadcast_from_rank_zero(state)
        order = list(self.sampler)

        # The order of process 0; this process's generator has been advanced.
        if not torch.equal(state, of_first_process):
            self.sampler.generator = torch.Generator()
            self.sampler.generator.set_state(of_first_process)
            order = list(self.sampler)
            self.sampler.generator = own
        yield from order
