"""Share what scripts of ranks begin and end with: quiet arguments, a model and its data, the end
of the group.
"""

import gc
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from helpers.devices.pretended_cuda import trains_on_device

QUIET: dict[str, Any] = {
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": not trains_on_device(),
    "dataloader_pin_memory": False,
}


class Classifier(nn.Module):
    """Eight features, three classes; dropout only where it is asked for."""

    def __init__(self, width: int = 16, dropout: float = 0.0):
        super().__init__()
        self.first, self.dropout, self.second = (
            nn.Linear(8, width),
            nn.Dropout(dropout),
            nn.Linear(width, 3),
        )

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.second(self.dropout(torch.tanh(self.first(x))))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def points(count: int, seed: int = 1) -> list[dict[str, torch.Tensor]]:
    """The same samples for a seed each time."""
    features = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return [{"x": x, "labels": x[:3].argmax()} for x in features]


def weighing(base: type) -> type:
    """The reference's Trainer, in which the mean of each micro-batch counts by its labels, as no
    version has it.
    """

    class Weighing(base):
        def get_batch_samples(self, *positional, **keywords):
            samples, items = super().get_batch_samples(*positional, **keywords)
            labels = torch.tensor(
                [int(sample["labels"].ne(-100).sum()) for sample in samples], dtype=torch.float64
            )
            whole = self.accelerator.gather(labels.sum()).sum() / self.args.world_size
            self.divisors = (whole / labels).tolist()
            return samples, items

        def training_step(self, *positional, **keywords):
            self.current_gradient_accumulation_steps = self.divisors.pop(0)
            return super().training_step(*positional, **keywords)

    return Weighing


class Stream(IterableDataset):
    """The samples, without their number."""

    def __init__(self, items: list[Any]):
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a log without what a clock measured and without the summary of the training."""
    clocks = ("runtime", "per_second", "preparation_time")
    entries = [
        {name: value for name, value in entry.items() if not name.endswith(clocks)}
        for entry in history
    ]
    return [entry for entry in entries if "train_loss" not in entry]


def leave_group(library: str) -> None:
    """Close the process group that the reference leaves open, which may end in a crash at the
    exit.
    """
    if library == "transformers":
        gc.collect()
        torch.distributed.destroy_process_group()


def require_end_of_group() -> None:
    """Exit with 3 if a thread of the process group is still there: a crash at the exit would be
    a matter of luck.
    """
    tasks = Path("/proc/self/task")
    names = (
        [(task / "comm").read_text().strip() for task in tasks.iterdir()] if tasks.exists() else []
    )
    if left := [name for name in names if "gloo" in name] or torch.distributed.is_initialized():
        print("threads of the process group outlived it:", left, flush=True)
        os._exit(3)
