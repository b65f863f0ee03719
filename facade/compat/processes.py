"""Order work between the processes of a script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist


def is_main_process(local_rank: int) -> bool:
    """As `transformers.trainer_utils.is_main_process`: True for rank 0, and for -1, a single
    process.
    """
    return local_rank in (-1, 0)


@contextlib.contextmanager
def torch_distributed_zero_first(local_rank: int) -> Iterator[None]:
    """As `transformers.trainer_pt_utils.torch_distributed_zero_first`: rank 0 goes first, the
    others wait for it.
    """
    if not is_main_process(local_rank):
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()
