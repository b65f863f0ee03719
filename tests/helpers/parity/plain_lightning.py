"""The trainings of the parity tests as a Lightning user runs them: a module and a `DataModule`,
plain `Trainer`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from helpers.devices.pretended_cuda import trains_on_device
from helpers.parity.harness import DEFAULTS, Case
from lightrainer.lightning_modules import (
    DataModule,
    LossModule,
    OptimizerConfig,
    ScheduleConfig,
    set_seed,
)
from lightrainer.lightning_modules.internals import lightning_internals

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
QUIET |= {"accelerator": "gpu" if trains_on_device() else "cpu"}


class Steps(Callback):
    """The loss of each optimizer step, and its learning rate."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.before: float | None = None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss = float(trainer.callback_metrics["train_loss"])
        if trainer.global_step > len(self.losses):
            self.losses.append(loss)
            self.rates.append(self.rate)


@dataclass
class PlainRun:
    """Results of a plain training."""

    losses: list[float]
    rates: list[float]
    evaluations: list[float]
    weights: dict[str, torch.Tensor]
    random: torch.Tensor
    module: LossModule
    trainer: Trainer
    seen: list[Any] = field(default_factory=list)


class Evaluations(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.losses.append(float(trainer.callback_metrics["val_loss"]))


def plain_run(case: Case, folder: Path, kind: type = LossModule, **options: Any) -> PlainRun:
    """Train the case, whose arguments are those of a `Trainer`, without the facade."""
    arguments = {**DEFAULTS, **case.arguments}
    torch.manual_seed(case.model_seed)
    model = case.model()
    data = case.data()
    module = kind(
        model,
        optimizer=OptimizerConfig(
            learning_rate=arguments["learning_rate"],
            weight_decay=arguments.get("weight_decay", 0.0),
        ),
        schedule=ScheduleConfig(
            name=arguments.get("lr_scheduler_type", "linear"),
            warmup_steps=arguments.get("warmup_steps", 0),
        ),
        label_smoothing=arguments.get("label_smoothing_factor", 0.0),
        neftune_noise_alpha=arguments.get("neftune_noise_alpha"),
    )
    evaluates = arguments.get("eval_strategy", "no") != "no"
    datamodule = DataModule(
        data["train_dataset"],
        data["eval_dataset"] if evaluates else None,
        collate_fn=data.get("data_collator"),
        batch_size=arguments["per_device_train_batch_size"],
        group_by_length=arguments.get("train_sampling_strategy") == "group_by_length",
    )
    steps, evaluations = Steps(), Evaluations()
    with lightning_internals.quiet():
        trainer = Trainer(
            default_root_dir=folder,
            max_epochs=-1 if "max_steps" in arguments else arguments["num_train_epochs"],
            max_steps=arguments.get("max_steps", -1),
            accumulate_grad_batches=arguments.get("gradient_accumulation_steps", 1),
            gradient_clip_val=arguments.get("max_grad_norm", 1.0),
            callbacks=[steps, evaluations],
            enable_checkpointing=False,
            **{**QUIET, **options},
        )
        set_seed(42)
        trainer.fit(module, datamodule)
    weights = {
        name: value.detach().cpu().clone() for name, value in module.model.state_dict().items()
    }
    return PlainRun(
        steps.losses,
        steps.rates,
        evaluations.losses,
        weights,
        torch.get_rng_state(),
        module,
        trainer,
    )
