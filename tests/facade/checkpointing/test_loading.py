"""The arguments about loading do what they say: workers, their order, what they read ahead, and lengths."""

import time
import warnings

import pytest
import torch
from tiny import points, trained, trainer
from torch.utils.data import Dataset
from workers_at_hand import Noted, SlowStream, SlowToBegin, Telling

from lightrainer import Trainer

# Starting worker processes from a process with threads is what the loader does; Python 3.12 and later warn about it.
forking = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def loaders(made, data):
    return {
        "train": made.get_train_dataloader(),
        "eval": made.get_eval_dataloader(),
        "test": made.get_test_dataloader(data),
    }


# --- worker processes


@forking
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_are_started_as_asked(tmp_path, method):
    """In training and in evaluation; each sample says how the process that made it was started."""
    options = {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": method}
    made = trainer(tmp_path, train_dataset=Telling(), eval_dataset=Telling(), **options)
    started = Telling.METHODS.index(f"{method.capitalize()}Process") % 3
    for name, loader in loaders(made, Telling()).items():
        assert {int(label) for batch in loader for label in batch["labels"]} == {started}, name


@forking
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("data", [SlowToBegin(), SlowStream()], ids=["map-style", "stream"])
def test_batches_that_are_ready_need_not_wait(tmp_path, data, in_order):
    """Two workers, of which the first is slow: its batches come first, or last."""
    options = {"dataloader_num_workers": 2, "dataloader_in_order": in_order, "train_sampling_strategy": "sequential"}
    options |= {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "max_steps": 4}
    made = trainer(tmp_path, train_dataset=data, eval_dataset=data, **options)
    for name, loader in loaders(made, data).items():
        with warnings.catch_warnings():
            # torch counts samples of a stream with a length, and both workers have half of them.
            warnings.filterwarnings("ignore", message="Length of IterableDataset")
            firsts = [int(batch["x"][0, 0]) for batch in loader]
        assert (firsts[0] == 0) is in_order, name


@forking
@pytest.mark.parametrize("factor", [None, 1, 6])
def test_so_many_batches_are_read_ahead(tmp_path, factor):
    """By one worker, while the first batch is being worked on: two if unset; the loader itself holds one more."""
    data = Noted(tmp_path / "read")
    options = {"dataloader_num_workers": 1, "dataloader_prefetch_factor": factor, "per_device_train_batch_size": 2}
    made = trainer(tmp_path, train_dataset=data, **options)
    batches = iter(made.get_train_dataloader())
    next(batches)
    expected = 2 * ((factor or 2) + 2)
    deadline = time.monotonic() + 120
    while (read := len(data.path.read_text().split())) < expected and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    assert read == len(data.path.read_text().split()) == expected


@forking
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_live_as_long_as_asked(tmp_path, persistent):
    """From one epoch to the next, and from one evaluation to the next."""
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    made = trainer(tmp_path, train_dataset=Telling(), eval_dataset=Telling(), **options)
    training = made.get_train_dataloader()
    for find in (lambda: training, made.get_eval_dataloader):
        first, second = ({int(batch["x"][0, 0]) for batch in find()} for _ in range(2))
        assert len(first) == len(second) == 1
        assert (first == second) is persistent


@forking
def test_workers_of_each_rank_have_seeds_of_their_own(tmp_path, monkeypatch):
    """As the reference's: torch's seed of the worker, moved on by as many workers as the ranks before have."""
    from transformers.trainer_utils import seed_worker as reference

    states = {}
    for rank in (0, 1):
        made = trainer(tmp_path / str(rank), dataloader_num_workers=2)
        monkeypatch.setattr(type(made.args), "process_index", property(lambda self, rank=rank: rank))
        init = made.get_train_dataloader().worker_init_fn
        for name, seed in (("ours", init), ("reference", lambda worker, rank=rank: reference(worker, 2, rank))):
            torch.manual_seed(11)
            seed(1)
            states[name, rank] = torch.rand(1).item()
    assert states["ours", 0] == states["reference", 0] != states["ours", 1] == states["reference", 1]


# --- lengths


class Counted(Dataset):
    """Counts how often each sample is read."""

    def __init__(self, count=16, seed=1):
        self.items = [
            {**item, "input_ids": [0] * (1 + 7 * index % 5)} for index, item in enumerate(points(count, seed=seed))
        ]
        self.reads = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.reads += 1
        return self.items[index]


def test_lengths_are_measured_once_for_each_dataset(tmp_path):
    """Two epochs, an evaluation after each, one more evaluation, a second training and a resumption."""
    training, evaluation = Counted(), Counted(6, seed=2)
    options = {"train_sampling_strategy": "group_by_length", "num_train_epochs": 2, "save_strategy": "epoch"}
    made = trained(tmp_path, train_dataset=training, eval_dataset=evaluation, eval_strategy="epoch", **options)
    assert training.reads == 16 + 1 + 2 * 16
    assert evaluation.reads == 6 + 1 + 2 * 6
    made.evaluate()
    assert evaluation.reads == 6 + 1 + 3 * 6
    made.train()
    assert training.reads == 16 + 1 + 4 * 16
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert training.reads == 16 + 1 + 5 * 16
    assert evaluation.reads == 6 + 1 + 6 * 6


def test_another_dataset_is_measured_for_itself(tmp_path):
    made = trainer(tmp_path, train_sampling_strategy="group_by_length")
    lengths = [made._get_eval_sampler(data).lengths for data in (Counted(6), Counted(4), Counted(6))]
    assert lengths[0] == lengths[2] == [*lengths[1], *lengths[0][4:]]


def table(count=12):
    import datasets

    rows = points(count)
    columns = {"x": [row["x"].tolist() for row in rows], "labels": [int(row["labels"]) for row in rows]}
    lengths = {"length": list(range(count)), "size": list(range(count, 0, -1)), "input_ids": [[0] * 3] * count}
    return datasets.Dataset.from_dict({**columns, **lengths})


@pytest.mark.parametrize("unused", [True, False])
@pytest.mark.parametrize("column", ["length", "size", "absent"])
def test_lengths_come_from_their_column_where_there_is_one(tmp_path, column, unused):
    """Also where the model takes no such column, and it is removed before the samples are read."""
    seen = []

    class Watching(Trainer):
        def _get_train_sampler(self, train_dataset=None):
            sampler = super()._get_train_sampler(train_dataset)
            seen.append((sampler.lengths, train_dataset.column_names))
            return sampler

    options = {"train_sampling_strategy": "group_by_length", "length_column_name": column}
    made = trainer(tmp_path, Watching, train_dataset=table(), remove_unused_columns=unused, **options)
    if unused and column == "absent":
        with pytest.raises(ValueError, match="needs a column 'input_ids', or lengths in one"):
            made.get_train_dataloader()
        return
    made.get_train_dataloader()
    ((lengths, columns),) = seen
    expected = {"length": list(range(12)), "size": list(range(12, 0, -1)), "absent": [3] * 12}
    assert lengths == expected[column]
    assert (column in columns) is (not unused and column != "absent")
