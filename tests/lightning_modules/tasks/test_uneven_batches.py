"""Samples that only fill up the last round of several processes are left out, and nothing else."""

import pytest
import torch
from torch.utils.data import IterableDataset

from lightrainer.lightning_modules import build_loader
from lightrainer.lightning_modules.common.batch_rows import slice_rows
from lightrainer.lightning_modules.tasks.batch_inputs import count_unrepeated_samples


class Stream(IterableDataset):
    """Has no length."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 11, 12, 16])
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("kind", [list, Stream])
@pytest.mark.parametrize("read_ahead", [False, True])
def test_uneven_batches_evaluate_each_sample_once(count, processes, kind, read_ahead):
    samples = []
    for rank in range(processes):
        dataset = kind([{"x": torch.tensor(float(index))} for index in range(count)])
        loader = build_loader(dataset, batch_size=4, rank=rank, world_size=processes)
        batches = enumerate(loader)
        if read_ahead:
            batches = list(batches)  # more than Lightning reads ahead without a length
        for index, batch in batches:
            counting = count_unrepeated_samples(loader, batch, index, rank, processes)
            unrepeated = batch if counting is None else slice_rows(batch, 0, counting)
            samples += unrepeated["x"].tolist()
    assert sorted(samples) == list(range(count))


def test_uneven_batches_leave_other_loaders_alone():
    batch = {"x": torch.zeros(4)}
    assert count_unrepeated_samples(torch.utils.data.DataLoader([1]), batch, 0, 0, 2) is None
