"""The order of very long data: time to the first step and memory, for 20 million samples against
the reference.

Each in a fresh process. Trainings: shuffled, seeded, grouped by length. Loaders: process 1 of 2,
and the middle of an epoch. `python -m benchmarks.long_data billion` reads the first batch of a
billion samples in one process of eight.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from .common import LIBRARIES, Figure, TinyModel, interleaved, library, quiet_arguments, report
from .memory import largest_of_this_process

COUNT, BATCH, ROUNDS = 20_000_000, 8, 3
MIDDLE = COUNT // BATCH // 2
TRAININGS = {"shuffled": "shuffled", "seeded": "data_seed", "grouped": "grouped by length"}
CASES = {**TRAININGS, "two": "process 1 of 2", "middle": "the middle of an epoch"}


class Rows(Dataset):
    """A stand-in of the data: samples are computed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.full((16,), float(index % 7))
        return {"x": x, "labels": x.sum()}


def lengths() -> np.ndarray:
    """Lengths of the samples, many of them equal."""
    return np.random.default_rng(0).integers(1, 512, COUNT, dtype=np.int32)


def training(name: str, case: str, folder: str) -> Callable[[], Any]:
    """Return a training of one step, after a short one, for which the libraries are loaded."""
    used: Any = library(name)
    changes = {"data_seed": 3} if case == "seeded" else {}
    arguments = quiet_arguments(name, folder, max_steps=1, **changes)
    trainer_class = used.Trainer
    if case == "grouped":
        home = (
            "transformers.trainer_pt_utils"
            if name == "transformers"
            else "lightrainer.lightning_modules"
        )
        # The reference measures each sample otherwise, and wants a list.
        values: Any = lengths().tolist() if name == "transformers" else lengths()
        sampler = library(home).LengthGroupedSampler(BATCH, lengths=values)
        overrides = {"_get_train_sampler": lambda self, *dataset: sampler}
        trainer_class = type("Grouped", (used.Trainer,), overrides)
    used.Trainer(TinyModel(), arguments, train_dataset=Rows(BATCH)).train()
    return trainer_class(TinyModel(), arguments, train_dataset=Rows(COUNT)).train


def loader(name: str, case: str) -> Callable[[], Any]:
    """Return the reading of a loader's first batch."""
    data, processes = Rows(COUNT), {"two": 2, "middle": 1}[case]
    if name == "lightrainer":
        from lightrainer.lightning_modules import build_loader

        random_loader: Any = build_loader(
            data,
            batch_size=BATCH,
            sampler=RandomSampler(data),
            seed=1,
            rank=processes - 1,
            world_size=processes,
        )
        random_loader.skip(MIDDLE if case == "middle" else 0)
    else:
        from accelerate.data_loader import prepare_data_loader, skip_first_batches

        plain = DataLoader(data, batch_size=BATCH, shuffle=True)
        options: dict[str, Any] = {
            "num_processes": processes,
            "process_index": processes - 1,
            "data_seed": 1,
        }
        random_loader = prepare_data_loader(
            plain, put_on_device=False, use_seedable_sampler=True, **options
        )
        random_loader = (
            skip_first_batches(random_loader, MIDDLE) if case == "middle" else random_loader
        )
    return lambda: next(iter(random_loader))


def measure(name: str, case: str) -> tuple[float, float]:
    """Return seconds of the processor, and growth of memory in bytes a sample."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = training(name, case, folder) if case in TRAININGS else loader(name, case)
        return measured(run, COUNT)


def measured(run: Callable[[], Any], count: int) -> tuple[float, float]:
    resident = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )
    begin = time.process_time()
    run()
    return (
        time.process_time() - begin,
        (largest_of_this_process() - float(resident.split()[1])) * 1024 / count,
    )


def in_process(name: str, case: str) -> tuple[float, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.long_data", name, case]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def billion() -> None:
    """Read the first batch of process 7 of 8, of a billion samples."""
    from lightrainer.lightning_modules import build_loader

    torch.set_num_threads(1)
    data = Rows(10**9)
    random_loader = build_loader(
        data, batch_size=BATCH, sampler=RandomSampler(data), seed=1, rank=7, world_size=8
    )
    batches = iter(random_loader)
    seconds, grown = measured(lambda: next(batches), 1)
    print(f"{seconds:.0f} s to the first batch; {grown / 1e9:.2f} GB more")


def main() -> list[Figure]:
    rows: list[tuple[str, str]] = []
    results: dict[str, Any] = {}
    figures = []
    for case, description in CASES.items():
        rounds = interleaved(ROUNDS, {name: partial(in_process, name, case) for name in LIBRARIES})
        seconds, grown = (
            {name: float(np.median([each[part] for each in rounds[name]])) for name in rounds}
            for part in (0, 1)
        )
        results[case] = {"seconds": seconds, "bytes a sample": grown}
        rows += [
            (f"{name}, {description}", f"{seconds[name]:6.2f} s, {grown[name]:5.1f} bytes a sample")
            for name in LIBRARIES
        ]
        figures.append(
            Figure(
                f"first step of 20 million samples, {description}",
                seconds["lightrainer"] / seconds["transformers"],
                0.5,
            )
        )
    return report("long_data", rows, results, figures)


if __name__ == "__main__":
    if sys.argv[1:] == ["billion"]:
        billion()
    elif len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
