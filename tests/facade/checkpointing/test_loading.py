"""The arguments about loading do what they say: the life and the seeds of workers, and lengths."""

import os

import pytest
import torch
from torch.utils.data import Dataset

from helpers.trainer.tiny_trainings import make_trainer, points, trained_trainer

# Starting worker processes from a process with threads is what the loader does; Python 3.12 and
# later warn about it.
forking = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


# --- worker processes


class Telling(Dataset):
    """Samples that say which process made them."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.full((8,), float(os.getpid())), "labels": torch.tensor(0)}


@forking
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_live_as_long_as_asked(tmp_path, persistent):
    """From one epoch to the next, and from one evaluation to the next."""
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    trainer = make_trainer(tmp_path, train_dataset=Telling(), eval_dataset=Telling(), **options)
    training = trainer.get_train_dataloader()
    for find in (lambda: training, trainer.get_eval_dataloader):
        first, second = ({int(batch["x"][0, 0]) for batch in find()} for _ in range(2))
        assert len(first) == len(second) == 1
        assert (first == second) is persistent


@forking
def test_worker_seeds_differ_between_ranks(tmp_path, monkeypatch):
    """As the reference's: torch's seed of the worker, moved on by as many workers as the ranks
    before have.
    """
    from transformers.trainer_utils import seed_worker as reference

    states = {}
    for rank in (0, 1):
        trainer = make_trainer(tmp_path / str(rank), dataloader_num_workers=2)
        monkeypatch.setattr(
            type(trainer.args), "process_index", property(lambda self, rank=rank: rank)
        )
        init = trainer.get_train_dataloader().worker_init_fn
        for name, seed in (
            ("ours", init),
            ("reference", lambda worker, rank=rank: reference(worker, 2, rank)),
        ):
            torch.manual_seed(11)
            seed(1)
            states[name, rank] = torch.rand(1).item()
    assert (
        states["ours", 0] == states["reference", 0] != states["ours", 1] == states["reference", 1]
    )


# --- lengths


class Counted(Dataset):
    """Counts how often each sample is read."""

    def __init__(self, count=16, seed=1):
        self.items = [
            {**item, "input_ids": [0] * (1 + 7 * index % 5)}
            for index, item in enumerate(points(count, seed=seed))
        ]
        self.reads = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.reads += 1
        return self.items[index]


def test_lengths_are_measured_once_for_each_dataset(tmp_path):
    """Two epochs, an evaluation after each, one more evaluation, a second training and a
    resumption.
    """
    training, evaluation = Counted(), Counted(6, seed=2)
    options = {
        "train_sampling_strategy": "group_by_length",
        "num_train_epochs": 2,
        "save_strategy": "epoch",
    }
    trainer = trained_trainer(
        tmp_path, train_dataset=training, eval_dataset=evaluation, eval_strategy="epoch", **options
    )
    assert training.reads == 16 + 1 + 2 * 16
    assert evaluation.reads == 6 + 1 + 2 * 6
    trainer.evaluate()
    assert evaluation.reads == 6 + 1 + 3 * 6
    trainer.train()
    assert training.reads == 16 + 1 + 4 * 16
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert training.reads == 16 + 1 + 5 * 16
    assert evaluation.reads == 6 + 1 + 6 * 6


def test_loading_measures_another_dataset_separately(tmp_path):
    trainer = make_trainer(tmp_path, train_sampling_strategy="group_by_length")
    lengths = [
        trainer._get_eval_sampler(data).lengths for data in (Counted(6), Counted(4), Counted(6))
    ]
    assert lengths[0] == lengths[2] == [*lengths[1], *lengths[0][4:]]
