"""The same training three times: as a bare loop, with the reference, and with this package."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, default_collate

from ..common import library
from .cases import Setting
from .models import Gpt, Shape, token_rows

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Training:
    """A training, in the words of all three.

    Args:
        shape: of the model.
        steps: of the optimizer.
        batch: rows in a micro-batch.
        precision: "fp32", "bf16" or "fp16", by autocast.
        accumulation: micro-batches in a step.
        clip: largest norm of the gradients; 0 for any.
        compiled: with `torch.compile`.
        checkpointing: computes activations again.
        sharded: FSDP 2 of all processes there are.
        extra: more arguments for the Trainers.
    """

    shape: Shape
    steps: int
    batch: int = 4
    precision: str = "fp32"
    accumulation: int = 1
    clip: float = 0.0
    compiled: bool = False
    checkpointing: bool = False
    sharded: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> list[dict[str, torch.Tensor]]:
        """Return the data of all steps."""
        return token_rows(self.steps * self.batch * self.accumulation, self.shape)

    def model(self, device: str = "cpu") -> Gpt:
        """Return the model with its first weights."""
        torch.manual_seed(0)
        return Gpt(self.shape).to(device)

    def arguments(self, name: str, setting: Setting, folder: str) -> Any:
        """Return the `TrainingArguments` of a library."""
        options: dict[str, Any] = {
            "max_steps": self.steps,
            "per_device_train_batch_size": self.batch,
            "gradient_accumulation_steps": self.accumulation,
            "max_grad_norm": self.clip,
            "optim": "adamw_torch_fused",
            "learning_rate": 1e-3,
            "adam_epsilon": 1e-4,
            "lr_scheduler_type": "constant",
            "train_sampling_strategy": "sequential",
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "remove_unused_columns": False,
            "use_cpu": setting.device == "cpu",
            "bf16": self.precision == "bf16",
            "fp16": self.precision == "fp16",
            "gradient_checkpointing": self.checkpointing,
            **self.extra,
        }
        if self.compiled:
            options |= {"torch_compile": True, "torch_compile_backend": backend(setting)}
        if self.sharded:
            options |= {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2}}
        return library(name).TrainingArguments(output_dir=folder, **options)

    @contextlib.contextmanager
    def trainer(self, name: str, setting: Setting, callbacks: Sequence[Any] = ()) -> Iterator[Any]:
        """Give the Trainer of a library, with a folder for its output."""
        with tempfile.TemporaryDirectory() as folder:
            yield library(name).Trainer(
                self.model(),
                self.arguments(name, setting, folder),
                train_dataset=self.rows(),
                data_collator=default_collate,
                callbacks=list(callbacks),
            )

    def bare(
        self, setting: Setting, after_step: Callable[[int], None] = lambda step: None
    ) -> "Trained":
        """Train in the shortest loop that does the same."""
        model = self.model(setting.device)
        if self.checkpointing:
            model.gradient_checkpointing_enable()
        if self.sharded:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        forward = torch.compile(model, backend=backend(setting)) if self.compiled else model
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-3, eps=1e-4, weight_decay=0.0, fused=True
        )
        scaler = torch.amp.GradScaler(setting.device, enabled=self.precision == "fp16")
        autocast = {"dtype": PRECISIONS[self.precision], "enabled": self.precision != "fp32"}
        losses, summed = [], torch.zeros((), device=setting.device)
        pinned = setting.device == "cuda"
        loader: DataLoader = DataLoader(
            self.rows(),
            self.batch,
            collate_fn=default_collate,
            pin_memory=pinned,
        )
        for number, batch in enumerate(loader, start=1):
            batch = {
                name: values.to(setting.device, non_blocking=pinned)
                for name, values in batch.items()
            }
            with torch.autocast(setting.device, **autocast):
                loss = forward(**batch)["loss"] / self.accumulation
            scaler.scale(loss).backward()
            summed += loss.detach()
            if number % self.accumulation:
                continue
            if self.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(summed.clone())
            summed.zero_()
            after_step(number // self.accumulation)
        return Trained.of([loss.item() for loss in losses], model)


@dataclass(frozen=True)
class Trained:
    """Losses of all steps, and the weights after them, on the CPU."""

    losses: list[float]
    weights: dict[str, torch.Tensor]

    @classmethod
    def of(cls, losses: list[float], model: nn.Module) -> "Trained":
        """Copy the weights; whole ones, where they are spread."""
        whole = {
            name: getattr(each, "full_tensor", lambda each=each: each)()
            for name, each in model.state_dict().items()
        }
        return cls(losses, {name: values.detach().float().cpu() for name, values in whole.items()})

    @classmethod
    def by(cls, trainer: Any) -> "Trained":
        """Let a Trainer train."""
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return cls.of(losses, getattr(trainer.model, "_orig_mod", trainer.model))

    def distance(self, other: "Trained") -> float:
        """Return the largest difference of a loss or a weight, relative to the largest of its
        tensor.
        """
        pairs = [(torch.tensor(self.losses), torch.tensor(other.losses))]
        pairs += [(values, other.weights[name]) for name, values in self.weights.items()]
        return max(((left - right).abs().max() / right.abs().max()).item() for left, right in pairs)


def backend(setting: Setting) -> str:
    """Return the compiler; a rehearsal only traces."""
    return "eager" if setting.small else "inductor"
