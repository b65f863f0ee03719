"""A window of batches is one big batch for a `LossModule` under a plain `lightning.Trainer`."""

import pytest

pytest.importorskip("transformers")

import lightning
import torch
from torch.utils.data import DataLoader

from helpers.promises.class_walk import Step, own_loss, whole_batch
from helpers.promises.small_samples import SAMPLES
from helpers.promises.user_code import (
    Tagger,
    TaggerThatNamesItems,
    TaggerThatNamesItemsOnly,
    TaggerWithKwargs,
    bert,
    classifier,
    llama,
    samples_for,
    smoothed_loss,
    with_adapter,
)
from lightrainer import LossModule

# torch warns of what Lightning does with its trees; the other is advice.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
)

RATE = 1000.0
"""Large, so that what one step of SGD adds to the weights is its gradient to the last digits."""

MODELS = {
    "head, mean": bert,
    "head, mean over rows": classifier,
    "head, by items": llama,
    "adapter, mean": lambda: with_adapter(bert()),
    "own module": Tagger,
    "own module with kwargs": TaggerWithKwargs,
    "own module that divides by items": TaggerThatNamesItems,
    "own module that names items": TaggerThatNamesItemsOnly,
}


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def fitted(model: torch.nn.Module, samples: list, batch_size: int, window: int, **options) -> Step:
    """Return the step of a plain `lightning.Trainer`."""
    module = LossModule(
        model, optimizer={"class_path": "torch.optim.SGD", "init_args": {"lr": RATE}}, **options
    )
    before = weights_of(model)
    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=window,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(samples, batch_size=batch_size))
    assert trainer.global_step == 1
    return Step(trainer.callback_metrics["train_loss"].item(), (before - weights_of(model)) / RATE)


@pytest.mark.parametrize("window", [2, 4, 8], ids=["2 x 4", "4 x 2", "4 x 2 of a window of 8"])
@pytest.mark.parametrize("name", MODELS)
def test_window_is_one_batch(name, window):
    make = MODELS[name]
    samples = samples_for(make())
    expected = whole_batch(make(), samples, own_loss)
    step = fitted(make(), samples, max(SAMPLES // window, 2), window)
    assert step.difference(expected) < 1e-5


@pytest.mark.parametrize("window", [2, 4])
def test_window_with_smoothed_labels_is_one_batch(window):
    samples = samples_for(bert())
    step = fitted(bert(), samples, SAMPLES // window, window, label_smoothing=0.1)
    assert step.difference(whole_batch(bert(), samples, smoothed_loss)) < 1e-5
