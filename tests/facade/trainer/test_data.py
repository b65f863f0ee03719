"""From datasets to batches: loaders, samplers, columns, collators, evaluation sets."""

import logging

import pytest
import torch
from tiny import Tiny, points, tiny, trainer
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from lightrainer import DataCollatorWithPadding, Trainer, default_data_collator


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


def test_loaders_of_the_user(tmp_path):
    """Plain DataLoaders: each batch of theirs is seen, in their order, and no dataset is needed."""

    class OwnLoaders(Trainer):
        def get_train_dataloader(self):
            return DataLoader(points(9), batch_size=3)

        def get_eval_dataloader(self, eval_dataset=None):
            return DataLoader(points(5, seed=4), batch_size=2)

        def get_test_dataloader(self, test_dataset):
            return DataLoader(test_dataset[::-1], batch_size=3)

    made = trainer(tmp_path, OwnLoaders, model=Seeing(), train_dataset=None, eval_dataset=None)
    assert made.train().global_step == 3
    made.evaluate()
    prediction = made.predict(points(7))
    assert [len(x) for x in made.model.seen] == [3, 3, 3, 2, 2, 1, 3, 3, 1]
    assert torch.equal(torch.cat(made.model.seen), features([*points(9), *points(5, seed=4), *points(7)[::-1]]))
    assert prediction.predictions.shape == (7, 3)


def test_training_shuffles_and_evaluation_does_not(tmp_path):
    made = trainer(tmp_path, model=Seeing())
    made.train()
    trained, made.model.seen = torch.cat(made.model.seen), []
    made.evaluate()
    made.predict(points(5))
    assert torch.equal(torch.cat(made.model.seen), features([*points(6, seed=2), *points(5)]))
    assert not torch.equal(trained, features(points()))
    assert sorted(trained.tolist()) == sorted(features(points()).tolist())


def test_each_epoch_has_an_order_of_its_own(tmp_path):
    made = trainer(tmp_path, model=Seeing(), num_train_epochs=2)
    made.train()
    first, second = torch.cat(made.model.seen[:4]), torch.cat(made.model.seen[4:])
    assert not torch.equal(first, second)
    assert sorted(first.tolist()) == sorted(second.tolist())


def test_the_kinds_of_samplers(tmp_path):
    made = trainer(tmp_path)
    assert type(made._get_train_sampler()) is RandomSampler
    assert type(made._get_train_sampler(points(3))) is RandomSampler
    assert type(made._get_eval_sampler(points(3))) is SequentialSampler
    assert made._get_train_sampler(Stream([])) is made._get_eval_sampler(Stream([])) is None
    made.args.train_sampling_strategy = "sequential"
    assert type(made._get_train_sampler()) is SequentialSampler


def test_the_options_of_the_loaders(tmp_path):
    options = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3, "dataloader_persistent_workers": True}
    made = trainer(tmp_path, **options, dataloader_drop_last=True, train_dataset=points(10))
    loader = made.get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert len(loader) == 2
    assert loader.worker_init_fn is not None
    assert made.get_eval_dataloader().worker_init_fn is None
    assert made.get_eval_dataloader() is made.get_eval_dataloader(), "the workers would be started anew each time"
    assert loader.pin_memory is False, "pinned memory would only warn where there is no GPU"


def test_batch_sizes_of_loaders(tmp_path):
    made = trainer(tmp_path, per_device_train_batch_size=5, per_device_eval_batch_size=2)
    sizes = [
        [len(batch["x"]) for batch in loader] for loader in (made.get_train_dataloader(), made.get_eval_dataloader())
    ]
    assert sizes == [[5, 5, 5, 1], [2, 2, 2]]
    assert [len(batch["x"]) for batch in made.get_test_dataloader(points(3))] == [2, 1]


def test_how_many_examples(tmp_path):
    made = trainer(tmp_path, max_steps=2)
    assert made.num_examples(made.get_train_dataloader()) == 16
    assert made.num_examples([1, 2, 3]) == 12, "no dataset behind it: batches times their size"
    length = made.set_initial_training_values(made.args, made.get_train_dataloader())
    assert length == (1, 4, 16, 8, 4, 4, 2)


def test_a_stream(tmp_path):
    made = trainer(tmp_path, model=Seeing(), train_dataset=Stream(points(40)), max_steps=3)
    assert made.train().global_step == 3
    assert torch.equal(torch.cat(made.model.seen), features(points(40)[:12]))


def test_a_stream_to_evaluate_on(tmp_path):
    made = trainer(tmp_path, eval_dataset=Stream(points(6, seed=2)))
    known = trainer(tmp_path)
    assert made.evaluate()["eval_loss"] == known.evaluate()["eval_loss"]
    assert made.predict(Stream(points(6))).predictions.shape == (6, 3)


def test_a_stream_of_the_datasets_library(tmp_path, caplog):
    import datasets

    def generate():
        for item in points(40):
            yield {"x": item["x"].tolist(), "labels": int(item["labels"]), "name": "unused"}

    made = trainer(tmp_path, train_dataset=datasets.IterableDataset.from_generator(generate), max_steps=3)
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        assert made.train().global_step == 3
    assert any("name" in record.getMessage() and "Tiny" in record.getMessage() for record in caplog.records)


def test_a_part_of_a_dataset(tmp_path):
    made = trainer(tmp_path, train_dataset=Subset(points(), range(8)))
    assert made.train().global_step == 2


# --- columns


def table(**columns):
    import datasets

    rows = points(8)
    given = {"x": [row["x"].tolist() for row in rows], "labels": [int(row["labels"]) for row in rows], **columns}
    return datasets.Dataset.from_dict({name: values for name, values in given.items() if values is not None})


def listed(**columns):
    rows = points(8)
    made = [
        {**row, **{name: values[index] for name, values in columns.items() if values}} for index, row in enumerate(rows)
    ]
    return [{name: value for name, value in row.items() if columns.get(name, "there") is not None} for row in made]


@pytest.mark.parametrize("make", [table, listed])
@pytest.mark.parametrize("which", ["train", "evaluate", "predict"])
def test_unused_columns_are_named_in_the_log(tmp_path, caplog, make, which):
    data = make(name=["a"] * 8, path=["b"] * 8)
    made = trainer(tmp_path, train_dataset=data, eval_dataset=data)
    act = {"train": made.train, "evaluate": made.evaluate, "predict": lambda: made.predict(data)}[which]
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        act()
    told = [record.getMessage() for record in caplog.records if "Tiny" in record.getMessage()]
    assert len(told) == 1, "said once, not at each batch"
    kind = {"train": "training", "evaluate": "evaluation", "predict": "test"}[which]
    missing = [word for word in (kind, "name, path", "Tiny", "remove_unused_columns=False") if word not in told[0]]
    assert not missing, told


@pytest.mark.parametrize("make", [table, listed])
def test_nothing_is_said_when_nothing_is_dropped(tmp_path, caplog, make):
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        trainer(tmp_path, train_dataset=make()).train()
    assert not [record for record in caplog.records if "remove_unused_columns" in record.getMessage()]


@pytest.mark.parametrize("make", [table, listed])
def test_no_column_is_left(tmp_path, make):
    """The message says what was there and what was looked for."""
    made = trainer(tmp_path / "out", train_dataset=make(x=None, labels=None, name=["a"] * 8, path=["b"] * 8))
    with pytest.raises(
        ValueError, match=r"(?s)(?=.*training)(?=.*name)(?=.*path)(?=.*Tiny)(?=.*\bx\b)(?=.*labels)"
    ) as error:
        made.train()
    assert "remove_unused_columns=False" in str(error.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("make", [table, listed])
def test_the_collator_makes_the_inputs_of_any_columns(tmp_path, make):
    data = make(x=None, labels=None, a=[[0.5] * 8] * 8, b=[1] * 8)

    def collate(items):
        assert set(items[0]) == {"a", "b"}
        return {"x": torch.tensor([i["a"] for i in items]), "labels": torch.tensor([i["b"] for i in items])}

    made = trainer(tmp_path, train_dataset=data, data_collator=collate, remove_unused_columns=False)
    assert made.train().global_step == 2


def test_the_table_of_the_user_keeps_its_columns(tmp_path):
    data = table(name=["a"] * 8)
    trainer(tmp_path, train_dataset=data).train()
    assert data.column_names == ["x", "labels", "name"]


def test_a_collator_that_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"batch is empty.*data_collator.*x, labels"):
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


def test_evaluation_sets_by_name(tmp_path):
    sets = {"near": points(6, seed=2), "far": points(9, seed=5)}
    made = trainer(tmp_path, eval_dataset=sets)
    everything = made.evaluate()
    assert everything["eval_near_loss"] == made.evaluate("near")["eval_loss"]
    assert everything["eval_far_loss"] == made.evaluate(sets["far"], metric_key_prefix="mine")["mine_loss"]
    assert made.evaluate({"new": points(6, seed=2)})["eval_new_loss"] == everything["eval_near_loss"]
    assert everything["eval_near_loss"] != everything["eval_far_loss"]


def test_a_dict_of_tables(tmp_path):
    import datasets

    made = trainer(tmp_path, eval_dataset=datasets.DatasetDict({"near": table(), "far": table()}))
    assert {"eval_near_loss", "eval_far_loss"} <= set(made.evaluate())


def test_given_data_go_before_the_trainers_own(tmp_path):
    made = trainer(tmp_path, model=Seeing())
    made.evaluate(points(3, seed=8))
    assert torch.equal(torch.cat(made.model.seen), features(points(3, seed=8)))


def test_data_without_labels_give_predictions_alone(tmp_path):
    made = trainer(tmp_path)
    prediction = made.predict([{"x": item["x"]} for item in points(5)])
    assert prediction.predictions.shape == (5, 3)
    assert prediction.label_ids is None
    assert "test_loss" not in prediction.metrics
    assert tiny().eval().logits(features(points(5))).detach().numpy() == pytest.approx(
        prediction.predictions, rel=1e-5, abs=1e-6
    )
