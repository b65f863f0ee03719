"""A script of plain Lightning, as a LightningCLI and without one; it imports nothing of
lightrainer.

lightning_sweep_script.py fit --model.rate 0.1
RATE=0.1 lightning_sweep_script.py
"""

import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Module(LightningModule):
    def __init__(self, rate: float = 0.0):
        super().__init__()
        self.weight, self.rate = torch.nn.Parameter(torch.ones(1)), rate

    def training_step(self, batch):
        return (self.weight * batch).pow(2).mean()

    def validation_step(self, batch):
        self.log("val_score", -self.weight.abs().item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)

    def train_dataloader(self):
        return DataLoader(torch.ones(4, 1))

    def val_dataloader(self):
        return DataLoader(torch.ones(1, 1))


settings = {"max_epochs": 3, "accelerator": "cpu", "logger": False}
settings |= {"enable_progress_bar": False, "enable_model_summary": False}
if "fit" in sys.argv:
    from lightning.pytorch.cli import LightningCLI

    best = ModelCheckpoint(monitor="val_score", mode="max")
    LightningCLI(Module, trainer_defaults={**settings, "callbacks": [best]})
else:
    Trainer(**settings, enable_checkpointing=False).fit(
        Module(float(os.environ.get("RATE", "0.1")))
    )
