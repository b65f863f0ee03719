"""Samplers with the same order in every process, and shards of streams, as in the reference."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset, RandomSampler, Sampler, get_worker_info

from ..common.collectives import broadcast_from_rank_zero
from .batch_samplers import batch_size_of_rank, even_shares
from .order import in_sequence, random_order


class SeedableRandomSampler(RandomSampler):
    """Sample in a random order that depends on the seed and the epoch alone.

    Works like `accelerate.data_loader.SeedableRandomSampler`.

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
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - untyped in torch
            data_source, replacement, num_samples
        )
        self.seed = seed
        self.epoch = 0

    @classmethod
    def like(cls, sampler: RandomSampler, seed: int) -> SeedableRandomSampler:
        """Return the seedable counterpart of a plain `RandomSampler`."""
        # One that draws all samples keeps doing so if the dataset grows in a later epoch.
        num_samples = None
        if sampler.num_samples != len(sampler.data_source):
            num_samples = sampler.num_samples
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
        # The order of torch's sampler, as one array instead of a list of Python numbers.
        takes_each_once = self.num_samples == len(self.data_source) and not self.replacement
        if takes_each_once:
            return in_sequence(random_order(self.num_samples, generator))
        sampler = RandomSampler(self.data_source, self.replacement, self.num_samples, generator)
        return iter(sampler)

    def state_dict(self) -> dict[str, int]:
        """Return the seed: a resumed epoch keeps its order if the arguments have another seed."""
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the seed."""
        self.seed = state["seed"]


class IterableShard(IterableDataset[Any]):
    """This process's shard of a stream.

    Every process reads the whole stream and keeps its part of each round. So the stream must be the
    same on every process: either it has `set_epoch`, or an attribute `generator` (a
    `torch.Generator`), which is seeded with the epoch; transformers documents the same requirement.

    The last, shorter round is split evenly, and filled up with the first samples of the stream, as
    in transformers if the first process reads for all. With `fill_round` it is filled up to a whole
    round, as in transformers if each process reads for itself.

    Args:
        dataset: the stream.
        batch_size: samples per process and step; with `split_batches`, of all processes together.
        rank: index of this process.
        world_size: number of processes.
        drop_last: leave out the last, shorter round.
        split_batches: a round is one batch, of which every process gets a part.
        fill_round: make the last round as long as all others.

    Attributes:
        last_round: samples in the current round before it is filled up, even if a worker reads; -1
            before the first round, and with several workers, each of which has its own last round.
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
        self.samples_per_rank = batch_size_of_rank(batch_size, world_size, split_batches)
        self.fill_round = fill_round
        self.epoch = 0
        # In shared memory, because a worker writes it and its parent reads it.
        self._last_round = torch.tensor(-1, device="cpu")
        self._last_round.share_memory_()

    @property
    def last_round(self) -> int:
        """Return the samples in the round before its filling; see the class."""
        return int(self._last_round.item())

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, in the stream as well if it has `set_epoch`."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        """Count the samples of this process in an epoch, including those that fill up a round."""
        rounds, extra_samples = divmod(len(self.dataset), self.samples_per_rank * self.world_size)
        samples_of_full_rounds = rounds * self.samples_per_rank
        if self.drop_last or extra_samples == 0:
            return samples_of_full_rounds
        if self.fill_round:
            return samples_of_full_rounds + self.samples_per_rank
        return samples_of_full_rounds + -(-extra_samples // self.world_size)

    def __iter__(self) -> Iterator[Any]:
        self._seed_generator()
        round_size = self.samples_per_rank * self.world_size
        workers = get_worker_info()
        is_only_reader = workers is None or workers.num_workers == 1
        stream: Iterator[Any] = iter(self.dataset)
        first_round: list[Any] = []
        while True:
            samples = list(itertools.islice(stream, round_size))
            if not samples:
                return
            if not first_round:
                first_round = samples
            self._last_round.fill_(len(samples) if is_only_reader else -1)

            # A shorter round is the last one.
            missing = round_size - len(samples)
            if missing > 0 and self.drop_last:
                return
            if self.fill_round:
                samples = [*samples, *itertools.islice(itertools.cycle(first_round), missing)]
            # A last round that is still shorter gives each process an equal share.
            shares = even_shares(samples, first_round[: self.world_size], self.world_size)
            yield from shares[self.rank]

    def _seed_generator(self) -> None:
        """Seed the stream's `generator` with the epoch, unless `set_epoch` does that."""
        generator = getattr(self.dataset, "generator", None)
        if not hasattr(self.dataset, "set_epoch") and isinstance(generator, torch.Generator):
            generator.manual_seed(self.epoch)


class InterleavedShards(IterableDataset[Any]):
    """A stream of several files, in the order in which several processes read it.

    It lets another number of processes resume a training in which each process read its own files.

    Args:
        dataset: a `datasets.IterableDataset`.
        processes: number of processes among which its files were divided.
        batch_size: samples that each of them took at a time.
    """

    def __init__(self, dataset: Any, processes: int, batch_size: int) -> None:
        self.shares: list[Any] = []
        for index in range(processes):
            self.shares.append(dataset.shard(num_shards=processes, index=index))
        self.batch_size = batch_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all shares."""
        for share in self.shares:
            share.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        streams: list[Iterator[Any]] = [iter(share) for share in self.shares]
        while True:
            batches = [list(itertools.islice(stream, self.batch_size)) for stream in streams]
            # All processes stopped where the first one ended.
            if not all(batches):
                return
            yield from itertools.chain.from_iterable(batches)


def interleave_shards(dataset: object, processes: int, batch_size: int) -> Any:
    """Return a stream, or this process's share of it, as `InterleavedShards`."""
    if not isinstance(dataset, IterableShard):
        return InterleavedShards(dataset, processes, batch_size)
    share = copy.copy(dataset)
    share.dataset = InterleavedShards(dataset.dataset, processes, batch_size)
    return share


class SharedOrderSampler(Sampler[int]):
    """Sampler that gives every process the order that process 0 draws.

    Each process advances its own generator as if it were the only one. All processes have to
    iterate together.

    Args:
        sampler: has an attribute `generator`, one on the CPU; None stands for torch's global one.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        generator = cast("torch.Generator", self.sampler.generator or torch.default_generator)
        state = generator.get_state()
        state_of_rank_zero = broadcast_from_rank_zero(state)

        # This also advances the generator of this process if its order is not used.
        order: list[int] = list(self.sampler)
        if not torch.equal(state, state_of_rank_zero):
            state_after = generator.get_state()
            generator.set_state(state_of_rank_zero)
            order = list(self.sampler)
            generator.set_state(state_after)
        yield from order
