"""Compare one optimizer step of the Trainer, in micro-batches and processes, with one big batch
of plain torch.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate
from transformers import PreTrainedModel

from helpers.processes.rank_training import QUIET
from helpers.promises.small_models import make_model
from helpers.promises.small_samples import SAMPLES, Sample, make_samples
from lightrainer import Trainer, TrainerCallback, TrainingArguments

ARGUMENTS: dict[str, Any] = {
    **QUIET,
    "max_steps": 1,
    "logging_steps": 1,
    "save_strategy": "no",
    "optim": "sgd",
    "learning_rate": 0.1,
    "max_grad_norm": 0.0,
    "train_sampling_strategy": "sequential",
    "remove_unused_columns": False,
}


class Step:
    """Loss and gradient of one optimizer step; the gradient as one vector over all parameters."""

    def __init__(self, loss: float, gradient: Tensor):
        self.loss = loss
        self.gradient = gradient

    def difference(self, other: "Step") -> float:
        """Return the larger of the relative differences of the two losses and of the two
        gradients.
        """
        of_loss = abs(self.loss - other.loss) / abs(other.loss)
        of_gradient = float((self.gradient - other.gradient).norm() / other.gradient.norm())
        return max(of_loss, of_gradient)


def gradient_of(model: nn.Module) -> Tensor:
    """Return the gradients of all parameters as one vector, with zeros for parameters that have
    none.
    """
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([gradient.flatten().float() for gradient in gradients]).clone()


class GradientReader(TrainerCallback):
    """Reads the gradient of the first optimizer step, exchanged between the processes and
    without a loss scale.
    """

    gradient: Tensor

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradient = gradient_of(model)


def own_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss that a model returns."""
    return model(**batch)["loss"]


def whole_batch(
    model: nn.Module, samples: list[Any], loss_of: Callable[[nn.Module, Any], Tensor] = own_loss
) -> Step:
    """Return the step of one batch with all samples, computed without a Trainer."""
    loss = loss_of(model, default_collate(samples))
    loss.backward()
    return Step(loss.item(), gradient_of(model))


def trained(
    model: nn.Module,
    data: Any,
    micro_batch: int,
    folder: str | Path,
    *,
    trainer_class: type[Trainer] | None = None,
    args_class: type[TrainingArguments] = TrainingArguments,
    arguments: dict[str, Any] | None = None,
    **parameters: Any,
) -> Step:
    """Return the step of the Trainer that reads all samples in micro-batches, in as many processes
    as there are.

    Args:
        model: the model to train.
        data: the samples of one optimizer step, a list or a stream.
        micro_batch: samples of each of them in one process.
        folder: of the arguments.
        trainer_class: by default the Trainer.
        args_class: of the arguments.
        arguments: further ones.
        **parameters: further ones of the Trainer.
    """
    settings = {
        **ARGUMENTS,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": window_of(micro_batch),
        **(arguments or {}),
    }
    reader = GradientReader()
    args = args_class(str(folder), **settings)
    parameters = {"train_dataset": data, "data_collator": default_collate, **parameters}
    trainer = (trainer_class or Trainer)(model, args, callbacks=[reader], **parameters)
    trainer.train()
    loss = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    return Step(float(loss), reader.gradient)


def window_of(micro_batch: int) -> int:
    """Return how many micro-batches make one optimizer step of all samples, in as many processes
    as there are.
    """
    return SAMPLES // (micro_batch * int(os.environ.get("WORLD_SIZE", "1")))


def differences(
    kind: type[PreTrainedModel], folder: str | Path, *, with_uneven: bool
) -> dict[str, float]:
    """Return the relative differences of windows of micro-batches from the whole batch.

    Args:
        kind: the class of the model.
        folder: of the training arguments.
        with_uneven: compare with other numbers of labels in each sample, too.

    Returns:
        Window -> difference; in one process of 2 x 4 and 4 x 2, in two of 4 x 1 and 2 x 2.
    """
    errors: dict[str, float] = {}
    for uneven in (False, True) if with_uneven else (False,):
        samples: list[Sample] = make_samples(make_model(kind), uneven=uneven)
        expected = whole_batch(make_model(kind), samples)
        for micro_batch in (4, 2):
            step = trained(make_model(kind), samples, micro_batch, folder)
            window = f"{window_of(micro_batch)} x {micro_batch}, {'uneven' if uneven else 'even'}"
            errors[window] = step.difference(expected)
    return errors
