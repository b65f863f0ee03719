"""Several training loaders, which Lightning combines: a step is that of one batch with the
samples of all.
"""

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from helpers.lightning.tiny_modules import Bare, Net, make_trainer, points, seeded
from lightrainer.lightning_modules import LossModule

SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}
ROWS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([-100, -100, -100, 0, 1, 2, 1, 0, 1, 1, -100, 2])
NEAR, FAR = TensorDataset(ROWS[:8], CLASSES[:8]), TensorDataset(ROWS[8:], CLASSES[8:])
"""Four batches of two, and of one."""
TOGETHER = Subset(ConcatDataset([NEAR, FAR]), [0, 1, 8, 2, 3, 9, 4, 5, 10, 6, 7, 11])


def make_module(kind=LossModule, **options):
    return kind(seeded(Bare), loss_fn=nn.CrossEntropyLoss(), optimizer=SGD, **options)


def fitted(loaders, module=None, **options):
    module = make_module() if module is None else module
    trainer = make_trainer(**options)
    trainer.fit(module, loaders)
    return trainer


def weights(trainer):
    return trainer.lightning_module.model.layer.weight


def loaders_of(form):
    near, far = DataLoader(NEAR, batch_size=2), DataLoader(FAR, batch_size=1)
    return {"dict": {"near": near, "far": far}, "list": [near, far]}[form]


@pytest.mark.parametrize("form", ["dict", "list"])
@pytest.mark.parametrize("accumulated", [1, 2, 3])
def test_several_training_sets_make_one_step(form, accumulated):
    """Each label that counts weighs the same; a part without one changes nothing."""
    options = {"accumulate_grad_batches": accumulated}
    actual = fitted(loaders_of(form), **options)
    expected = fitted(DataLoader(TOGETHER, batch_size=3), **options)
    torch.testing.assert_close(weights(actual), weights(expected), rtol=0, atol=1e-6)
    means = [float(trainer.callback_metrics["train_loss"]) for trainer in (actual, expected)]
    assert means[0] == pytest.approx(means[1], abs=1e-6)
    near_alone = fitted(DataLoader(NEAR, batch_size=2), **options)
    assert not torch.allclose(weights(near_alone), weights(expected), atol=1e-2), "negative control"


def test_models_that_return_their_loss():
    near, far = points(8), points(4, seed=3)
    loaders = {"near": DataLoader(near, batch_size=2), "far": DataLoader(far, batch_size=1)}
    combined = Subset(near + far, [0, 1, 8, 2, 3, 9, 4, 5, 10, 6, 7, 11])
    actual, expected = (
        fitted(data, LossModule(seeded(Net), optimizer=SGD)).lightning_module
        for data in (loaders, DataLoader(combined, batch_size=3))
    )
    for left, right in zip(actual.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["dict", "list"])
def test_several_training_sets_log_loss_and_metrics(form):
    metrics = {"right": MulticlassAccuracy(3, average="micro", ignore_index=-100)}
    trainer = fitted(
        loaders_of(form), make_module(train_metrics=metrics, log_separator="/"), max_epochs=1
    )
    names = {
        "dict": ["near_{}", "far_{}"],
        "list": ["{}/dataloader_idx_0", "{}/dataloader_idx_1"],
    }[form]
    expected = {f"train/{name.format(value)}" for name in names for value in ("loss", "right")}
    assert set(trainer.callback_metrics) == {"train/loss"} | expected


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
def test_modes_of_combined_loaders(mode):
    """The second loader has two batches, the first four."""
    loaders = {"near": DataLoader(NEAR, batch_size=2), "far": DataLoader(FAR, batch_size=2)}
    trainer = fitted(CombinedLoader(loaders, mode), max_epochs=1)
    assert trainer.global_step == (2 if mode == "min_size" else 4)


class Weighted(LossModule):
    """Weighs the losses of the sets, as for tasks that matter more than others."""

    def training_step(self, batch, batch_idx):
        near, far = (
            LossModule.training_step(self, batch[name], batch_idx) for name in ("near", "far")
        )
        return near + 0.0 * far


def test_several_training_sets_with_an_override_of_the_loss():
    trainer = fitted(loaders_of("dict"), make_module(Weighted))
    alone = fitted(DataLoader(NEAR, batch_size=2))
    assert set(trainer.callback_metrics) == {"train_loss"}
    torch.testing.assert_close(weights(trainer), weights(alone), rtol=0, atol=1e-6)


def test_compute_loss_of_a_subclass_gets_all_batches():
    batch_keys = []

    class OneLoss(LossModule):
        def compute_loss(self, batch, items=None):
            batch_keys.append(sorted(batch))
            return super().compute_loss(batch["a"])[0] + super().compute_loss(batch["b"])[0], None

    loaders = {
        "a": DataLoader(points(8), batch_size=4),
        "b": DataLoader(points(8, seed=1), batch_size=4),
    }
    trainer = make_trainer(max_epochs=1)
    trainer.fit(OneLoss(seeded(Net)), loaders)
    assert batch_keys == [["a", "b"], ["a", "b"]]
    assert trainer.callback_metrics["train_loss"] > 0
