"""One of two processes that share a folder: rank 0 writes into it first."""

import sys
from pathlib import Path

import torch.distributed as dist

from lightrainer.facade.compat import processes

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
with processes.torch_distributed_zero_first(rank):
    seen = (folder / "first").exists()
    (folder / "first").touch()
assert seen == (rank == 1)
dist.destroy_process_group()
