"""The time of a step of two processes beyond that of a bare DDP loop: (lightrainer - bare) / (reference - bare).

As `step_overhead`, but with DistributedDataParallel over gloo: under torchrun, bare loop, reference and lightrainer
take turns in the same two processes. The promise is at most 1.0.

Each process has the time of its processor measured too, which other programs, and waiting for the other process,
disturb less; shown is the average of both processes.
"""

import contextlib
import io
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

from .common import LIBRARIES, TinyModel, interleaved, library, medians, quiet_arguments, report, tiny_dataset
from .step_overhead import CLOCKS, now

STEPS = 250
SKIPPED = 50  # the first steps make buckets, and warm up caches
ROUNDS = 15
BATCH = 8
PROCESSES = 2
SECONDS = 900


def per_step(begin: list[float], end: list[float]) -> list[float]:
    """Seconds per measured step, by each clock."""
    return [(last - first) / (STEPS - SKIPPED) for first, last in zip(begin, end, strict=True)]


def bare_loop(dataset: list) -> list[float]:
    """Seconds per step of the shortest loop that does the same work."""
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyModel().train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, collate_fn=default_collate)
    total = torch.tensor(0.0)
    begin = now()
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        loss.backward()
        total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == SKIPPED:
            begin = now()
    return per_step(begin, now())


def trainer_loop(name: str, dataset: list) -> list[float]:
    """Seconds per step of a library's trainer, between two calls of `on_step_end`."""
    api = library(name)
    times = {}

    class Clock(api.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (SKIPPED, STEPS):
                times[state.global_step] = now()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        arguments = quiet_arguments(
            name,
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            # What the bare loop has, and all parameters are used.
            ddp_find_unused_parameters=False,
        )
        trainer = api.Trainer(
            TinyModel(), arguments, train_dataset=dataset, data_collator=default_collate, callbacks=[Clock()]
        )
        trainer.train()
    return per_step(times[SKIPPED], times[STEPS])


def measure(folder: Path) -> None:
    """What each of the processes does: write its measurements."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dataset = tiny_dataset(STEPS * BATCH * PROCESSES)
    candidates = {"bare": lambda: bare_loop(dataset)}
    candidates |= {name: lambda name=name: trainer_loop(name, dataset) for name in LIBRARIES}
    for candidate in candidates.values():  # imports, and all that is done once in a process
        candidate()
    measured = interleaved(ROUNDS, candidates)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(measured))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={PROCESSES}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", "benchmarks.two_processes", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"the processes ended with {done.returncode}:\n{done.stderr[-4000:]}")
        processes = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    rows, results = [], {}
    for position, clock in enumerate(CLOCKS):
        rounds = {
            name: [
                statistics.mean(values[position] * 1e6 for values in both)
                for both in zip(*(measured[name] for measured in processes), strict=True)
            ]
            for name in processes[0]
        }
        step = medians(rounds)
        ratio = (step["lightrainer"] - step["bare"]) / (step["transformers"] - step["bare"])
        rows += [(f"{name}, one step, {clock} clock", f"{value:7.1f} us") for name, value in step.items()]
        rows.append((f"(lightrainer - bare) / (transformers - bare), {clock} clock", f"{ratio:.2f}"))
        results[clock] = {"microseconds": step, "ratio": ratio, "rounds": rounds}
    report("two_processes", rows, results)


if __name__ == "__main__":
    if "RANK" in os.environ and len(sys.argv) == 2:
        measure(Path(sys.argv[1]))
    else:
        main()
