"""Samplers that scripts import: the orders and shares of the reference."""

import pytest
import torch
from transformers import trainer_pt_utils

from lightrainer.facade.compat import samplers


class Counted(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError
        return {"input_ids": [0] * (index * 7 % 5 + 1)}


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, size, seeded=False):
        self.size = size
        if seeded:
            self.generator = torch.Generator()

    def __iter__(self):
        shift = torch.randint(9, (), generator=self.generator).item() if hasattr(self, "generator") else 0
        return iter([index + 10 * shift for index in range(self.size)])

    def __len__(self):
        return self.size


SHARES = [(10, 2, 3, False), (10, 2, 3, True), (12, 2, 3, False), (1, 4, 2, False), (7, 3, 1, True), (3, 4, 2, True)]


@pytest.mark.parametrize(("size", "batch", "processes", "drop"), SHARES)
def test_shares_of_several_processes(size, batch, processes, drop):
    for rank in range(processes):
        for module in ("shard", "stream", "seeded stream"):
            made = []
            for here in (samplers, trainer_pt_utils):
                if module == "shard":
                    share = here.ShardSampler(Counted(size), batch, drop, processes, rank)
                else:
                    share = here.IterableDatasetShard(Stream(size, "seeded" in module), batch, drop, processes, rank, 5)
                    share.set_epoch(2)
                made.append([list(share), len(share), getattr(share, "num_examples", 0)])
            assert made[0] == made[1]


def test_samplers_by_length_and_with_a_loop():
    for drop in (False, True):
        for rank in range(3):
            made = []
            for here in (samplers, trainer_pt_utils):
                one = here.DistributedLengthGroupedSampler(2, Counted(11), 3, rank, seed=4, drop_last=drop)
                one.set_epoch(1)
                other = here.DistributedLengthGroupedSampler(2, None, 3, rank, lengths=torch.tensor([3, 1, 2, 5]))
                loop = here.DistributedSamplerWithLoop(Counted(11), 4, num_replicas=3, rank=rank, seed=2)
                made.append([list(one), len(one), list(other), list(loop), len(loop)])
            assert made[0] == made[1]
    for here in (samplers, trainer_pt_utils):
        with pytest.raises(ValueError, match="lengths"):
            here.DistributedLengthGroupedSampler(2)


def test_the_sampler_of_a_loader():
    loader = torch.utils.data.DataLoader(Counted(4), batch_size=2, shuffle=True)
    assert samplers.get_dataloader_sampler(loader) is trainer_pt_utils.get_dataloader_sampler(loader) is loader.sampler
    assert samplers.get_dataloader_sampler([1]) is trainer_pt_utils.get_dataloader_sampler([1]) is None
