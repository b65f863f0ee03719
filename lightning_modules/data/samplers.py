"""Samplers with the same order on all processes, and shards of streams, as in the reference."""

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
    """Random sampler whose order only depends on the seed and the epoch.

    Works like `accelerate.data_loader.SeedableRandomSampler`.

    Args:
        data_source: the dataset, or any object with a length.
        seed: the seed of epoch 0; epoch `e` uses `seed + e`.
        replacement: whether to draw with replacement.
        num_samples: number of draws; by default the length of the dataset.
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
        # A sampler that draws all samples must also do so if the dataset grows in a later epoch.
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
        """Set the epoch whose order the next iteration draws."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        # Same order as torch's sampler, but as an array instead of a list of Python numbers.
        takes_each_once = self.num_samples == len(self.data_source) and not self.replacement
        if takes_each_once:
            return in_sequence(random_order(self.num_samples, generator))
        sampler = RandomSampler(self.data_source, self.replacement, self.num_samples, generator)
        return iter(sampler)

    def state_dict(self) -> dict[str, int]:
        """Return the seed, so that a resumed epoch keeps its order if the seed argument changes."""
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the seed."""
        self.seed = state["seed"]


class IterableShard(IterableDataset[Any]):
    """The shard of a stream that this process reads.

    Each process reads the whole stream and keeps its part of each round. Therefore the stream must
    be identical on all processes: it must have `set_epoch`, or an attribute `generator` (a
    `torch.Generator`), which is seeded with the epoch. transformers documents the same requirement.

    An incomplete last round is split evenly, and filled up with the first samples of the stream, as
    in transformers if rank 0 reads for all. With `fill_round` it is filled up to a full round, as
    in transformers if each process reads for itself.

    Args:
        dataset: the stream.
        batch_size: number of samples per batch and process; with `split_batches`, over all
            processes.
        rank: index of this process.
        world_size: number of processes.
        drop_last: whether to drop an incomplete last round.
        split_batches: whether a round is a single batch, of which each process gets a part.
        fill_round: whether to fill up the last round to the size of the others.

    Attributes:
        last_round: number of samples in the current round before it is filled up, also if a worker
            reads; -1 before the first round, and with several workers, which each have their own
            last round.
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
        # In shared memory, because a worker writes it and the parent process reads it.
        self._last_round = torch.tensor(-1, device="cpu")
        self._last_round.share_memory_()

    @property
    def last_round(self) -> int:
        """Return the samples in the current round before it is filled up; see the class."""
        return int(self._last_round.item())

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, also of the stream if it has `set_epoch`."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of samples of this process in an epoch, including duplicates."""
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

            # An incomplete round is the last one.
            missing = round_size - len(samples)
            if missing > 0 and self.drop_last:
                return
            if self.fill_round:
                samples = [*samples, *itertools.islice(itertools.cycle(first_round), missing)]
            # Split a round that is still incomplete evenly.
            shares = even_shares(samples, first_round[: self.world_size], self.world_size)
            yield from shares[self.rank]

    def _seed_generator(self) -> None:
        """Seed the stream's `generator` with the epoch, unless `set_epoch` does that."""
        generator = getattr(self.dataset, "generator", None)
        if not hasattr(self.dataset, "set_epoch") and isinstance(generator, torch.Generator):
            generator.manual_seed(self.epoch)


class InterleavedShards(IterableDataset[Any]):
    """Stream that interleaves the shards that several processes read.

    It is used to resume a training, in which each process read its own files, with another number
    of processes.

    Args:
        dataset: a `datasets.IterableDataset`.
        processes: number of processes over which the files were divided.
        batch_size: number of samples that each process read at a time.
    """

    def __init__(self, dataset: Any, processes: int, batch_size: int) -> None:
        self.shares: list[Any] = []
        for index in range(processes):
            self.shares.append(dataset.shard(num_shards=processes, index=index))
        self.batch_size = batch_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all shards."""
        for share in self.shares:
            share.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        streams: list[Iterator[Any]] = [iter(share) for share in self.shares]
        while True:
            batches = [list(itertools.islice(stream, self.batch_size)) for stream in streams]
            # All processes stop when the first one is exhausted.
            if not all(batches):
                return
            yield from itertools.chain.from_iterable(batches)


def interleave_shards(dataset: object, processes: int, batch_size: int) -> Any:
    """Convert a stream, or the shard of this process, to `InterleavedShards`."""
    if not isinstance(dataset, IterableShard):
        return InterleavedShards(dataset, processes, batch_size)
    share = copy.copy(dataset)
    share.dataset = InterleavedShards(dataset.dataset, processes, batch_size)
    return share


class SharedOrderSampler(Sampler[int]):
    """Sampler that uses the order drawn on rank 0 on all processes.

    Each process also advances its own generator, as in a single process. All processes must iterate
    together.

    Args:
        sampler: a sampler with the attribute `generator`, which must be on the CPU, or None for
            torch's global generator.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        generator = cast("torch.Generator", self.sampler.generator or torch.default_generator)
        state = generator.get_state()
        state_of_rank_zero = broadcast_from_rank_zero(state)

        # This also advances the generator of this process, even if its order is not used.
        order: list[int] = list(self.sampler)
        if not torch.equal(state, state_of_rank_zero):
            state_after = generator.get_state()
            generator.set_state(state_of_rank_zero)
            order = list(self.sampler)
            generator.set_state(state_after)
        yield from order
