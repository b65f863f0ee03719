"""From datasets to batches: loaders, samplers, columns, collators, evaluation sets."""

import logging

import pytest
import torch
from tiny import Tiny, points, trainer
from torch.utils.data import IterableDataset

from lightrainer import DataCollatorWithPadding, default_data_collator


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Seeing(Tiny):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x, labels=None):
        self.seen.append(x.clone())
        return super().forward(x, labels)


def features(items):
    return torch.stack([item["x"] for item in items])


# --- loaders


def test_the_options_of_the_loaders(tmp_path):
    made = trainer(tmp_path, dataloader_num_workers=2, dataloader_persistent_workers=True)
    loader = made.get_train_dataloader()
    assert loader.worker_init_fn is not None
    assert made.get_eval_dataloader().worker_init_fn is None
    assert made.get_eval_dataloader() is made.get_eval_dataloader(), "the workers would be started anew each time"
    assert loader.pin_memory is False, "pinned memory would only warn where there is no GPU"


def test_how_many_examples(tmp_path):
    made = trainer(tmp_path, max_steps=2)
    assert made.num_examples(made.get_train_dataloader()) == 16
    assert made.num_examples([1, 2, 3]) == 12, "no dataset behind it: batches times their size"
    length = made.set_initial_training_values(made.args, made.get_train_dataloader())
    assert length == (1, 4, 16, 8, 4, 4, 2)


def test_a_stream_of_the_datasets_library(tmp_path, caplog):
    import datasets

    def generate():
        for item in points(40):
            yield {"x": item["x"].tolist(), "labels": int(item["labels"]), "name": "unused"}

    made = trainer(tmp_path, train_dataset=datasets.IterableDataset.from_generator(generate), max_steps=3)
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        assert made.train().global_step == 3
    (said,) = [record.getMessage() for record in caplog.records if "Tiny" in record.getMessage()]
    assert "name" in said


# --- columns


def table(**columns):
    import datasets

    rows = points(8)
    given = {"x": [row["x"].tolist() for row in rows], "labels": [int(row["labels"]) for row in rows], **columns}
    return datasets.Dataset.from_dict({name: values for name, values in given.items() if values is not None})


def test_no_column_is_left(tmp_path):
    made = trainer(tmp_path / "out", train_dataset=table(x=None, labels=None, name=["a"] * 8))
    with pytest.raises(ValueError, match=r"(?s)(?=.*name)(?=.*Tiny)(?=.*\bx\b)(?=.*remove_unused_columns=False)"):
        made.train()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_collator_that_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"batch is empty.*x, labels"):
        trainer(tmp_path, data_collator=lambda items: {}).train()


# --- collators


def test_the_default_collator_pads_with_what_can_pad(tmp_path):
    class Padding:
        model_input_names = ["x"]

        def pad(self, features, **kwargs):
            rows = [[*feature["x"], *[0.0] * (8 - len(feature["x"]))] for feature in features]
            return {"x": torch.tensor(rows), "labels": torch.tensor([feature["labels"] for feature in features])}

    data = [{"x": [1.0] * (5 + index % 4), "labels": index % 3} for index in range(8)]
    made = trainer(tmp_path, train_dataset=data, processing_class=Padding())
    assert isinstance(made.data_collator, DataCollatorWithPadding)
    assert made.train().global_step == 2
    assert trainer(tmp_path).data_collator is default_data_collator
    assert trainer(tmp_path, processing_class=object()).data_collator is default_data_collator


# --- evaluation sets


def test_a_dict_of_tables(tmp_path):
    import datasets

    made = trainer(tmp_path, eval_dataset=datasets.DatasetDict({"near": table(), "far": table()}))
    assert {"eval_near_loss", "eval_far_loss"} <= set(made.evaluate())
