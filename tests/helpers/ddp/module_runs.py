"""Trainings with modules and `DataModule`, for one process or several: the same data for all of
them together.
"""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, ModelCheckpoint
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from helpers.processes.rank_training import Classifier, points
from lightrainer.lightning_modules import (
    CausalLMModule,
    DataModule,
    LossModule,
    SequenceClassificationModule,
    set_seed,
)
from lightrainer.lightning_modules.internals import lightning_internals

TOKENS = 11


class Words(nn.Module):
    """Logits for each token; divides its loss by `num_items_in_batch`. Has a buffer, which DDP
    broadcasts.
    """

    _no_split_modules = ("Linear",)

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, TOKENS)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, input_ids, labels=None, num_items_in_batch=None, **kwargs):
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        logits = self.head(hidden)
        total = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": total / count, "logits": logits}


class Foreign(LightningModule):
    """A module that knows nothing of ours, with dropout."""

    def __init__(self):
        super().__init__()
        self.model = seeded(partial(Classifier, dropout=0.3))

    def training_step(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.model(**batch)["loss"] + torch.rand(()), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


class ForeignByHand(Foreign):
    """Accumulates two batches by itself; the gradients of the first stay in their process."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        is_complete = batch_idx % 2 == 1
        waiting = contextlib.nullcontext() if is_complete else self.trainer.model.no_sync()
        with waiting:
            self.manual_backward(loss)
        if is_complete:
            optimizer.step()
            optimizer.zero_grad()

    def on_validation_model_zero_grad(self):
        """Keep the gradients, which Lightning drops when a validation begins."""


def seeded(make):
    torch.manual_seed(5)
    return make()


def texts(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 10, (count,), generator=generator).tolist()
    return [
        {"input_ids": torch.randint(1, TOKENS, (length,), generator=generator)}
        for length in lengths
    ]


def pad(items):
    longest = max(len(item["input_ids"]) for item in items)
    padded = [
        functional.pad(item["input_ids"] + 1, (0, longest - len(item["input_ids"])))
        for item in items
    ]
    ids = torch.stack(padded)
    return {"input_ids": (ids - 1).clamp(min=0), "labels": ids - 1 + (ids == 0) * -99}


def share_of_hits(predictions, labels):
    return (predictions.argmax(-1) == labels).float().mean()


def make_trainer(**options: Any) -> Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 1,
    }
    with lightning_internals.quiet():
        return Trainer(
            **{
                "accelerator": "cpu",
                "max_epochs": 2,
                "enable_checkpointing": False,
                **quiet,
                **options,
            }
        )


def values_of(module: Any) -> list[float]:
    state = {name: value for name, value in module.model.state_dict().items() if name != "steps"}
    whole = [
        value.full_tensor() if hasattr(value, "full_tensor") else value for value in state.values()
    ]
    return torch.cat([value.flatten() for value in whole]).tolist()


def words(share: int, folder: Path, **options: Any) -> dict[str, Any]:
    """A language model; 8 samples a step in all processes together, of 40, evaluated on 10
    others.
    """
    source: Any = (lambda: seeded(Words)) if options.pop("later", False) else seeded(Words)
    module = CausalLMModule(
        source,
        optimizer={"learning_rate": 0.01, "weight_decay": 0.1},
        schedule={"name": "linear"},
        metrics={"acc": MulticlassAccuracy(TOKENS, average="micro"), "plain": share_of_hits},
    )
    data = DataModule(texts(40), texts(10, seed=3), collate_fn=pad, batch_size=share)
    trainer = make_trainer(gradient_clip_val=0.5, default_root_dir=folder, **options)
    set_seed(42)
    trainer.fit(module, data)
    names = ("val_loss", "val_acc", "val_plain", "train_loss")
    results = {name: float(trainer.callback_metrics[name]) for name in names}
    sharded = any(hasattr(parameter, "full_tensor") for parameter in module.parameters())
    module.save_pretrained(folder / "saved")
    return {
        **results,
        "steps": trainer.global_step,
        "weights": values_of(module),
        "sharded": sharded,
    }


def evaluated(share: int, **options: Any) -> dict[str, Any]:
    """Samples that fill no round; one without a label fills up the last round of "c"."""
    accuracy = MulticlassAccuracy(3, average="micro", ignore_index=-100)
    metrics = {"acc": accuracy, "plain": share_of_hits}
    module = LossModule(seeded(Classifier), metrics=metrics)
    without_label = points(9, seed=6)
    without_label[3]["labels"] = torch.tensor(-100)
    sets = {"a": points(11), "b": points(3, seed=4), "c": without_label}
    data = DataModule(None, sets, batch_size=share)
    results = make_trainer(**options).validate(module, data, verbose=False)
    return {name: value for result in results for name, value in result.items()}


def pairs(share: int, *, task: bool = False, **options: Any) -> dict[str, Any]:
    """Tuples and a loss function: 24 samples of which every third has no label that counts,
    evaluated on 11 others.

    Args:
        share: samples of a batch in each process.
        task: the loss is that of a module for a task.
        options: of the trainer.
    """
    torch.manual_seed(5)
    network, metrics = nn.Linear(4, 3), {"acc": MulticlassAccuracy(3, average="micro")}
    module = (
        SequenceClassificationModule(network, num_labels=3, metrics=metrics)
        if task
        else LossModule(network, loss_fn=nn.CrossEntropyLoss(), metrics=metrics)
    )
    sets = []
    for count, seed in ((24, 2), (11, 3)):
        rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
        labels = rows[:, :3].argmax(1)
        labels[::3] = -100 if count == 24 else 0
        sets.append(TensorDataset(rows, labels))
    trainer = make_trainer(**options)
    module.learning_rate = 0.05
    set_seed(42)
    trainer.fit(module, DataModule(*sets, batch_size=share))
    results = {name: float(trainer.callback_metrics[name]) for name in ("val_loss", "val_acc")}
    return {**results, "steps": trainer.global_step, "weights": values_of(module)}


class Unfreezing(BaseFinetuning):
    """Trains the first layer from the second epoch on."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.model[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.model[0], optimizer, lr=0.5)


def unfrozen(share: int, **options: Any) -> list[float]:
    """Weights of a training in which a callback unfreezes a layer."""
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}
    module = LossModule(network, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)
    rows = torch.randn(24, 4, generator=torch.Generator().manual_seed(2))
    labels = rows[:, :3].argmax(1)
    labels[::3] = -100
    set_seed(42)
    trainer = make_trainer(callbacks=[Unfreezing()], **options)
    trainer.fit(module, DataModule(TensorDataset(rows, labels), batch_size=share))
    return values_of(module)


def interrupted(
    share: int, folder: Path, *, by_hand: bool = False, **options: Any
) -> dict[str, Any]:
    """Weights of a training that was not interrupted, and of those that went on from each of its
    checkpoints.
    """
    options = {"val_check_interval": 3, **options}
    if not by_hand:
        options["accumulate_grad_batches"] = 2
    saving = {
        "end": ModelCheckpoint(
            folder / "in work", filename="trained {step}", every_n_train_steps=1, save_top_k=-1
        ),
        "val": ModelCheckpoint(
            folder / "in work", filename="validated {step}", monitor="val_loss", save_top_k=-1
        ),
    }

    def run(start: Path | None, callbacks: list[Any]) -> Any:
        trainer = make_trainer(callbacks=callbacks, enable_checkpointing=bool(callbacks), **options)
        set_seed(42 + trainer.global_rank)
        if start is not None:
            torch.rand(5)
        module = ForeignByHand() if by_hand else Foreign()
        trainer.fit(
            module, DataModule(points(46), points(9, seed=3), batch_size=share), ckpt_path=start
        )
        return [trainer.global_step, *values_of(trainer.lightning_module)]

    whole = run(None, list(saving.values()))
    return {
        "whole": whole,
        "resumed": {file.stem: run(file, []) for file in sorted((folder / "in work").iterdir())},
    }
