"""Very long data: time to the first step and memory of an order of 20 million samples, against the reference.

Each in a fresh process: a training that shuffles, with lengths grouped, seeded, in the middle of an epoch after a
resumption; and the batches of one process of two. `python -m benchmarks.long_data table` prints what an order takes on
paper and by a run, up to a billion samples, of which a process keeps its own part.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .common import LIBRARIES, Figure, TinyModel, interleaved, library, medians, quiet_arguments, report

COUNT, ROUNDS, BATCH = 20_000_000, 3, 8
CASES = {
    "shuffled": "shuffled",
    "seeded": "with a data_seed",
    "grouped": "grouped by length",
    "resumed": "resumed in the middle",
    "two": "process 1 of 2",
}


class Rows(Dataset):
    """Samples that are computed; their lengths are known without reading them."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.full((16,), float(index % 7))
        return {"x": x, "labels": x.sum()}


def lengths() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 512, COUNT, dtype=np.int32)


def rows_of_memory() -> float:
    """Bytes of this process that are in memory now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Peak:
    """Growth of this process's memory, looked at every few milliseconds."""

    def __enter__(self) -> "Peak":
        self._start = self._highest = rows_of_memory()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self._highest = max(self._highest, rows_of_memory())

    @property
    def growth(self) -> float:
        """Bytes above the start."""
        return max(self._highest, rows_of_memory()) - self._start


def first_batch(name: str, case: str) -> None:
    """Draw the order and read the first batch, where no training can be compared."""
    if case == "two" and name == "transformers":
        from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
        from torch.utils.data import BatchSampler

        batches = BatchSampler(SeedableRandomSampler(Rows(), data_seed=1), BATCH, False)
        sharded: Any = BatchSamplerShard(batches, num_processes=2, process_index=1)
    elif case == "two":
        from lightrainer.lightning_modules import SeedableRandomSampler, ShardedBatchSampler

        sharded = ShardedBatchSampler(SeedableRandomSampler(Rows(), seed=1), BATCH, False, rank=1, world_size=2)
