"""A small script that trains until a signal comes; `test_engine_signals.py` runs it and sends the signals.

It says "training" when the first step is done, and trains on until a SIGINT; says when that reached it, and waits for
a second one; then it trains again, until it is killed.
"""

import time

import torch

from lightrainer.lightning_modules.internals import lightning_internals
from lightrainer.lightning_modules.internals.lightning_import import LightningModule, Trainer


class Loader:
    def __iter__(self):
        return iter([torch.ones(1)] * 6000)


class Endless(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        if batch_idx == 1:
            print("training", flush=True)
        time.sleep(0.01)
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train():
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **options)
    lightning_internals.leave_signals_alone(trainer)
    with lightning_internals.interruptible():
        trainer.fit(Endless(), lightning_internals.combined(Loader(), training=True))


def main():
    try:
        train()
    except KeyboardInterrupt:
        try:
            print("first interrupt", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("second interrupt", flush=True)
    train()


if __name__ == "__main__":
    main()
