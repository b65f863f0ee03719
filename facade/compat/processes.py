"""Order work between the processes of a script."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch.distributed as dist


def is_main_process(local_rank: int) -> bool:
    """Return True for rank 0, and for -1, which stands for a single process."""
    return local_rank in (-1, 0)


@contextlib.contextmanager
def torch_distributed_zero_first(local_rank: int) -> Generator[None]:
    """Run the block on rank 0 first; the other ranks wait until it has left it.

    Args:
        local_rank: rank of this process on its machine; -1 in a single process.
    """
    if not is_main_process(local_rank):
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()
