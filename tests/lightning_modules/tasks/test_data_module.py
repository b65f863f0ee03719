"""`DataModule`: order, columns, lengths, several evaluation sets, and resumption, with any LightningModule."""

import itertools

import datasets
import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from module_world import Counted, Net, Seen, TokenNet, make_trainer, pad, points, same_weights, seeded, sentences
from torch.utils.data import Dataset, IterableDataset
from torchmetrics.classification import MulticlassAccuracy

from lightrainer.lightning_modules import DataModule, EpochLoader, LossModule, set_seed
from lightrainer.lightning_modules.internals import lightning_internals

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]
OPTIMIZER = {"learning_rate": 0.05}


@pytest.fixture(autouse=True)
def _quiet():
    with lightning_internals.quiet():
        yield


def fitted(data, module=None, *, ckpt_path=None, **options):
    module, seen = LossModule(seeded(Net), optimizer=OPTIMIZER) if module is None else module, Seen()
    trainer = make_trainer(callbacks=[seen, *options.pop("callbacks", [])], **options)
    set_seed(7)
    if ckpt_path is not None:
        torch.rand(11)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return module, seen, trainer


class Noisy(Dataset):
    """Draws from the global generator, as augmentations do."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        item = points()[index]
        return {"x": item["x"] + 0.1 * torch.randn(4), "labels": item["labels"]}


class Endless(IterableDataset):
    def __iter__(self):
        return ({"x": item["x"], "labels": item["labels"]} for item in itertools.cycle(points(50)))


class Foreign(LightningModule):
    """Somebody else's module, with dropout, which knows nothing of ours."""

    def __init__(self):
        super().__init__()
        self.net = seeded(Net, dropout=0.3)

    def training_step(self, batch, batch_idx):
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


MODULES = {
    "ours": lambda: LossModule(seeded(Net, dropout=0.3), optimizer=OPTIMIZER, schedule={"name": "linear"}),
    "any": Foreign,
}
SOURCES = {
    "map": lambda: DataModule(points(), batch_size=4),
    "noisy": lambda: DataModule(Noisy(), batch_size=4),
    "table": lambda: DataModule(datasets.Dataset.from_list(to_lists(points())).with_format("torch"), batch_size=4),
    "by length": lambda: DataModule(
        Lengths(), batch_size=4, group_by_length=True, input_column="input_ids", columns=["x", "labels"]
    ),
    "workers": lambda: DataModule(Noisy(), batch_size=4, num_workers=2),
}


def to_lists(items):
    return [{name: value.tolist() for name, value in item.items()} for item in items]


class Lengths(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return {**points()[index], "input_ids": [0] * (index % 7 + 1)}


class TestResuming:
    @pytest.mark.parametrize("step", [2, 6, 8])
    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("module", MODULES)
    def test_goes_on_with_the_very_next_batch(self, tmp_path, module, source, step):
        """In mid-epoch and at its end, to the bits of a training that was never interrupted."""
        if source == "workers" and step != 2:
            pytest.skip("slow, and shown by one")
        saving = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=step, save_top_k=-1)
        whole, seen, _ = fitted(SOURCES[source](), MODULES[module](), callbacks=[saving], enable_checkpointing=True)
        file = tmp_path / f"step={step}.ckpt"
        torch.load(file, weights_only=True)
        resumed, rest, _ = fitted(SOURCES[source](), MODULES[module](), ckpt_path=file)
        assert len(rest.batches) == 12 - step
        assert all(torch.equal(one, other) for one, other in zip(seen.batches[step:], rest.batches, strict=True))
        assert same_weights(whole, resumed)

    def test_without_the_data_module_another_batch_comes(self, tmp_path):
        """Negative control: Lightning alone begins the epoch anew."""
        saving = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
        loader = lambda: torch.utils.data.DataLoader(points(), batch_size=4, shuffle=True)
        seen = fitted(loader(), Foreign(), callbacks=[saving], enable_checkpointing=True)[1]
        with pytest.warns(UserWarning, match="resum"):
            rest = fitted(loader(), Foreign(), ckpt_path=tmp_path / "step=2.ckpt")[1]
        assert not torch.equal(seen.batches[2], rest.batches[0])

    def test_by_hand(self):
        """`state_dict` after some batches, `load_state_dict` into a new one: the same batches follow."""
        first = DataModule(Noisy(), batch_size=4)
        set_seed(3)
        batches = iter(first.train_dataloader())
        for _ in range(3):
            next(batches)
        state = first.state_dict()
        rest = [batch["x"] for batch in batches]
        second = DataModule(Noisy(), batch_size=4)
        second.load_state_dict(state)
        set_seed(99)
        again = [batch["x"] for batch in second.train_dataloader()]
        assert len(again) == len(rest) == 3
        assert all(torch.equal(one, other) for one, other in zip(rest, again, strict=True))
        assert len(list(second.train_dataloader())) == 6, "and only once"


class TestOrder:
    def test_shuffled_by_seed_and_epoch(self):
        seen = fitted(DataModule(points(), batch_size=4))[1].batches
        other = fitted(DataModule(points(), batch_size=4, seed=43))[1].batches
        assert not torch.equal(seen[0], seen[6]), "each epoch has an order of its own"
        assert not torch.equal(seen[0], other[0])
        assert torch.equal(seen[6], other[0]), "which is that of the next seed"

    def test_drop_last(self):
        seen = fitted(DataModule(points(), batch_size=4, drop_last=True), max_epochs=1)[1].batches
        assert [len(batch) for batch in seen] == [4] * 5

    def test_by_length(self):
        """Less than a third of the padding, the longest batch first."""

        def padding(**options):
            data = DataModule(sentences(200), collate_fn=pad, batch_size=4, **options)
            return [(batch["labels"] == -100).sum().item() for batch in data.train_dataloader()]

        assert sum(padding(group_by_length=True)) < sum(padding()) / 3
        longest = DataModule(sentences(200), collate_fn=pad, batch_size=4, group_by_length=True)
        assert next(iter(longest.train_dataloader()))["input_ids"].shape[1] == 9
        grouped = DataModule(None, sentences(200), collate_fn=pad, batch_size=4, group_by_length=True)
        assert sum((batch["labels"] == -100).sum().item() for batch in grouped.val_dataloader()) < sum(padding()) / 3

    def test_lengths_out_of_a_column(self):
        rows = [
            {"x": item["x"].tolist(), "labels": int(item["labels"]), "length": n} for n, item in enumerate(points())
        ]
        table = datasets.Dataset.from_list(rows)
        data = DataModule(table, batch_size=11, group_by_length=True, columns=["x", "labels"])
        first = next(iter(data.train_dataloader()))
        assert set(first) == {"x", "labels"}
        assert any(np.allclose(row, rows[-1]["x"]) for row in first["x"][:1])


class TestColumns:
    def test_those_that_the_model_takes(self):
        """Text would not become a tensor."""
        items = [{**item, "text": "words", "id": 3} for item in points()]
        for source in (items, datasets.Dataset.from_list([{**row, "text": "a"} for row in to_lists(points())])):
            assert fitted(DataModule(source, batch_size=4), max_epochs=1)[2].global_step == 6

    def test_those_that_are_named(self):
        data = DataModule([{**item, "id": 3} for item in points()], columns=["id"], batch_size=4)
        assert set(next(iter(data.train_dataloader()))) == {"id"}

    def test_a_collator(self):
        texts = DataModule(sentences(), collate_fn=pad, batch_size=4)
        assert fitted(texts, LossModule(seeded(TokenNet), optimizer=OPTIMIZER), max_epochs=1)[2].global_step == 6


class TestStages:
    def test_a_dict_of_validation_sets(self):
        """Each by itself, with its name; the whole of it, whatever the order."""
        data = DataModule(points(), {"near": points(10, seed=5), "far": points(7, seed=6)}, batch_size=4)
        module = LossModule(seeded(Net), optimizer=OPTIMIZER, metrics={"acc": MulticlassAccuracy(3, average="micro")})
        trainer = fitted(data, module, max_epochs=1)[2]
        found = trainer.callback_metrics
        assert {"val_near_loss", "val_near_acc", "val_far_loss", "val_far_acc"} <= set(found)
        assert "val_acc" not in found
        for name, items in (("near", points(10, seed=5)), ("far", points(7, seed=6))):
            with torch.no_grad():
                predicted = module.model(torch.stack([item["x"] for item in items]))["logits"].argmax(-1)
            right = predicted == torch.stack([item["labels"] for item in items])
            assert float(found[f"val_{name}_acc"]) == pytest.approx(right.float().mean().item())

    def test_metrics_of_the_training(self):
        """Of the batches as the model was when it saw them."""
        module = LossModule(
            seeded(Net),
            optimizer=OPTIMIZER,
            metrics={"acc": MulticlassAccuracy(3, average="micro")},
            train_metrics=True,
        )
        right = []
        module.model.register_forward_hook(
            lambda model, args, kwargs, output: right.append(output["logits"].argmax(-1) == kwargs["labels"]),
            with_kwargs=True,
        )
        trainer = fitted(DataModule(points(), batch_size=4), module, max_epochs=1)[2]
        assert float(trainer.callback_metrics["train_acc"]) == pytest.approx(torch.cat(right).float().mean().item())
        module.model._forward_hooks.clear()

    def test_test_and_predict(self):
        data = DataModule(None, None, points(10, seed=5), points(10, seed=5), batch_size=4, eval_batch_size=5)
        module, trainer = LossModule(seeded(Net)), make_trainer()
        (found,) = trainer.test(module, data, verbose=False)
        outputs = trainer.predict(module, data)
        assert [len(logits) for logits in outputs] == [5, 5]
        labels = torch.stack([item["labels"] for item in points(10, seed=5)])
        logits = torch.cat(outputs)
        assert found["test_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())

    def test_functions_that_make_datasets(self):
        made = []

        def make():
            made.append(1)
            return points()

        data = DataModule(make, {"a": make, "b": {"class_path": "module_world.Counted", "init_args": {"count": 5}}})
        assert made == []
        fitted(data)
        fitted(data)
        assert len(made) == 2, "once each"
        assert isinstance(data.val_dataset["b"], Counted)

    def test_streams(self):
        seen = fitted(DataModule(Endless(), batch_size=4), max_epochs=-1, max_steps=3)[1]
        assert torch.equal(torch.cat(seen.batches), torch.stack([item["x"] for item in points(50)[:12]]))


def test_a_sampler_orders_the_training_data():
    seen = fitted(DataModule(points(), batch_size=4, sampler=lambda data: range(len(data) - 1, -1, -1)))[1]
    backwards = torch.stack([item["x"] for item in reversed(points())])
    assert torch.equal(torch.cat(seen.batches), torch.cat([backwards, backwards]))


@pytest.mark.parametrize("kind", ["samples", "table"])
def test_columns_that_the_model_does_not_take(caplog, kind):
    """They are said once; a collator that asks for one is told why it is not there."""
    samples = [{**item, "extra": 1} for item in points(8)]
    if kind == "table":
        columns = {name: [torch.as_tensor(item[name]).tolist() for item in samples] for name in samples[0]}
        samples = datasets.Dataset.from_dict(columns).with_format("torch")

    def asking(items):
        return {"x": torch.stack([item["x"] for item in items]) * items[0]["extra"]}

    with caplog.at_level("INFO", "lightning.pytorch.lightrainer"):
        make_trainer().validate(LossModule(seeded(Net)), DataModule(None, samples, batch_size=4), verbose=False)
    (said,) = [record.getMessage() for record in caplog.records if "Dropped" in record.getMessage()]
    assert "`Net.forward` has no such parameter: extra. If they are needed, name those to keep: columns=[...]" in said
    with pytest.raises(KeyError, match=r"asks for a column that is not there.*`Net.forward`.*: extra\. .*columns=\["):
        make_trainer().validate(LossModule(seeded(Net)), DataModule(None, samples, collate_fn=asking), verbose=False)


def test_loaders_are_ours_and_hyperparameters_are_plain():
    data = DataModule(points(), batch_size=4, num_workers=0)
    assert isinstance(data.train_dataloader(), EpochLoader)
    assert data.hparams["batch_size"] == 4
    assert "train_dataset" not in data.hparams
