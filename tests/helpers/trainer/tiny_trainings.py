"""Tiny models, data and Trainers, and functions that inspect the results of a training."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import lightrainer
from helpers.devices.pretended_cuda import trains_on_device
from lightrainer import Trainer, TrainingArguments


def split(text: str) -> list[str]:
    """The words of a text: a readable way to write down a table of names."""
    return text.split()


# Nothing on the screen, nothing to a tracker, no GPU but a pretended one, one log a step.
ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 1,
}
ARGUMENTS |= {
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
}
ARGUMENTS |= {
    "disable_tqdm": True,
    "use_cpu": not trains_on_device(),
    "dataloader_pin_memory": False,
}


class Tiny(nn.Module):
    """Eight features, three classes; dropout makes every draw from the generators count."""

    def __init__(self, dropout: float = 0.2):
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.norm = nn.LayerNorm(6)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(6, 3)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(self.norm(torch.tanh(self.first(x)))))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.logits(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def tiny(seed: int = 3) -> Tiny:
    """A model with the same weights each time."""
    torch.manual_seed(seed)
    return Tiny()


def points(count: int = 16, seed: int = 1) -> list[dict[str, torch.Tensor]]:
    """The same samples each time."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 8, generator=generator)
    return [{"x": x, "labels": x[:3].argmax()} for x in features]


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    return TrainingArguments(output_dir=str(folder), **{**ARGUMENTS, **changes})


_TRAINER_PARAMETERS = frozenset(
    split("""
    model args data_collator train_dataset eval_dataset processing_class model_init compute_loss_func
    compute_metrics callbacks optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics eval_data_collator
    """)
)


def make_trainer(folder: Path, cls: type[Trainer] = Trainer, **changes: Any) -> Any:
    """A trainer of `tiny()` on 16 points, 4 steps; `changes` are parameters of the Trainer or of
    the arguments.
    """
    parameters = {name: changes.pop(name) for name in list(changes) if name in _TRAINER_PARAMETERS}
    if "model_init" not in parameters:
        parameters.setdefault("model", tiny())
    parameters.setdefault("train_dataset", points())
    parameters.setdefault("eval_dataset", points(6, seed=2))
    parameters.setdefault("args", arguments(folder, **changes))
    return cls(**parameters)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


def files(folder: Path) -> list[str]:
    """All files below a folder, which need not exist, but for those that name the owner of a
    folder.
    """
    return sorted(
        str(path.relative_to(folder))
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name != ".owner"
    )


def losses(of: Any) -> list[float]:
    return [entry["loss"] for entry in of.state.log_history if "loss" in entry]


class At(lightrainer.TrainerCallback):
    """Calls `action(trainer, state, control)` at an event, at one step or at every one."""

    def __init__(self, event: str, action: Any, step: int | None = None):
        self.trainer: Any = None

        def hook(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if step is None or state.global_step == step:
                action(self.trainer, state, control)

        setattr(self, event, hook)


def with_trainer_in_callbacks(of: Any) -> Any:
    """Let the `At` callbacks of a trainer know their trainer."""
    for callback in of.callback_handler.callbacks:
        if isinstance(callback, At):
            callback.trainer = of
    return of


def trained_trainer(folder: Path, *cls: Any, resume: Any = None, **changes: Any) -> Any:
    """A `trainer` after its training."""
    trainer = with_trainer_in_callbacks(make_trainer(folder, *cls, **changes))
    trainer.train(resume_from_checkpoint=resume)
    return trainer
