"""Additions of versions after 5.3.0, compared with the newest: left out where the reference is
5.3.0.

`test_newest.py` and `make test-newest` run these.
"""

import copy
import math
import random

import pytest
import torch

import lightrainer
from helpers.parity.harness import Case, assert_parity
from helpers.parity.interrupted_runs import DIRECTIONS, exchanged
from helpers.parity.parity_datasets import point_data
from helpers.parity.parity_models import Classifier
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


# --- GreedyLR

EVALUATED = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "lr_scheduler_type": "greedy",
    "learning_rate": 0.1,
}
GREEDY = {
    "defaults": {},
    "at once": {"patience": 0, "factor": 0.5},
    "pauses": {
        "patience": 0,
        "factor": 0.7,
        "threshold": 0.05,
        "cooldown": 1,
        "warmup": 1,
        "smooth": True,
    },
    "anew": {
        "patience": 0,
        "factor": 0.5,
        "mode": "max",
        "min_lr": 0.06,
        "max_lr": 0.15,
        "reset_start": 2,
    },
}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_trainings_are_the_same(newest, ours, tmp_path, name):
    arguments = {**EVALUATED, "lr_scheduler_kwargs": GREEDY[name]}
    theirs, mine = assert_parity(newest, ours, Case(Classifier, point_data, arguments), tmp_path)
    assert mine.trainer.lr_scheduler.state_dict() == theirs.trainer.lr_scheduler.state_dict()
    rates = {entry["learning_rate"] for entry in mine.history if "learning_rate" in entry}
    assert len(rates) > 1 or name == "defaults"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_greedy_checkpoints_are_exchanged(newest, ours, tmp_path, direction):
    arguments = {**EVALUATED, "lr_scheduler_kwargs": GREEDY["pauses"]}
    exchanged(newest, ours, Case(Classifier, point_data, arguments), tmp_path, direction)


def settings_of(draw, groups, rate):
    """Settings that bring about every event within some dozen steps."""
    settings = {
        "mode": draw.choice(["min", "max"]),
        "factor": draw.choice([0.95, 0.5, 0.1]),
        "patience": draw.choice([0, 0, 1, 3]),
        "threshold": draw.choice([0, 1e-6, 0.01, 0.1]),
        "threshold_mode": draw.choice(["rel", "abs"]),
        "cooldown": draw.choice([0, 0, 1, 3]),
        "warmup": draw.choice([0, 0, 1, 3]),
        "eps": draw.choice([0, 1e-8, 1e-3]),
        "smooth": draw.random() < 0.4,
        "window_size": draw.choice([1, 2, 50]),
        "reset_start": draw.choice([0, 1, 3, 500]),
        "min_lr": draw.choice(
            [1e-3, 0.0, rate * 0.9, rate * 2, [rate * 0.9 * (1 + i) for i in range(groups)]]
        ),
        "max_lr": draw.choice(
            [1.0, rate * 1.1, rate * 0.5, [rate * 1.3 * (1 + i) for i in range(groups)]]
        ),
    }
    return {name: value for name, value in settings.items() if draw.random() < 0.9}


def optimizer_of(groups, rate):
    parameters = [
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate * (1 + i)}
        for i in range(groups)
    ]
    return torch.optim.SGD(parameters, lr=rate)


def metrics_of(draw, count):
    """Stretches that fall, rise, stand still and wander, with values that are no numbers."""
    metric, found = 1.0, []
    while len(found) < count:
        step = draw.choice(
            [lambda: -0.05 * draw.random(), lambda: 0.05 * draw.random(), lambda: 0, draw.random]
        )
        for _ in range(draw.randint(1, 15)):
            metric += step()
            found.append(metric if draw.random() > 0.01 else draw.choice([math.nan, math.inf]))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_greedy_rates_have_the_same_bits(newest, seed):
    """With any settings, at every step, and also when each goes on from the other's state."""
    draw = random.Random(seed)
    for _ in range(40):
        groups, rate = draw.choice([1, 1, 2, 3]), draw.choice([0.1, 5e-4, 0.5])
        settings = settings_of(draw, groups, rate)
        optimizers = [optimizer_of(groups, rate) for _ in range(2)]
        kinds = newest.GreedyLR, lightrainer.GreedyLR
        pair = [
            kind(optimizer, **settings) for kind, optimizer in zip(kinds, optimizers, strict=True)
        ]
        for metric in metrics_of(draw, 60):
            for schedule in pair:
                schedule.step(metric)
            theirs, ours = (schedule.state_dict() for schedule in pair)
            assert repr(theirs) == repr(ours), settings
            assert (
                pair[0].get_last_lr()
                == pair[1].get_last_lr()
                == [g["lr"] for g in optimizers[1].param_groups]
            )
            if draw.random() < 0.05:
                for schedule, state in zip(pair, (ours, theirs), strict=True):
                    schedule.load_state_dict(copy.deepcopy(state))
