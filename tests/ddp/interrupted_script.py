"""Trainings that something goes wrong with, or interrupts, in one of two processes only, for `torchrun`.

    torchrun --nproc_per_node=2 interrupted_script.py faults|stopped|interrupted|evaluated|endless|resumed OUTPUT_FOLDER

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
from ranks import QUIET, points, timeless
from torch import nn
from torch.nn import functional

from lightrainer import NaNGuardCallback, Trainer, TrainingArguments

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

    def __init__(
        self,
        memory: str = "",
        limit: int = 99,
        asked_in: int = 0,
        number: int = signal.SIGTERM,
        training_counts: bool = True,
        tells: bool = False,
    ):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.2)
        self.second = nn.Linear(16, 3)
        self.sometimes = nn.Parameter(torch.ones(3))
        self.memory, self.limit, self.asked_in, self.number = memory, limit, asked_in, number
        self.training_counts, self.tells = training_counts, tells
        self.passes = self.evaluated = 0

    def forward(self, x, labels=None):
        self.evaluated += not self.training
        if not self.training and not self.training_counts and self.evaluated == self.asked_in and RANK == 1:
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


def trained(folder: Path, model: dict[str, Any], resume: bool = False, **changes: Any) -> dict[str, Any]:
    """Train, and say how it ended."""
    options = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 2, "num_train_epochs": 2, **QUIET}
    options |= {"learning_rate": 1e-2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3}
    options |= {"save_strategy": "no", "ddp_timeout": 60}
    arguments = TrainingArguments(output_dir=str(folder), **{**options, **changes})
    torch.manual_seed(7)
    trainer = Trainer(Model(**model), arguments, train_dataset=points(44, 1), eval_dataset=points(9, 2))
    trainer.train(resume_from_checkpoint=resume or None)
    return {
        "weights": {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()},
        "history": timeless(trainer.state.log_history),
        "batch": trainer.state.train_batch_size,
        "passes": trainer.model.passes,
    }


class Bad(nn.Module):
    """In its second pass rank 1 has a NaN in the loss alone; in its third, in the gradients too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.passes = 0

    def forward(self, x, labels=None):
        self.passes += 1
        loss, nan = self.layer(x).square().mean(), torch.tensor(float("nan"))
        if RANK == 1 and self.passes in (2, 3):
            loss = loss + nan if self.passes == 2 else loss * nan
        return {"loss": loss}


def guarded(folder: Path) -> dict[str, Any]:
    """Rank 1 alone meets a NaN."""
    guard = NaNGuardCallback("skip")
    options = {"per_device_train_batch_size": 2, "num_train_epochs": 1, "save_strategy": "no"}
    arguments = TrainingArguments(str(folder / "guarded"), **options, **QUIET)
    torch.manual_seed(7)
    trainer = Trainer(Bad(), arguments, train_dataset=points(16, 1), callbacks=[guard])
    trainer.train()
    weight = trainer.model.layer.weight
    return {"skipped": guard.skipped, "steps": trainer.state.global_step, "weight": weight.tolist()}


def faults(folder: Path) -> dict[str, Any]:
    """Rank 1 alone cannot take more than two samples from some step on, or meets a NaN."""
    half = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    smaller = trained(folder / "smaller", {"memory": "forward", "limit": 2}, auto_find_batch_size=True)
    Trainer.keep_effective_batch_size = True
    tried = lambda place: trained(folder / place, {"memory": place, "limit": 2}, auto_find_batch_size=True)
    return {
        "forward": tried("forward"),
        "backward": tried("backward"),
        "given": trained(folder / "given", {}, **half),
        "large": trained(folder / "large", {}),
        "smaller": smaller,
        "small": trained(folder / "small", {}, per_device_train_batch_size=2),
        "guarded": guarded(folder),
    }


SAVING = {"save_strategy": "steps", "save_steps": 1000}


def stopped(folder: Path) -> dict[str, Any]:
    """Rank 1 alone is asked to end, in its fourth step."""
    return {"stopped": trained(folder / "stopped", {"asked_in": 4}, **SAVING)}


def interrupted(folder: Path) -> dict[str, Any]:
    """Rank 1 alone gets a Ctrl-C, in its fourth step."""
    return {"interrupted": trained(folder / "interrupted", {"asked_in": 4, "number": signal.SIGINT}, **SAVING)}


def evaluated(folder: Path) -> dict[str, Any]:
    """Rank 1 alone gets a Ctrl-C, in the first batch of its first evaluation."""
    model = {"asked_in": 1, "number": signal.SIGINT, "training_counts": False}
    return {"evaluated": trained(folder / "evaluated", model, **SAVING)}


def endless(folder: Path) -> dict[str, Any]:
    """Trains until torchrun ends it, which gets the signal NUMBER."""
    return {"endless": trained(folder / "endless", {"tells": True}, **SAVING, num_train_epochs=10000, eval_steps=10**6)}


def resumed(folder: Path) -> dict[str, Any]:
    """The rest of these trainings, and the whole of it."""
    names = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "endless"]
    rest = {name: trained(folder / name, {}, resume=True, **SAVING) for name in names}
    return {**rest, "whole": trained(folder / "whole", {}, **SAVING)}


def main(scenario: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")
    seen = globals()[scenario](folder)
    (folder / f"{scenario}-rank{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
