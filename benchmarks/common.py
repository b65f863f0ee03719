"""Parts that the benchmarks share: the tiny model, quiet arguments, interleaved rounds, the
table and the JSON line.
"""

import gc
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

LIBRARIES = ("transformers", "lightrainer")


class TinyModel(nn.Module):
    """A multilayer perceptron of 1,633 parameters: a step of it is nearly all overhead."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32),
            nn.ReLU(),
            nn.Linear(32, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
            nn.Flatten(0),
        )

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the squared error and the prediction, for `x` of shape (batch, 16)."""
        prediction = self.layers(x)
        if labels is None:
            return {"logits": prediction}
        return {"loss": nn.functional.mse_loss(prediction, labels), "logits": prediction}


def tiny_dataset(count: int) -> list[dict[str, torch.Tensor]]:
    """Items of 16 features and one target, in memory."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, 16, generator=generator)
    return [{"x": x, "labels": x.sum()} for x in features]


def library(name: str) -> Any:
    """Return the library under that name, kept quiet."""
    module = importlib.import_module(name)
    for noisy in ("lightning", "lightning.pytorch", "transformers", "lightrainer"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    return module


def quiet_arguments(name: str, output_dir: str, **changes: Any) -> Any:
    """`TrainingArguments` of that library: fused AdamW, clipping at 1, linear schedule, nothing
    shown or saved.
    """
    arguments = {
        "per_device_train_batch_size": 8,
        "optim": "adamw_torch_fused",
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "linear",
        "learning_rate": 1e-3,
        "logging_steps": 1_000_000,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        # All sides then do the same work for a batch: take the items, stack them.
        "remove_unused_columns": False,
        **changes,
    }
    return library(name).TrainingArguments(output_dir=output_dir, **arguments)


def interleaved(rounds: int, candidates: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Measure A B C A B C ...: what slows the machine down for a while then slows all of them
    down.
    """
    measured: dict[str, list[Any]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            gc.collect()
            measured[name].append(candidate())
    return measured


def medians(measured: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in measured.items()}


def versions() -> dict[str, Any]:
    """Return the machine and the versions that a number belongs to."""
    versions_by_name: dict[str, Any] = {}
    for name in ("torch", "lightning", "transformers", "lightrainer"):
        try:
            versions_by_name[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions_by_name[name] = None
    return {
        **versions_by_name,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


@dataclass(frozen=True)
class Figure:
    """A number that is promised, most often a ratio to the reference, and the most that it may
    be.
    """

    what: str
    value: float
    goal: float

    @property
    def verdict(self) -> str:
        """Return whether the promise is kept, in the two digits that are shown."""
        return "kept" if round(self.value, 2) <= self.goal else "missed"


def report(
    name: str, rows: list[tuple[str, str]], results: dict[str, Any], figures: Sequence[Figure] = ()
) -> list[Figure]:
    """Print the table, the versions, and everything again as one line of JSON; returns the
    figures.
    """
    rows = rows + [
        (each.what, f"{each.value:.2f}, goal {each.goal:g}: {each.verdict}") for each in figures
    ]
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(f"  {label:{width}}  {value}")
    print("  " + ", ".join(f"{key} {value}" for key, value in versions().items()))
    print(json.dumps({"benchmark": name, **results, "versions": versions()}))
    return list(figures)
