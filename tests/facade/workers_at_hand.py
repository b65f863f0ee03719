"""Datasets for worker processes, in a module that a process which is not forked finds too."""

import multiprocessing
import os
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset


class Telling(Dataset):
    """Samples that say which process made them, and how that was started."""

    METHODS = ("Process", "ForkProcess", "SpawnProcess", "ForkServerProcess")

    def __init__(self, count: int = 8):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        kind = type(multiprocessing.current_process()).__name__
        return {"x": torch.tensor([float(os.getpid())] * 8), "labels": torch.tensor(self.METHODS.index(kind) % 3)}


class SlowToBegin(Dataset):
    """The first batch of two takes long; the others are there at once."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 0:
            time.sleep(0.5)
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(0)}


class SlowStream(SlowToBegin, IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return (self[index] for index in range(4 * worker.id, 4 * worker.id + 4))


class Noted(Dataset):
    """Notes each sample that is read in a file."""

    def __init__(self, path: Path, count: int = 40):
        self.path = path
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(0)}
