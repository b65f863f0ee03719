"""Trains in any number of processes with a loss that is recorded, too; each process writes its
logs.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from helpers.trainer.tiny_trainings import arguments, make_trainer
from lightrainer import Trainer

PLAIN = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 3,
    "num_train_epochs": 2,
    "logging_steps": 2,
}


class Tokens(nn.Module):
    """A table of logits for eleven tokens, whose loss is divided by the items of the step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(11, 11)

    def forward(self, ids, labels, num_items_in_batch=None):
        logits = self.table(ids)
        loss = functional.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(),
            reduction="sum" if num_items_in_batch is not None else "mean",
        )
        if num_items_in_batch is not None:
            loss = loss / num_items_in_batch
        return {"loss": loss, "aux_loss": logits.mean(), "logits": logits}


class Recording(Trainer):
    """Records the mean of each micro-batch, and `lone` in the first process alone."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        logits, labels = outputs["logits"], inputs["labels"]
        self.record(mean=functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))
        if self.args.process_index == 0:
            self.record(lone=7.0)
        return (loss, outputs) if return_outputs else loss


def sentences(count: int = 21):
    """Rows with one to five labels that count."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(11, (count, 6), generator=generator)
    samples = [{"ids": row[:-1].clone(), "labels": row[1:].clone()} for row in rows]
    for index, sample in enumerate(samples):
        sample["labels"][: index % 5] = -100
    return samples


def recorded(folder: Path, *callbacks, resume: bool = False, **changes):
    """The Trainer after its training and an evaluation of 7 rows."""
    trainer = make_trainer(
        folder,
        Recording,
        model=Tokens(),
        args=arguments(folder, **{**PLAIN, **changes}),
        train_dataset=sentences(),
        eval_dataset=sentences(7),
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    made = recorded(folder / "output")
    made.evaluate()
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(made.state.log_history))
