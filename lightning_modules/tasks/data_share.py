"""Determine which shard of the data a process reads.

Processes that hold shards of the same layer read the same data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from ..internals.lightning_import import Trainer


@dataclass(frozen=True)
class DataShare:
    """The shard of the data that a process reads.

    Attributes:
        rank: rank of this process.
        world_size: number of processes.
        copies: number of processes with consecutive ranks that read the same shard.
    """

    rank: int = 0
    world_size: int = 1
    copies: int = 1

    @property
    def index(self) -> int:
        """Return the index of the shard that this process reads."""
        return self.rank // self.copies

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return self.world_size // self.copies


def data_share(trainer: Trainer | None) -> DataShare:
    """Return the data shard of this process.

    It uses the numbers that the strategy returns for Lightning's own sampler.

    Args:
        trainer: a Trainer whose strategy is set up. With None, each process of the process group
            has its own shard.

    Raises:
        ValueError: the strategy does not define which processes read the same shard, or their ranks
            are not consecutive.
    """
    if trainer is None:
        if not dist.is_initialized():
            return DataShare()
        return DataShare(dist.get_rank(), dist.get_world_size())

    rank = trainer.global_rank
    world_size = trainer.world_size
    strategy_name = type(trainer.strategy).__name__
    try:
        sampler_kwargs = trainer.distributed_sampler_kwargs
    except (KeyError, RuntimeError) as error:
        # torch raises these for a mesh without the dimension "data_parallel".
        raise ValueError(
            f"{strategy_name}.distributed_sampler_kwargs failed: {error}. DataModule asks it which "
            "processes read the same batches. Name a dimension of the device mesh "
            '"data_parallel", or override that property.'
        ) from error

    if sampler_kwargs is None:
        return DataShare()

    # A strategy may report more replicas than processes, which raises an error below.
    index = sampler_kwargs["rank"]
    count = sampler_kwargs["num_replicas"]
    copies = max(world_size // count, 1)

    # `DataShare` assumes that consecutive ranks read the same shard, but the strategy may group its
    # processes differently.
    share = DataShare(rank, world_size, copies)
    if share.index != index or share.count != count:
        raise ValueError(
            f"{strategy_name}.distributed_sampler_kwargs is {sampler_kwargs} in process {rank} of "
            f"{world_size}. DataModule supports only groups of successive processes of equal size "
            'that read the same batches. Make "data_parallel" the first dimension of the device '
            "mesh, or pass your own loaders instead of a DataModule."
        )
    return share
