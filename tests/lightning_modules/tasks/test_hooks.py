"""Users may override Lightning's hooks without `super()`, and call the steps without a Trainer."""

import copy

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from helpers.lightning.tiny_modules import CLASSES, ROWS, make_trainer, same_weights
from lightrainer import (
    CausalLMModule,
    DataModule,
    LossModule,
    SequenceClassificationModule,
    TokenClassificationModule,
)

HOOKS = [
    "setup",
    "teardown",
    "prepare_data",
    "on_fit_start",
    "on_fit_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_end",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_sanity_check_start",
    "on_test_start",
    "on_test_end",
    "on_test_epoch_start",
    "on_test_epoch_end",
    "on_save_checkpoint",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
]


class NoHooks(SequenceClassificationModule):
    """Makes its model in `configure_model`; the control, without other hooks."""

    def configure_model(self):
        if self.model is None:
            torch.manual_seed(1)
            self.model = nn.Linear(4, 3)


def do_nothing(self, *args, **kwargs):
    """Override a hook."""


def no_callbacks(self):
    return []


Hookless = type(
    "Hookless",
    (NoHooks,),
    {**dict.fromkeys(HOOKS, do_nothing), "configure_callbacks": no_callbacks},
)


class OwnCallback(Callback):
    """Does nothing."""


class OwnCallbacks(LossModule):
    """Returns one callback, as Lightning's documentation does it."""

    def configure_callbacks(self):
        return OwnCallback()


def trained(kind):
    """Train two epochs with an uneven last step, and test."""
    data = DataModule(TensorDataset(ROWS, CLASSES), TensorDataset(ROWS, CLASSES), batch_size=4)
    schedule = {"name": "linear"}
    options = {
        "num_labels": 3,
        "train_metrics": True,
        "optimizer": {"learning_rate": 0.1},
        "schedule": schedule,
    }
    module = kind(**options)
    trainer = make_trainer(accumulate_grad_batches=4)
    trainer.fit(module, data)
    logged = dict(trainer.callback_metrics)
    tested = trainer.test(
        module, DataLoader(TensorDataset(ROWS, CLASSES), batch_size=4), verbose=False
    )
    return (
        module.model,
        logged,
        tested,
        [type(callback).__name__ for callback in trainer.callbacks],
    )


def test_hooks_without_super_change_nothing():
    actual, expected = trained(Hookless), trained(NoHooks)
    assert same_weights(actual[0], expected[0])
    assert actual[1:] == expected[1:]
    assert {"train_accuracy", "val_accuracy"} <= set(actual[1])
    assert "test_accuracy" in actual[2][0]


def test_configured_callbacks_are_added_to_those_of_the_module():
    module = OwnCallbacks(
        nn.Linear(4, 3), loss_fn=nn.CrossEntropyLoss(), metrics={"acc": MulticlassAccuracy(3)}
    )
    trainer = make_trainer(max_epochs=1)
    for _ in range(2):
        trainer.fit(copy.deepcopy(module), DataLoader(TensorDataset(ROWS, CLASSES), batch_size=4))
    names = [type(callback).__name__ for callback in trainer.callbacks]
    assert (
        names.count("OwnCallback")
        == names.count("ModuleCallback")
        == names.count("ResumingCallback")
        == 1
    )


@pytest.mark.parametrize("in_fabric", [True, False])
@pytest.mark.parametrize(
    "kind", [LossModule, SequenceClassificationModule, TokenClassificationModule]
)
def test_steps_without_a_trainer_return_the_loss_of_the_batch(kind, in_fabric):
    torch.manual_seed(0)
    options = {"loss_fn": nn.CrossEntropyLoss()} if kind is LossModule else {"num_labels": 3}
    module = kind(nn.Linear(4, 3), optimizer={"learning_rate": 0.1}, **options)
    expected = functional.cross_entropy(module.model(ROWS), CLASSES)
    wrapped = Fabric(devices=1).setup_module(module) if in_fabric else module
    batch = (ROWS.to(module.device), CLASSES.to(module.device))
    for step in (wrapped.training_step, wrapped.validation_step, wrapped.test_step):
        torch.testing.assert_close(step(batch, 0).cpu(), expected)
    torch.testing.assert_close(module.compute_loss(batch)[0].cpu(), expected)
    assert module.predict_step(batch, 0).shape == (22, 3)
    assert isinstance(module.configure_optimizers(), torch.optim.Optimizer)


def test_hooks_of_a_language_model_without_a_trainer():
    tokens = torch.randint(7, (4, 6), generator=torch.Generator().manual_seed(0))
    module = CausalLMModule(nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7)))
    logits = module.model(tokens)[:, :-1]
    expected = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(module.training_step(tokens, 0), expected)
