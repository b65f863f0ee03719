"""Tiny models, data and trainers for the tests of the modules."""

import torch
from lightning.pytorch import Callback, Trainer
from torch import nn
from torch.nn import functional

from lightrainer.lightning_modules.internals import lightning_internals

ROWS = torch.randn(22, 4, generator=torch.Generator().manual_seed(0))
CLASSES = ROWS[:, :3].argmax(1)
"""The class of each of the rows."""


class Net(nn.Module):
    """Three classes from four features, with a norm and some dropout; returns loss and logits."""

    def __init__(self, width: int = 8, dropout: float = 0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, width), nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, 3)
        )

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return {
            "loss": None if labels is None else functional.cross_entropy(logits, labels),
            "logits": logits,
        }


class Bare(nn.Module):
    """The logits alone; it does not know labels."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class TokenNet(nn.Module):
    """Logits for each token; tells how much it would like to be told."""

    def __init__(self, tokens: int = 11):
        super().__init__()
        self.embedding = nn.Embedding(tokens, 6)
        self.head = nn.Linear(6, tokens)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.head(self.embedding(input_ids))
        if labels is None:
            return {"logits": logits}
        total = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        return {
            "loss": (
                total
                / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)
            )
        }


def seeded(make, *args, seed=1, **kwargs):
    """A model with the weights of a seed."""
    torch.manual_seed(seed)
    return make(*args, **kwargs)


def points(count=22, seed=0):
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": row, "labels": row[:3].argmax()} for row in rows]


def sentences(count=22, seed=0, tokens=11):
    """Of 2 to 9 tokens, their own labels."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 10, (count,), generator=generator).tolist()
    return [
        {"input_ids": torch.randint(1, tokens, (length,), generator=generator)}
        for length in lengths
    ]


def pad(items):
    longest = max(len(item["input_ids"]) for item in items)
    rows = {"input_ids": 0, "labels": -100}
    return {
        name: torch.stack(
            [
                functional.pad(item["input_ids"], (0, longest - len(item["input_ids"])), value=fill)
                for item in items
            ]
        )
        for name, fill in rows.items()
    }


def make_trainer(**kwargs):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, "max_epochs": 2, "num_sanity_val_steps": 0}
    with lightning_internals.quiet():
        return Trainer(**{**options, **kwargs})


class Seen(Callback):
    """Record each batch, its loss, and the learning rate of its step."""

    def __init__(self):
        self.batches, self.losses, self.logged, self.rates, self.epochs = [], [], [], [], []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.epochs.append(trainer.current_epoch)
        self.batches.append(next(iter(batch.values())).cpu().clone())
        self.losses.append(float(outputs["loss"]))
        self.logged.append(float(trainer.callback_metrics.get("train_loss", float("nan"))))


def same_weights(left, right):
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.equal(actual, expected) for actual, expected in pairs)


class Counted:
    """A dataset that is made with an argument."""

    def __init__(self, count: int):
        self.items = points(count, seed=9)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]
