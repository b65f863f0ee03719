"""The time of a step of two processes beyond that of a bare DDP loop: (lightrainer - bare) /
(reference - bare).

As `step_overhead`, but with DistributedDataParallel over gloo: under torchrun, bare loop, reference
and lightrainer take turns in the same two processes. The goal is 0.5.

Each process has the time of its processor measured too, and that of the thread which takes the
steps: other programs, and waiting for the other process, disturb these less. Shown is the average
of both processes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.distributed import DistributedSampler

from .common import LIBRARIES, Figure, TinyModel, interleaved, tiny_dataset
from .steps import BATCH, Rounds, Steps, bare_loop, show, trainer_loop

STEPS = Steps(250, skipped=50)  # the first ones make buckets too
ROUNDS = 15
PROCESSES = 2
SECONDS = 900


def bare(dataset: list) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyModel().train())
    sampler = DistributedSampler(dataset, shuffle=True)
    return bare_loop(
        model,
        DataLoader(dataset, batch_size=BATCH, sampler=sampler, collate_fn=default_collate),
        STEPS,
    )


def measure(folder: Path) -> None:
    """Write the measurements of one of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dataset = tiny_dataset(STEPS.all * BATCH * PROCESSES)
    as_bare = {"ddp_find_unused_parameters": False}  # all are used
    candidates = {"bare": lambda: bare(dataset)}
    candidates |= {
        name: lambda name=name: trainer_loop(name, dataset, STEPS, **as_bare) for name in LIBRARIES
    }
    for candidate in candidates.values():  # imports, and all that is done once in a process
        candidate()
    measured = interleaved(ROUNDS, candidates)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(measured))
    dist.barrier()
    dist.destroy_process_group()


def average(processes: list[Rounds]) -> Rounds:
    """Return the mean over the processes of each clock, in each round."""
    return {
        name: [
            [statistics.mean(clock) for clock in zip(*of_round, strict=True)]
            for of_round in zip(*(measured[name] for measured in processes), strict=True)
        ]
        for name in processes[0]
    }


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={PROCESSES}"]
        command += [
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            "-m",
            "benchmarks.two_processes",
            folder,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"the processes ended with {done.returncode}:\n{done.stderr[-4000:]}"
            )
        processes = [
            json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(PROCESSES)
        ]
    return show(
        "two_processes", average(processes), "a step in two processes, beyond bare DDP", 0.5
    )


if __name__ == "__main__":
    if "RANK" in os.environ and len(sys.argv) == 2:
        measure(Path(sys.argv[1]))
    else:
        main()
