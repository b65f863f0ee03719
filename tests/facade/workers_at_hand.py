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
    """Of two workers with batches of two the first is slow: the other has read one batch and begins with another."""

    def __init__(self):
        self.other_goes_on = torch.zeros(1).share_memory_()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 6:
            self.other_goes_on.fill_(1)
        if index == 0:
            deadline = time.monotonic() + 60
            while not self.other_goes_on and time.monotonic() < deadline:
                time.sleep(0.01)
            self.other_goes_on.fill_(0)
            time.sleep(0.2)  # what is read has a way to go
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(0)}


class SlowStream(SlowToBegin, IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return (self[index] for index in range(4 * worker.id, 4 * worker.id + 4))


class Noted(Dataset):
    """Notes each sample that is read in a file."""

    def __init__(self, path: Path, count: int = 40):
        self.path, self.count = path, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return {"x": torch.full((8,), float(index)), "labels": torch.tensor(0)}
