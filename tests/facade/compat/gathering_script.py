"""One of two processes, which gather things with our helpers and with the reference's, and share a folder."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import trainer_pt_utils, training_args

from lightrainer.facade.arguments.enums import ParallelMode
from lightrainer.facade.compat import processes

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()

mine = {"x": torch.full((2, 3), rank), "y": [torch.tensor(rank)]}
got = processes.nested_gather(mine, ParallelMode.DISTRIBUTED)
theirs = trainer_pt_utils.nested_gather(mine, training_args.ParallelMode.DISTRIBUTED)
assert torch.equal(got["x"], theirs["x"])
assert torch.equal(got["y"][0], theirs["y"][0])
assert got["x"].shape == (4, 3)
assert processes.distributed_concat(mine["x"], 3).shape == (3, 3)
scalars = processes.distributed_broadcast_scalars([1, rank], device="cpu")
assert torch.equal(scalars, trainer_pt_utils.distributed_broadcast_scalars([1, rank], device="cpu"))
assert scalars.tolist() == [1, 0, 1, 1]
assert processes.total_processes_number(0) == 2

with processes.torch_distributed_zero_first(rank):
    seen = (folder / "first").exists()
    (folder / "first").touch()
assert seen == (rank == 1)
dist.destroy_process_group()
