"""The same metrics objects work in a `LossModule` under a plain `lightning.Trainer`."""

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from lightrainer import BatchMetrics, LossModule, TokenLoss


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 3)

    def forward(self, x, labels=None, target=None):
        logits = self.layer(x)
        labels = labels if target is None else target
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits, "pooled": x.mean(1)}


def items(count=10, name="labels", seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [{"x": x, name: x.argmax() % 3} for x in torch.randn(count, 4, generator=generator)]


def plain_trainer(folder, **changes):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        **quiet,
        **changes,
    )


def loader(*args, **kwargs):
    return DataLoader(items(*args, **kwargs), batch_size=4)


def expected_accuracy(model, data):
    with torch.no_grad():
        predicted = model.layer(torch.stack([item["x"] for item in data])).argmax(-1)
    return float((predicted == torch.stack([item["labels"] for item in data])).float().mean())


METRICS = {
    "a metric": (lambda: MulticlassAccuracy(3, average="micro"), "MulticlassAccuracy"),
    "a collection": (
        lambda: MetricCollection({"acc": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3)}),
        "acc",
    ),
    "a dict": (lambda: {"acc": MulticlassAccuracy(3, average="micro"), "loss_by_token": TokenLoss()}, "acc"),
    "functions": (lambda: {"acc": lambda logits, labels: (logits.argmax(-1) == labels).float().mean().item()}, "acc"),
    "our own class": (
        lambda: BatchMetrics(
            MulticlassAccuracy(3, average="micro"), lambda predictions, labels: (predictions[0].argmax(-1), labels)
        ),
        "MulticlassAccuracy",
    ),
}


@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers", "ignore:.*LeafSpec")
@pytest.mark.filterwarnings("ignore:The 'test_dataloader' does not have many workers")
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("stage", ["val", "test"])
def test_over_the_whole_epoch(tmp_path, name, stage):
    make, metric = METRICS[name]
    module = LossModule(Model(), metrics=make())
    trainer = plain_trainer(tmp_path)
    run = trainer.validate if stage == "val" else trainer.test
    for seed in (1, 2):  # what was counted before is forgotten
        (logged,) = run(module, loader(seed=seed), verbose=False)
        assert logged[f"{stage}_{metric}"] == pytest.approx(expected_accuracy(module.model, items(seed=seed)))
        assert f"{stage}_loss" in logged


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:The number of training")
def test_in_a_fit(tmp_path):
    """Logged after each epoch, of which the sanity check is none; nothing of them is in a checkpoint."""
    metrics = {"acc": MulticlassAccuracy(3, average="micro"), "rows": lambda logits, labels: len(labels)}
    module = LossModule(Model(), metrics=metrics, train_metrics=True)
    trainer = plain_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, loader(8), loader(6, seed=2))
    expected = expected_accuracy(module.model, items(6, seed=2))
    assert float(trainer.callback_metrics["val_acc"]) == pytest.approx(expected)
    assert (trainer.callback_metrics["train_rows"], trainer.callback_metrics["val_rows"]) == (8, 6)
    assert set(module.state_dict()) == {"model.layer.weight", "model.layer.bias"}


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
def test_what_is_no_number(tmp_path):
    """It cannot be logged, but is there."""
    module = LossModule(Model(), metrics={"confusion": MulticlassConfusionMatrix(3)})
    (logged,) = plain_trainer(tmp_path).validate(module, loader(), verbose=False)
    assert list(logged) == ["val_loss"]
    assert module.metric_values["val_confusion"].sum() == 10
