"""What a checkpoint of Lightning holds of a module is loaded exactly, and what it lacks is asked
for.
"""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from helpers.lightning.tiny_modules import make_trainer, same_weights, seeded
from lightrainer import DataModule, LossModule, SequenceClassificationModule

ROWS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(ROWS, ROWS[:, :3].argmax(1))
CROSS_ENTROPY = {"class_path": "torch.nn.CrossEntropyLoss"}


def data():
    return DataModule(DATA, batch_size=4)


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.1)


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def fitted(module, *, file=None, resume_from=None, **options):
    trainer = make_trainer(**{"max_epochs": 1, **options})
    trainer.fit(module, data(), ckpt_path=resume_from)
    if file is not None:
        trainer.save_checkpoint(file)
    return trainer


def network():
    return seeded(nn.Linear, 4, 3)


@pytest.mark.parametrize("kind", [LossModule, SequenceClassificationModule])
@pytest.mark.parametrize(("argument", "function"), [("optimizer", sgd), ("schedule", halved)])
def test_functions_that_are_not_passed_again_are_asked_for(tmp_path, kind, argument, function):
    """The loaded module evaluates, saves and loads as it is; it does not train with a default."""
    file, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    fitted(kind(network(), loss_fn=CROSS_ENTROPY, **{argument: function}), file=file)
    loaded = kind.load_from_checkpoint(file, model=network())
    trainer = make_trainer()
    trainer.validate(loaded, DataLoader(DATA, batch_size=4), verbose=False)
    trainer.save_checkpoint(second)
    for path in (file, second):
        with pytest.raises(ValueError, match=rf"function {function.__name__} as `{argument}`"):
            fitted(kind.load_from_checkpoint(path, model=network()))
    passed = kind.load_from_checkpoint(second, model=network(), **{argument: function})
    trainer = fitted(passed)
    chosen = (
        trainer.optimizers[0]
        if argument == "optimizer"
        else trainer.lr_scheduler_configs[0].scheduler
    )
    assert type(chosen).__name__ == {"optimizer": "SGD", "schedule": "StepLR"}[argument]


@pytest.mark.parametrize("compiled_first", [True, False])
def test_compiled_and_plain_models_load_each_others_files(tmp_path, compiled_first):
    def compiled():
        return torch.compile(network(), backend="eager")

    written, read = (compiled, network) if compiled_first else (network, compiled)
    file = tmp_path / "module.ckpt"
    module = LossModule(written(), loss_fn=CROSS_ENTROPY, optimizer={"learning_rate": 0.1})
    fitted(module, file=file)
    loaded = LossModule.load_from_checkpoint(file, model=read())
    assert same_weights(loaded, module)
    resumed = LossModule(read(), loss_fn=CROSS_ENTROPY, optimizer={"learning_rate": 0.1})
    fitted(resumed, resume_from=file)
    assert same_weights(resumed, module)


def test_loading_refuses_a_folder_with_advice(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder.*ckpt_path"):
        LossModule.load_from_checkpoint(tmp_path, model=network())


class OwnModule(LightningModule):
    """A LightningModule of the user's."""

    def __init__(self):
        super().__init__()
        self.model = network()

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


MODULES = {
    "ours": lambda: LossModule(network(), loss_fn=CROSS_ENTROPY, optimizer={"learning_rate": 0.1}),
    "own": OwnModule,
}


@pytest.mark.parametrize("kind", MODULES)
def test_files_with_weights_only_are_read_safely(tmp_path, kind):
    module, file = MODULES[kind](), tmp_path / "weights.ckpt"
    fitted(module).save_checkpoint(file, weights_only=True)
    stored = torch.load(file, weights_only=True)["state_dict"]
    assert torch.equal(stored["model.weight"], module.model.weight)


@pytest.mark.parametrize("kind", MODULES)
def test_double_precision_is_resumed_without_rounding(tmp_path, kind):
    whole, resumed, file = MODULES[kind](), MODULES[kind](), tmp_path / "first.ckpt"
    fitted(whole, max_epochs=2, precision="64-true")
    fitted(MODULES[kind](), precision="64-true", file=file)
    fitted(resumed, max_epochs=2, precision="64-true", resume_from=file)
    assert whole.model.weight.dtype == torch.float64
    assert same_weights(whole, resumed)
