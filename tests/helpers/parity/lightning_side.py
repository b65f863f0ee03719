"""The trainings of the parity tests as a Lightning user runs them: LossModule, plain
`lightning.Trainer`, folders.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import RandomSampler, default_collate

from helpers.parity.harness import Case
from helpers.parity.parity_datasets import point_data, points
from helpers.parity.parity_models import Classifier
from helpers.parity.plain_lightning import QUIET
from lightrainer.lightning_modules import (
    FolderCheckpointIO,
    LossModule,
    OptimizerConfig,
    ScheduleConfig,
    build_loader,
    set_seed,
)
from lightrainer.lightning_modules.internals import lightning_internals

LIGHTNINGS = (
    "LeafSpec:FutureWarning",
    "does not have many workers",
    "You defined a `validation_step` but have no",
)
# the resumed run saves nothing itself
LIGHTNINGS += ("Be aware that when using `ckpt_path`, callbacks used",)
# torch 2.13 warns of what Lightning 2.6 does with its trees (2025); the others are advice.
WARNINGS = pytest.mark.filterwarnings(*(f"ignore:.*{said}" for said in LIGHTNINGS))
STEPS = 12
"""Of two epochs of 22 samples, four at a time."""
# Lightning sums the norms of the gradients in the order of the parameter groups: the last bit would
# be another.
CASE = Case(Classifier, point_data, {"max_grad_norm": 0.0})
EVERY_STEP = {"every_n_train_steps": 1, "save_top_k": -1}


class Notes(Callback):
    """Loss, epoch and step of each batch."""

    def __init__(self):
        self.seen: list[tuple[int, int, float]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append((trainer.current_epoch, trainer.global_step, outputs["loss"].item()))


def as_it_is(folder_io: Any) -> Any:
    """Not wrapped in another plugin."""
    return folder_io


@dataclass
class Plain:
    """One training; its results are in `notes`, `weights` and `random`."""

    folder: Path
    epochs: int = 2
    max_steps: int = -1
    accumulation: int = 1
    validate: bool = False
    schedule: str | None = "linear"
    seed: int = 7
    save: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    total: int = STEPS
    clip: float | None = None
    wrap: Any = as_it_is
    loader: Any = None
    extension: str = ""

    def but_files(self) -> "Plain":
        """The same, but checkpoints are Lightning's files."""
        self.extension = ".ckpt"
        return self

    def module(self) -> LossModule:
        torch.manual_seed(self.seed)
        model = Classifier()
        schedule = (
            None
            if self.schedule is None
            else ScheduleConfig(name=self.schedule, total_steps=self.total)
        )
        return LossModule(model, optimizer=OptimizerConfig(learning_rate=1e-2), schedule=schedule)

    def train_loader(self) -> Any:
        data = points(22)
        return build_loader(
            data, batch_size=4, collate_fn=default_collate, sampler=RandomSampler(data), seed=42
        )

    def trainer(self, module: LossModule) -> Trainer:
        callbacks: list[Any] = [self.notes]
        if self.save:
            names = {"filename": "checkpoint-{step}", "auto_insert_metric_name": False}
            saving = ModelCheckpoint(dirpath=self.folder, **names, **self.save)
            saving.FILE_EXTENSION = self.extension
            callbacks.append(saving)
        folder_io = self.wrap(FolderCheckpointIO(module))
        with lightning_internals.quiet():
            options = {"max_epochs": self.epochs, "max_steps": self.max_steps}
            options |= {
                "accumulate_grad_batches": self.accumulation,
                "gradient_clip_val": self.clip,
            }
            options |= {
                "plugins": [] if folder_io is None else [folder_io],
                "callbacks": callbacks,
            }
            options |= {"enable_checkpointing": bool(self.save), "num_sanity_val_steps": 0}
            return Trainer(**options, **{**QUIET, **self.options})

    def run(self, resume: str | Path | None = None) -> "Plain":
        self.notes = Notes()
        module = self.module()
        self.lightning = self.trainer(module)
        set_seed(42)
        loader = self.train_loader() if self.loader is None else self.loader()
        if resume is not None:
            torch.rand(13)
        held_out = build_loader(points(10, seed=11), batch_size=4) if self.validate else None
        with lightning_internals.quiet():
            self.lightning.fit(module, loader, held_out, ckpt_path=resume)
        self.weights = {
            name: value.detach().cpu().clone() for name, value in module.model.state_dict().items()
        }
        self.random = torch.get_rng_state()
        return self
