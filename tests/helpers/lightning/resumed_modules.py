"""Data, modules and callbacks of trainings that are resumed from checkpoints of every hook."""

import functools
import itertools
import random

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule
from torch.utils.data import Dataset, IterableDataset, Sampler

from helpers.lightning.tiny_modules import Net, Seen, points, seeded
from lightrainer import default_data_collator

ITEMS = points(46)
"""Six batches of eight, the last one shorter."""


class Noisy(Dataset):
    """Draws from the global generator and from its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, index):
        noise = torch.randn(4) + torch.randn(4, generator=self.generator)
        return {"x": ITEMS[index]["x"] + 0.1 * noise, "labels": ITEMS[index]["labels"]}


class Stream(IterableDataset):
    """The same without a length."""

    def __init__(self, items=None):
        self.items = Noisy() if items is None else items
        self.generator = self.items.generator

    def __iter__(self):
        return (self.items[index] for index in range(len(self.items)))


class Sized(Stream):
    def __len__(self):
        return len(ITEMS)


class Counting(Noisy):
    """Each sample is a little larger than the one before; how many there were is in its
    `state_dict`.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __getitem__(self, index):
        self.count += 1
        item = super().__getitem__(index)
        return {**item, "x": item["x"] * (1 + self.count / 100)}

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class LateDraws:
    """A collator whose generator is made when it is first needed."""

    def __init__(self):
        self.generator = None

    def __call__(self, samples):
        if self.generator is None:
            self.generator = random.Random(4)
        batch = default_data_collator(samples)
        return {**batch, "x": batch["x"] + 0.1 * self.generator.random()}


class Shuffled(Sampler):
    """An order that is drawn from a generator of numpy."""

    def __init__(self, data):
        self.data = data
        self.generator = np.random.default_rng(6)

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return iter(self.generator.permutation(len(self.data)).tolist())


class Plain(LightningModule):
    """Another author's module: dropout, a validation that draws, a schedule by step and one that
    follows a metric.
    """

    def __init__(self):
        super().__init__()
        self.net = seeded(Net, dropout=0.3)

    def training_step(self, batch, batch_idx):
        loss = self.net(**batch)["loss"]
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log(
            f"val_{dataloader_idx}",
            self.net(**batch)["loss"] + torch.rand(()),
            add_dataloader_idx=False,
        )

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 20)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Following(Plain):
    """Its learning rate falls with each epoch, as no metric ever gets that much better."""

    def __init__(self, interval="epoch"):
        super().__init__()
        self.interval = interval

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, threshold=0.5, factor=0.7
        )
        schedule = {"scheduler": plateau, "monitor": "train_loss", "interval": self.interval}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Events(Seen):
    """Record each batch, and the steps and results of validations."""

    def __init__(self):
        super().__init__()
        self.validations = []

    def on_validation_end(self, trainer, module):
        values = sorted(
            (name, float(value))
            for name, value in trainer.callback_metrics.items()
            if "val" in name
        )
        self.validations.append((trainer.current_epoch, trainer.global_step, *values))


HOOKS = (
    "train_epoch_start",
    "train_batch_end",
    "train_epoch_end",
    "train_end",
    "validation_start",
    "validation_batch_end",
    "validation_epoch_end",
    "validation_end",
)


class EveryHook(Callback):
    """Saves at each of the hooks; by default at all of them, and in the middle of a validation."""

    def __init__(self, folder, hooks=HOOKS):
        self.folder, self.count = folder, itertools.count()
        for hook in hooks:
            setattr(self, f"on_{hook}", functools.partial(self.save, hook))

    def save(self, hook, trainer, *others, **named):
        if not trainer.sanity_checking:
            trainer.save_checkpoint(self.folder / f"{next(self.count):03}-{hook}.ckpt")
