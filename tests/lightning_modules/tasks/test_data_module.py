"""`DataModule`: order, columns, lengths, several evaluation sets, and resumption (more of it in
test_resuming.py).
"""

import itertools
import logging

import datasets
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchmetrics.classification import MulticlassAccuracy

from helpers.lightning.tiny_modules import (
    Counted,
    Net,
    Seen,
    TokenNet,
    make_trainer,
    pad,
    points,
    same_weights,
    seeded,
    sentences,
)
from lightrainer.lightning_modules import DataModule, LossModule, set_seed

OPTIMIZER = {"learning_rate": 0.05}


def fitted(data, module=None, *, ckpt_path=None, **options):
    module, recorder = (
        (LossModule(seeded(Net), optimizer=OPTIMIZER) if module is None else module),
        Seen(),
    )
    trainer = make_trainer(callbacks=[recorder, *options.pop("callbacks", [])], **options)
    set_seed(7)
    if ckpt_path is not None:
        torch.rand(11)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return module, recorder, trainer


class Noisy(Dataset):
    """Draws from the global generator, as augmentations do; has lengths."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        item = points()[index]
        return {**item, "x": item["x"] + 0.1 * torch.randn(4), "input_ids": [0] * (index % 7 + 1)}


class Endless(IterableDataset):
    def __iter__(self):
        return ({"x": item["x"], "labels": item["labels"]} for item in itertools.cycle(points(50)))


class SizedStream(IterableDataset):
    """11 rows, which the workers share; torch counts 3 batches of 4 of them."""

    def __len__(self):
        return 11

    def __iter__(self):
        rows = points(11)
        worker = get_worker_info()
        return iter(rows if worker is None else rows[worker.id :: worker.num_workers])


def to_lists(items):
    return [{name: value.tolist() for name, value in item.items()} for item in items]


def dropping():
    return LossModule(seeded(Net, dropout=0.3), optimizer=OPTIMIZER, schedule={"name": "linear"})


KEPT = ["x", "labels"]
SOURCES = {
    "table": lambda: DataModule(
        datasets.Dataset.from_list(to_lists(points())).with_format("torch"), batch_size=4
    ),
    "by length": lambda: DataModule(
        Noisy(), batch_size=4, group_by_length=True, input_column="input_ids", columns=KEPT
    ),
    "workers": lambda: DataModule(Noisy(), batch_size=4, num_workers=2, columns=KEPT),
}


@pytest.mark.parametrize("source", SOURCES)
def test_data_module_resumes_with_the_very_next_batch(tmp_path, source):
    """In mid-epoch and at its end, to the bits of a training that was never interrupted."""
    saving = ModelCheckpoint(
        dirpath=tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1
    )
    whole, events, _ = fitted(
        SOURCES[source](), dropping(), callbacks=[saving], enable_checkpointing=True
    )
    for step in (2,) if source == "workers" else (2, 6, 8):
        file = tmp_path / f"step={step}.ckpt"
        torch.load(file, weights_only=True)
        resumed, resumed_events, _ = fitted(SOURCES[source](), dropping(), ckpt_path=file)
        assert len(resumed_events.batches) == 12 - step
        assert all(map(torch.equal, events.batches[step:], resumed_events.batches))
        assert same_weights(whole, resumed)


def test_shuffled_by_seed_and_epoch():
    shuffled = fitted(DataModule(points(), batch_size=4))[1].batches
    other = fitted(DataModule(points(), batch_size=4, seed=43))[1].batches
    assert not torch.equal(shuffled[0], shuffled[6]), "each epoch has its own order"
    assert not torch.equal(shuffled[0], other[0])
    assert torch.equal(shuffled[6], other[0]), "which is that of the next seed"


def test_data_module_groups_by_length():
    """Less than a third of the padding, the longest batch first."""

    def padding(validated=False, **options):
        sets = (None, sentences(200)) if validated else (sentences(200),)
        data = DataModule(*sets, collate_fn=pad, batch_size=4, **options)
        batches = list(data.val_dataloader() if validated else data.train_dataloader())
        return (
            sum((batch["labels"] == -100).sum().item() for batch in batches),
            batches[0]["input_ids"].shape[1],
        )

    (grouped, longest), (evaluated, _) = (
        padding(group_by_length=True),
        padding(True, group_by_length=True),
    )
    assert max(grouped, evaluated) < padding()[0] / 3
    assert longest == 9


def test_lengths_out_of_a_column():
    rows = [{**row, "length": number} for number, row in enumerate(to_lists(points()))]
    data = DataModule(
        datasets.Dataset.from_list(rows), batch_size=11, group_by_length=True, columns=KEPT
    )
    first = next(iter(data.train_dataloader()))
    assert set(first) == {"x", "labels"}
    assert np.allclose(first["x"][0], rows[-1]["x"])


def test_columns_are_those_that_the_model_takes_or_that_are_named():
    """Text would not become a tensor."""
    items = [{**item, "text": "words", "id": 3} for item in points()]
    for source in (
        items,
        datasets.Dataset.from_list([{**row, "text": "a"} for row in to_lists(points())]),
    ):
        assert fitted(DataModule(source, batch_size=4), max_epochs=1)[2].global_step == 6
    assert set(next(iter(DataModule(items, columns=["id"], batch_size=4).train_dataloader()))) == {
        "id"
    }
    texts = DataModule(sentences(), collate_fn=pad, batch_size=4)
    assert (
        fitted(texts, LossModule(seeded(TokenNet), optimizer=OPTIMIZER), max_epochs=1)[
            2
        ].global_step
        == 6
    )


def test_data_module_dict_of_validation_sets():
    """Each by itself, with its name; the whole of it, whatever the order."""
    sets = {"near": points(10, seed=5), "far": points(7, seed=6)}
    module = LossModule(
        seeded(Net), optimizer=OPTIMIZER, metrics={"acc": MulticlassAccuracy(3, average="micro")}
    )
    logged = fitted(DataModule(points(), sets, batch_size=4), module, max_epochs=1)[
        2
    ].callback_metrics
    assert {"val_near_loss", "val_near_acc", "val_far_loss", "val_far_acc"} <= set(logged)
    assert "val_acc" not in logged
    for name, items in sets.items():
        with torch.no_grad():
            predicted = module.model(torch.stack([item["x"] for item in items]))["logits"].argmax(
                -1
            )
        right = predicted == torch.stack([item["labels"] for item in items])
        assert float(logged[f"val_{name}_acc"]) == pytest.approx(right.float().mean().item())


class OwnLoaders(DataModule):
    """Writes its own loaders, of 3 rows each, and has no datasets for them."""

    def val_dataloader(self):
        return DataLoader(points(3))

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


class OwnSetup(OwnLoaders):
    """Has its own `setup` too."""

    def setup(self, stage):
        super().setup(stage)


@pytest.mark.parametrize("kind", [OwnLoaders, OwnSetup])
def test_loaders_of_subclasses_are_used_without_datasets(kind):
    data, module = (
        kind(points(4), batch_size=4),
        LossModule(seeded(Net), metrics={"rows": lambda logits, labels: len(labels)}),
    )
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, data)
    assert trainer.callback_metrics["val_rows"] == 3
    assert trainer.test(module, data, verbose=False)[0]["test_rows"] == 3
    assert len(trainer.predict(module, data)) == 3


@pytest.mark.parametrize("step", [1, 2, 3])
def test_scheduled_accumulation_resumes_inside_an_epoch(tmp_path, step):
    def fitted(*callbacks, **options):
        schedule = GradientAccumulationScheduler({0: 4, 1: 2})
        trainer = make_trainer(
            callbacks=[schedule, *callbacks], enable_checkpointing=bool(callbacks)
        )
        module = LossModule(seeded(Net), optimizer={"learning_rate": 0.1})
        trainer.fit(module, DataModule(points(32), batch_size=4), **options)
        return module, trainer.global_step

    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    (whole, steps), (resumed, same) = (
        fitted(saving),
        fitted(ckpt_path=tmp_path / f"step={step}.ckpt"),
    )
    assert steps == same == 6
    assert same_weights(whole, resumed)


def test_from_datasets_makes_a_data_module_of_the_class():
    """With Lightning's names and default, and the arguments of the class."""
    data = OwnSetup.from_datasets(points(8), batch_size=4, shuffle=False)
    assert (type(data), data.batch_size, data.shuffle) == (OwnSetup, 4, False)
    assert DataModule.from_datasets(points(8), points(2)).batch_size == 1
    trainer = make_trainer(max_epochs=1)
    trainer.fit(
        LossModule(seeded(Net)), DataModule.from_datasets(points(8), points(2), batch_size=4)
    )
    assert trainer.global_step == 2
    assert "val_loss" in trainer.callback_metrics


def test_test_and_predict():
    data = DataModule(
        None, None, points(10, seed=5), points(10, seed=5), batch_size=4, eval_batch_size=5
    )
    module, trainer = LossModule(seeded(Net)), make_trainer()
    (results,) = trainer.test(module, data, verbose=False)
    outputs = trainer.predict(module, data)
    assert [len(logits) for logits in outputs] == [5, 5]
    labels = torch.stack([item["labels"] for item in points(10, seed=5)])
    expected = torch.nn.functional.cross_entropy(torch.cat(outputs), labels)
    assert results["test_loss"] == pytest.approx(expected.item())


def test_functions_that_make_datasets():
    calls = []

    def make():
        calls.append(1)
        return points()

    data = DataModule(
        make,
        {
            "a": make,
            "b": {
                "class_path": "helpers.lightning.tiny_modules.Counted",
                "init_args": {"count": 5},
            },
        },
    )
    assert calls == []
    for _ in range(2):
        fitted(data)
    assert len(calls) == 2, "once each"
    assert isinstance(data.val_dataset["b"], Counted)


def test_streams_and_samplers_have_their_order():
    recorder = fitted(DataModule(Endless(), batch_size=4), max_epochs=-1, max_steps=3)[1]
    assert torch.equal(
        torch.cat(recorder.batches), torch.stack([item["x"] for item in points(50)[:12]])
    )
    recorder = fitted(
        DataModule(points(), batch_size=4, sampler=lambda data: range(len(data) - 1, -1, -1))
    )[1]
    backwards = torch.stack([item["x"] for item in reversed(points())])
    assert torch.equal(torch.cat(recorder.batches), torch.cat([backwards, backwards]))


def test_columns_that_the_model_does_not_take(caplog):
    """They are logged once; the error of a collator that uses one explains why it is missing."""
    samples = [{**item, "extra": 1} for item in points(8)]

    def asking(items):
        return {"x": torch.stack([item["x"] for item in items]) * items[0]["extra"]}

    def validate(**options):
        make_trainer().validate(
            LossModule(seeded(Net)), DataModule(None, samples, **options), verbose=False
        )

    # Some versions of Lightning do not pass their records on to the root logger.
    logger = logging.getLogger("lightning.pytorch.lightrainer")
    logger.addHandler(caplog.handler)
    with caplog.at_level("INFO", logger.name):
        validate(batch_size=4)
    logger.removeHandler(caplog.handler)
    messages = {record.getMessage() for record in caplog.records}
    (message,) = [message for message in messages if "Dropped" in message]
    assert "`Net.forward` has no such parameter: extra" in message
    with pytest.raises(KeyError, match=r"`Net.forward`.*: extra\. .*columns=\["):
        validate(collate_fn=asking)


LOADER = DataLoader(Noisy(), batch_size=4)
WRONG_DATA = {
    "train_dataset": [
        LOADER,
        {"a": Noisy()},
        [Noisy(), Noisy()],
        "data.csv",
        5,
        Noisy,
        (row for row in range(3)),
    ],
    "val_dataset": [LOADER, {"a": LOADER}, [Noisy(), LOADER], "data.csv", {"a": 5}, iter([])],
    "test_dataset": [LOADER, {"a": {"b": Noisy}}],
    "predict_dataset": [LOADER, [Noisy(), Noisy()], {"a": Noisy()}, 5],
}
VERBS = {
    "train_dataset": "fit",
    "val_dataset": "validate",
    "test_dataset": "test",
    "predict_dataset": "predict",
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, one) for name, wrong in WRONG_DATA.items() for one in wrong]
)
def test_data_module_refuses_what_is_not_a_dataset(argument, value):
    with pytest.raises(TypeError, match=f"^`{argument}") as raised:
        getattr(make_trainer(), VERBS[argument])(
            LossModule(seeded(Net)), DataModule(**{argument: value})
        )
    message = str(raised.value)
    assert "Pass " in message or "ConcatDataset" in message
    if "DataLoader" in message:
        assert ".dataset, or pass the loaders to the Trainer" in message


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_data_module_list_of_sets_is_evaluated_in_turn(verb):
    """A list of samples is one set."""
    stage = "val" if verb == "validate" else "test"
    datasets = {f"{stage}_dataset": [Noisy(), Noisy()]}
    results = getattr(make_trainer(), verb)(
        LossModule(seeded(Net)), DataModule(None, **datasets), verbose=False
    )
    assert [list(result) for result in results] == [
        [f"{stage}_loss/dataloader_idx_{index}"] for index in range(2)
    ]
    datasets = {f"{stage}_dataset": points(10)}
    (result,) = getattr(make_trainer(), verb)(
        LossModule(seeded(Net)), DataModule(None, **datasets), verbose=False
    )
    assert list(result) == [f"{stage}_loss"]


def test_data_module_refuses_a_sampler_object():
    data = DataModule(points(), sampler=torch.utils.data.SequentialSampler(points()))
    with pytest.raises(TypeError, match=r"sampler=lambda data: SequentialSampler"):
        make_trainer().fit(LossModule(seeded(Net)), data)


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__`")
def test_data_module_evaluates_the_whole_of_a_sized_stream(stage, num_workers):
    """The incomplete last batches of all workers too, of which torch's length counts one."""
    rows = []

    class Counting(LossModule):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            rows.extend(batch["labels"].tolist())

        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            rows.extend(batch["labels"].tolist())
            return batch["labels"]

        test_step = validation_step

    stream = SizedStream()
    data = DataModule(None, stream, stream, stream, batch_size=4, num_workers=num_workers)
    getattr(make_trainer(), stage)(Counting(seeded(Net)), data)
    assert sorted(rows) == sorted(row["labels"].item() for row in points(11))
