"""The plainest training under Lightning, for the tests of the engine."""

import functools

import torch
from lightning.pytorch import LightningModule

from helpers.lightning import tiny_modules
from lightrainer.lightning_modules.internals import lightning_internals

make_trainer = functools.partial(tiny_modules.make_trainer, max_epochs=1, accelerator="cpu")


class Loader:
    def __iter__(self):
        return iter([torch.ones(1), torch.ones(1)])

    def __len__(self):
        return 2


class Model(LightningModule):
    def __init__(self, at_step=lambda: None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.at_step = at_step

    def training_step(self, batch, batch_idx):
        self.at_step()
        return (self.weight * batch).sum()

    def validation_step(self, batch, batch_idx):
        self.at_step()

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(trainer, module, verb="fit", loader=None):
    if verb == "fit":
        trainer.limit_val_batches = 0
    loader = lightning_internals.combined(
        Loader() if loader is None else loader, training=verb == "fit"
    )
    with lightning_internals.quiet():
        (
            trainer.fit(module, loader, [])
            if verb == "fit"
            else getattr(trainer, verb)(module, loader, verbose=False)
        )
