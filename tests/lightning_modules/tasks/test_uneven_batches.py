"""Samples that only fill up the last round of several processes are left out, and nothing else."""

import pytest
import torch

from lightrainer.lightning_modules import build_loader
from lightrainer.lightning_modules.tasks.batch_inputs import cut_batch, samples_that_count


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 11, 12, 16])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_each_sample_once(count, processes):
    found = []
    for rank in range(processes):
        loader = build_loader(
            [{"x": torch.tensor(float(index))} for index in range(count)], batch_size=4, rank=rank, world_size=processes
        )
        for batch in loader:
            counting = samples_that_count(loader, batch, rank, processes)
            kept = batch if counting is None else cut_batch(batch, counting)
            found += kept["x"].tolist()
    assert sorted(found) == list(range(count))


def test_other_loaders_are_left_alone():
    batch = {"x": torch.zeros(4)}
    assert samples_that_count(torch.utils.data.DataLoader([1]), batch, 0, 2) is None
