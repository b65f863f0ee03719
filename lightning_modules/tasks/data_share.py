"""The share of the data that a process reads.

Several processes read the same share where they hold parts of one layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from ..internals.lightning_import import Trainer


@dataclass(frozen=True)
class DataShare:
    """The share of the data that a process reads, and how many processes read the same share.

    Attributes:
        rank: index of this process.
        world_size: number of processes.
        copies: number of processes with successive ranks that read the same batches.
    """

    rank: int = 0
    world_size: int = 1
    copies: int = 1

    @property
    def share(self) -> int:
        """Return the index of the share that this process reads."""
        return self.rank // self.copies

    @property
    def shares(self) -> int:
        """Return the number of different shares of the data."""
        return self.world_size // self.copies


def data_share(trainer: Trainer | None) -> DataShare:
    """Return the share of this process.

    The strategy counts the shares for Lightning's own sampler; this takes the same counts.

    Args:
        trainer: has set up its processes; None gives each process of the process group its own
            share.

    Raises:
        ValueError: the strategy does not tell which processes read the same share, or their ranks
            are not successive.
    """
    if trainer is None:
        if not dist.is_initialized():
            return DataShare()
        return DataShare(dist.get_rank(), dist.get_world_size())

    rank = trainer.global_rank
    world_size = trainer.world_size
    name = type(trainer.strategy).__name__
    try:
        sampler_kwargs = trainer.distributed_sampler_kwargs
    except (KeyError, RuntimeError) as error:
        # torch raises these for a mesh without the dimension "data_parallel".
        raise ValueError(
            f"{name}.distributed_sampler_kwargs failed: {error}. DataModule asks it which "
            "processes read the same batches. Name a dimension of the device mesh "
            '"data_parallel", or override that property.'
        ) from error

    if sampler_kwargs is None:
        return DataShare()

    # `DataShare` describes successive copies only, so its counts have to be those of the strategy.
    copies = max(world_size // sampler_kwargs["num_replicas"], 1)
    share = DataShare(rank, world_size, copies)
    if (share.share, share.shares) != (sampler_kwargs["rank"], sampler_kwargs["num_replicas"]):
        raise ValueError(
            f"{name}.distributed_sampler_kwargs is {sampler_kwargs} in process {rank} of "
            f"{world_size}. DataModule supports only groups of successive processes of equal size "
            'that read the same batches. Make "data_parallel" the first dimension of the device '
            "mesh, or pass your own loaders instead of a DataModule."
        )
    return share
