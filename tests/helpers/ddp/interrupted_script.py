"""Trainings that fail or are interrupted in only one of two processes, for `torchrun`.

    torchrun --nproc_per_node=2 interrupted_script.py
    faults|stopped|interrupted|evaluated|endless|resumed OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/SCENARIO-rank<rank>.json`.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from helpers.processes.rank_training import QUIET, points, timeless
from lightrainer import Trainer, TrainingArguments

RANK = int(os.environ["RANK"])


class TooLarge(torch.autograd.Function):
    """Runs out of memory in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        raise torch.OutOfMemoryError("CUDA out of memory.")


class Model(nn.Module):
    """Dropout, batch statistics, and a weight that only batches with a positive first feature use.

    Where and when this process runs out of memory, or is asked to end, is a matter of the rank.
    """

    memory, limit, tells = "", 99, False
    asked_in, number, training_counts = 0, signal.SIGTERM, True

    def __init__(self, **changes: Any):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.2)
        self.second = nn.Linear(16, 3)
        self.sometimes = nn.Parameter(torch.ones(3))
        self.passes = self.evaluated = 0
        vars(self).update(changes)

    def forward(self, x, labels=None):
        self.evaluated += not self.training
        if (
            not self.training
            and not self.training_counts
            and self.evaluated == self.asked_in
            and RANK == 1
        ):
            os.kill(os.getpid(), self.number)
        if self.training:
            self.passes += 1
            if self.passes == 5 and self.tells and RANK == 0:
                os.kill(os.getppid(), int(os.environ["NUMBER"]))
            if self.passes == self.asked_in and RANK == 1 and self.training_counts:
                os.kill(os.getpid(), self.number)
            if len(x) > self.limit and self.passes > 2 and RANK == 1:
                if self.memory == "forward":
                    raise torch.OutOfMemoryError("CUDA out of memory.")
                x = TooLarge.apply(x.requires_grad_())
        logits = self.second(self.dropout(self.norm(torch.tanh(self.first(x)))))
        if x[0, 0] > 0:
            logits = logits * self.sometimes
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def trained(
    folder: Path, model: dict[str, Any], resume: bool = False, **changes: Any
) -> dict[str, Any]:
    """Train, and say how it ended."""
    options = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 2,
        **QUIET,
    }
    options |= {
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
    }
    options |= {"save_strategy": "no", "ddp_timeout": 60}
    arguments = TrainingArguments(output_dir=str(folder), **{**options, **changes})
    torch.manual_seed(7)
    trainer = Trainer(
        Model(**model), arguments, train_dataset=points(44, 1), eval_dataset=points(9, 2)
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return {
        "weights": {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()},
        "history": timeless(trainer.state.log_history),
        "batch": trainer.state.train_batch_size,
        "passes": trainer.model.passes,
    }


def faults(folder: Path) -> dict[str, Any]:
    """Rank 1 alone cannot take more than two samples from some step on."""
    half = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    smaller = trained(
        folder / "smaller", {"memory": "forward", "limit": 2}, auto_find_batch_size=True
    )
    Trainer.keep_effective_batch_size = True
    tried = lambda place: trained(
        folder / place, {"memory": place, "limit": 2}, auto_find_batch_size=True
    )
    return {
        "forward": tried("forward"),
        "backward": tried("backward"),
        "given": trained(folder / "given", {}, **half),
        "smaller": smaller,
        "small": trained(folder / "small", {}, per_device_train_batch_size=2),
    }


SAVING = {"save_strategy": "steps", "save_steps": 1000}
ENDED: dict[str, dict[str, Any]] = {
    "stopped": {"asked_in": 4},  # in this step rank 1 alone is asked to end
    "interrupted": {"asked_in": 4, "number": signal.SIGINT},
    # in its first evaluation
    "evaluated": {"asked_in": 1, "number": signal.SIGINT, "training_counts": False},
    "endless": {"tells": True},  # until torchrun ends it, which gets the signal NUMBER
}


def resumed(folder: Path) -> dict[str, Any]:
    """The rest of these trainings, and the whole of it."""
    names = [
        path.name for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "endless"
    ]
    records = {name: trained(folder / name, {}, resume=True, **SAVING) for name in names}
    return {**records, "whole": trained(folder / "whole", {}, **SAVING)}


def main(scenario: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")
    if scenario in ENDED:
        long = {"num_train_epochs": 10000, "eval_steps": 10**6} if scenario == "endless" else {}
        record = trained(folder / scenario, ENDED[scenario], **SAVING, **long)
    else:
        record = {"faults": faults, "resumed": resumed}[scenario](folder)
    (folder / f"{scenario}-rank{RANK}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
