"""Samplers of the reference that its Trainer no longer uses, for scripts that do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from ...lightning_modules.data.lengths import get_length_grouped_indices, sample_lengths


def get_dataloader_sampler(dataloader: Any) -> Any:
    """As `transformers.trainer_pt_utils.get_dataloader_sampler`: return the innermost sampler, or None."""
    inner = getattr(dataloader, "batch_sampler", None)
    return getattr(dataloader, "sampler", None) if inner is None else get_dataloader_sampler(inner)


class DistributedSamplerWithLoop(DistributedSampler):
    """As `transformers.trainer_pt_utils.DistributedSamplerWithLoop`: the last batch is filled up from the start.

    Args:
        dataset: to draw from.
        batch_size: samples in a batch.
        **kwargs: for `torch.utils.data.DistributedSampler`.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        missing = -len(indices) % self.batch_size
        # Skip a first sample that the sampler's own padding already repeats on another rank.
        start = 1 if self.rank < len(cast(Sized, self.dataset)) % self.num_replicas else 0
        return iter(indices + indices[start : start + missing])


class DistributedLengthGroupedSampler(DistributedSampler):
    """As `transformers.trainer_pt_utils.DistributedLengthGroupedSampler`: samples grouped by length, split over ranks.

    Args:
        batch_size: samples in a batch.
        dataset: its samples are measured where `lengths` is not given.
        num_replicas: number of ranks; by default that of torch.distributed.
        rank: by default that of torch.distributed.
        seed: seeds the order, together with the epoch.
        drop_last: drop samples instead of repeating some.
        lengths: length of each sample.
        model_input_name: column whose length is measured, by default "input_ids".

    Raises:
        ValueError: Neither `dataset` nor `lengths`.
    """

    def __init__(
        self,
        batch_size: int,
        dataset: Any = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        lengths: Sequence[int] | torch.Tensor | None = None,
        model_input_name: str | None = None,
    ) -> None:
        if lengths is None:
            if dataset is None:
                raise ValueError("Pass dataset=..., or lengths=... with the length of each sample.")
            lengths = sample_lengths(dataset, model_input_name or "input_ids")
        self.lengths = lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)
        self.batch_size = batch_size
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.epoch = 0
        self.seed = seed
        self.drop_last = drop_last
        round_ = math.floor if drop_last else math.ceil
        self.num_samples = round_(len(self.lengths) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order = get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
        order += order[: max(0, self.total_size - len(order))]
        return iter(order[self.rank : self.total_size : self.num_replicas])


class ShardSampler(Sampler[int]):
    """As `transformers.trainer_pt_utils.ShardSampler`: in order, whole batches assigned to the ranks in turn.

    Args:
        dataset: has a length.
        batch_size: samples in a batch of one process.
        drop_last: drop an incomplete last round; otherwise it is filled up from the start.
        num_processes: number of ranks.
        process_index: this rank.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.total_batch_size = batch_size * num_processes
        rounds = len(dataset) / self.total_batch_size
        self.total_num_samples = (math.floor if drop_last else math.ceil)(rounds) * self.total_batch_size

    def __iter__(self) -> Iterator[int]:
        first = self.batch_size * self.process_index
        for start in range(first, self.total_num_samples, self.total_batch_size):
            for index in range(start, start + self.batch_size):
                yield index % len(self.dataset)

    def __len__(self) -> int:
        return self.total_num_samples // self.num_processes


class IterableDatasetShard(IterableDataset):
    """As `transformers.trainer_pt_utils.IterableDatasetShard`: one rank's share of a stream.

    Args:
        dataset: the stream. Where it has a `generator` and no `set_epoch`, that is seeded at the start of each epoch.
        batch_size: samples in a batch of one process.
        drop_last: drop an incomplete last round; otherwise it is filled up from the first one.
        num_processes: number of ranks.
        process_index: this rank.
        seed: seeds the generator, together with the epoch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        seed: int = 0,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.seed = seed
        self.epoch = 0
        self.num_examples = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, also on the stream if it has `set_epoch`."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self.num_examples = 0
        generator = getattr(self.dataset, "generator", None)
        if isinstance(generator, torch.Generator) and not hasattr(self.dataset, "set_epoch"):
            generator.manual_seed(self.seed + self.epoch)
        first: list[Any] | None = None
        for samples in self._rounds():
            first = samples if first is None else first
            if len(samples) < self._round:
                if self.drop_last:
                    return
                samples = [*samples, *(first * math.ceil(self._round / len(first)))]
            begin = self.process_index * self.batch_size
            yield from samples[begin : begin + self.batch_size]

    @property
    def _round(self) -> int:
        return self.batch_size * self.num_processes

    def _rounds(self) -> Iterator[list[Any]]:
        gathered: list[Any] = []
        for sample in self.dataset:
            self.num_examples += 1
            gathered.append(sample)
            if len(gathered) == self._round:
                yield gathered
                gathered = []
        if gathered:
            yield gathered

    def __len__(self) -> int:
        rounds = len(self.dataset) / self._round
        return (math.floor if self.drop_last else math.ceil)(rounds) * self.batch_size
