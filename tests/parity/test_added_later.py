"""Additions of versions after 5.3.0, compared with the newest: left out where the reference is
5.3.0.

`test_newest.py` and `make test-newest` run these.
"""

import random

import pytest
import torch

from helpers.parity.harness import Case, assert_parity
from helpers.parity.interrupted_runs import DIRECTIONS, exchanged
from lightrainer.lightning_modules.data.batch_samplers import BatchesAfter
from lightrainer.lightning_modules.data.rebalancing import BatchRebalanceSampler


@pytest.fixture
def newest(reference):
    if reference.__version__ == "5.3.0":
        pytest.skip("5.3.0 does not have it")
    return reference


# --- batches that cost the same

LENGTHS = [(7 * i * i) % 23 + 1 for i in range(26)]


class OfAnyLength(torch.nn.Module):
    """Its loss depends on which samples are in a batch, and on the padding."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2))

    def forward(self, input_ids, labels=None):
        mean = input_ids.float().mean(1) * self.weight[0] + self.weight[1]
        return {"loss": ((mean - labels) ** 2).mean(), "logits": mean}


def padded(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
    return {
        "input_ids": torch.tensor(ids),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


def texts():
    samples = [
        {"input_ids": [1 + i % 3] * length, "labels": i / 9} for i, length in enumerate(LENGTHS)
    ]
    return {"train_dataset": samples, "eval_dataset": samples[:5], "data_collator": padded}


REBALANCED = {
    "train_sampling_strategy": "batch_rebalance",
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.01,
}


ARGUMENTS = [
    {},
    {"gradient_accumulation_steps": 1, "seed": 7, "data_seed": 3},
    {"dataloader_drop_last": True, "gradient_accumulation_steps": 3},
    {"num_train_epochs": 1.5, "dataloader_num_workers": 1},
    {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 9},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_rebalanced_trainings_are_the_same(newest, ours, tmp_path, arguments):
    assert_parity(newest, ours, Case(OfAnyLength, texts, {**REBALANCED, **arguments}), tmp_path)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rebalanced_training_resumes_inside_an_epoch(newest, ours, tmp_path, direction):
    exchanged(newest, ours, Case(OfAnyLength, texts, REBALANCED), tmp_path, direction, step=5)


@pytest.mark.parametrize("seed", range(10))
def test_rebalanced_batches_are_the_same(newest, seed):
    """Of every process, in every epoch, for lengths of every kind; also from a place in the
    middle of an epoch.
    """
    draw = random.Random(seed)
    for _ in range(30):
        processes, accumulation = draw.choice([1, 2, 3, 8]), draw.choice([1, 2, 3, 8])
        samples = processes * accumulation * draw.choice([1, 2, 4, 16]) + draw.choice([0, 0, 1])
        count, short, longest = (
            int(samples * draw.choice([0.3, 1, 2.5])),
            draw.random(),
            draw.choice([3, 30, 2000]),
        )
        tailed = [int(draw.paretovariate(1)) + 1 for _ in range(count)]
        lengths = [
            length if draw.random() < short else draw.randint(1, longest) for length in tailed
        ]
        ways = {
            "shuffle": draw.random() < 0.8,
            "drop_last": draw.random() < 0.5,
            "seed": draw.choice([42, 7]),
        }
        ways |= {"rank": draw.randrange(processes)}
        kinds = newest.trainer_pt_utils.BatchRebalanceSampler, BatchRebalanceSampler
        theirs, ours = (kind(lengths, samples, processes, accumulation, **ways) for kind in kinds)
        epoch = draw.choice([0, 1, 5])
        theirs.set_epoch(epoch)
        ours.set_epoch(epoch)
        batches = list(theirs)
        assert len(theirs) == len(ours) == len(batches)
        assert list(ours) == batches
        skipped = draw.randint(0, len(batches))
        assert list(BatchesAfter(ours, skipped)) == batches[skipped:]
