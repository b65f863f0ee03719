"""The share of the data that a process reads: several processes read the same where they hold
parts of one layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from ..internals.lightning_import import Trainer


@dataclass(frozen=True)
class DataShare:
    """A process, and which of the others read the same batches.

    Attributes:
        rank: index of this process.
        world_size: number of processes.
        copies: how many processes with successive ranks read the same batches.
    """

    rank: int = 0
    world_size: int = 1
    copies: int = 1

    @property
    def share(self) -> int:
        """Return the index of what this process reads."""
        return self.rank // self.copies

    @property
    def shares(self) -> int:
        """Return the number of different shares of the data."""
        return self.world_size // self.copies


def data_share(trainer: Trainer | None) -> DataShare:
    """Return the share of this process, as the strategy counts the shares for Lightning's own
    sampler.

    Args:
        trainer: has set up its processes; None takes each process of the process group as one
            share.

    Raises:
        ValueError: the strategy does not say which processes read the same, or they are not
            successive.
    """
    if trainer is None:
        if not dist.is_initialized():
            return DataShare()
        return DataShare(dist.get_rank(), dist.get_world_size())

    rank = trainer.global_rank
    world_size = trainer.world_size
    name = type(trainer.strategy).__name__
    try:
        counted = trainer.distributed_sampler_kwargs
    except (KeyError, RuntimeError) as error:
        # torch raises these for a mesh without the dimension "data_parallel".
        raise ValueError(
            f"{name}.distributed_sampler_kwargs failed: {error}. DataModule asks it which "
            "processes read the same batches. Name a dimension of the device mesh "
            '"data_parallel", or override that property.'
        ) from error

    if counted is None:
        return DataShare()

    # The class knows successive copies only, so its counts have to be those of the strategy.
    copies = max(world_size // counted["num_replicas"], 1)
    share = DataShare(rank, world_size, copies)
    if (share.share, share.shares) != (counted["rank"], counted["num_replicas"]):
        raise ValueError(
            f"{name}.distributed_sampler_kwargs is {counted} in process {rank} of {world_size}. "
            "DataModule shares the data out where successive processes read the same batches, "
            'equally many of them each. Make "data_parallel" the first dimension of the device '
            "mesh, or pass loaders of your own instead."
        )
    return share
