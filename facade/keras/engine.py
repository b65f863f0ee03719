"""The Trainer that runs a `TFTrainer`: its steps are those of the documented members, which
people override.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...lightning_modules.common.device_copies import to_device_without_waiting
from ...lightning_modules.common.nested import find_batch_size
from ...lightning_modules.data.epoch_loader import EpochLoader
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.keras.adam import KerasAdam
from ...lightning_modules.keras.module import constrained
from ...lightning_modules.keras.pairs import count_instances
from ...lightning_modules.keras.tensorflow_data import (
    BatchLoader,
    EvaluationStream,
    StepStream,
    filled_up,
    rows_of,
)
from ..evaluation.results import EvalLoopOutput, PredictionOutput
from ..trainer import Trainer
from ..trainer.optimization import groups_of
from ..trainer.steps import empty_cache_if_due
from .arguments import TFTrainingArguments

_NO_DECAY = re.compile("LayerNorm|layer_norm|bias")
"""Parameters without weight decay, as `TFTrainer` names them."""


class KerasEngine(Trainer):
    """A `Trainer` of the torch module around a Keras model, whose steps are those of a `TFTrainer`.

    Args:
        steps: the `TFTrainer`.
        kwargs: see `Trainer`.

    Attributes:
        instances: labels that count in the step that is being taken, over all processes; None
            outside of a training.
    """

    model: Any  # a KerasModule
    args: TFTrainingArguments
    loss_is_scaled_for_ga = True
    """The steps of a `TFTrainer` divide by the instances of the whole step."""

    def __init__(self, steps: Any, **kwargs: Any) -> None:
        self.steps = steps
        self.instances: Any = None
        self._constrained: Any = None
        self._prefix = "eval"
        self._rows = 0
        self._samples: int | None = None
        super().__init__(**kwargs)
        self.world_size = self.args.world_size
        self._gather_losses = self._losses_of_samples if self.args.world_size > 1 else None

    # --- data

    def get_train_dataloader(self) -> Any:
        """Return a loader of what `get_train_tfdataset` gives."""
        steps, args = self.steps, self.args
        given = steps.get_train_tfdataset()
        if isinstance(given, EpochLoader):
            steps.steps_per_epoch = (
                math.ceil(len(given) / args.gradient_accumulation_steps) if has_length(given) else 0
            )
            return given
        steps.steps_per_epoch = self._steps_per_epoch(given)
        parts = args.gradient_accumulation_steps
        stream = StepStream(
            given,
            steps=steps.steps_per_epoch,
            parts=parts,
            rank=args.process_index,
            world_size=args.world_size,
        )
        each = args.train_batch_size * args.world_size
        count = steps.num_train_examples or steps.steps_per_epoch * parts * each
        return BatchLoader(stream, examples=count, batches=len(stream), samples_per_round=each)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a loader of what `get_eval_tfdataset` gives."""
        return self.evaluation_loader(*self.steps.get_eval_tfdataset(eval_dataset))

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a loader of what `get_test_tfdataset` gives."""
        return self.evaluation_loader(*self.steps.get_test_tfdataset(test_dataset))

    def evaluation_loader(self, dataset: Any, steps: int, num_examples: int) -> Any:
        """Return a loader of batches.

        Args:
            dataset: gives batches of (features, labels), or is a loader already.
            steps: how many to read; -1 for all.
            num_examples: samples in them; -1 if unknown.
        """
        if isinstance(dataset, EpochLoader):
            return dataset
        each = self.args.eval_batch_size * self.args.world_size
        share = {
            "size": self.args.eval_batch_size,
            "rank": self.args.process_index,
            "world_size": self.args.world_size,
        }
        stream = EvaluationStream(dataset, batches=steps if steps >= 0 else None, **share)
        examples = num_examples if num_examples >= 0 else None
        batches = None if examples is None else math.ceil(examples / each)
        return BatchLoader(stream, examples=examples, batches=batches, samples_per_round=each)

    def num_examples(self, dataloader: Any) -> int:
        """Return how many samples a loader has, as a `TFTrainer` knows it."""
        return getattr(dataloader, "examples", None) or super().num_examples(dataloader)

    def _steps_per_epoch(self, dataset: Any) -> int:
        """Steps of an epoch: what the dataset has, or what the samples make where it is
        repeated.
        """
        steps, args = self.steps, self.args
        batches = int(dataset.cardinality()) if hasattr(dataset, "cardinality") else -1
        batches = len(dataset) if batches < 0 and has_length(dataset) else batches
        if batches >= 0:
            return batches
        if steps.num_train_examples is None:
            said = "get_train_tfdataset gives a dataset without a known cardinality"
            raise ValueError(
                f"{said}. Let it set self.num_train_examples, or call assert_cardinality."
            )
        exact = steps.num_train_examples / steps.total_train_batch_size
        return max(math.floor(exact) if args.dataloader_drop_last else math.ceil(exact), 1)

    # --- the optimizer

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Call that of the `TFTrainer`."""
        self.steps.create_optimizer_and_scheduler(num_training_steps)
        self._constrain_after(self.optimizer)

    def _constrain_after(self, optimizer: Any) -> None:
        """Have each step end with the constraints of the weights, as those of Keras's optimizers
        do.
        """
        if optimizer is not self._constrained and constrained(self.model.model):
            optimizer.register_step_post_hook(lambda *_: self.model.constrain())
            self._constrained = optimizer

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Make Keras's Adam, unless the arguments ask for another optimizer than by default."""
        args = self.args
        if self.optimizer is None and args.optim == args.default_optim and not args.optim_args:
            self.optimizer = KerasAdam(
                groups_of(self, self.model),
                lr=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                exact_powers=args.weight_decay > 0,
            )
        return super().create_optimizer(model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return all but biases and the weights of layer normalizations, by the names of their
        layers.
        """
        return [name for name, _ in model.named_parameters() if not _NO_DECAY.search(name)]

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip each value, as the original does it where gradients are accumulated; returns a
        norm for the log.
        """
        norm = super()._get_grad_norm(model) if self._is_logged() else None
        if self.args.gradient_accumulation_steps > 1:
            self.accelerator.clip_grad_value_(model.parameters(), self.args.max_grad_norm)
        return norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """As that of `Trainer`, where it is to be logged; the original has none, and it takes
        time at each step.
        """
        return super()._get_grad_norm(model, grad_norm) if self._is_logged() else None

    def _is_logged(self) -> bool:
        """Tell whether the arguments ask for a log after the step that is being taken."""
        args, step = self.args, self.state.global_step + 1
        every = args.logging_strategy == "steps" and self.state.logging_steps
        first = args.logging_first_step and step == 1
        return first or args.logging_strategy == "epoch" or bool(every and step % every == 0)

    # --- steps

    def _get_num_items_in_batch(
        self, batch_samples: list[Any], device: torch.device
    ) -> torch.Tensor:
        """Count the labels of a step, over all processes."""
        counts = [count_instances(batch["labels"]) for batch in batch_samples]
        count = to_device_without_waiting(torch.as_tensor(sum(counts), device="cpu"), device)
        return self.accelerator.gather(count).sum() if self.world_size > 1 else count

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Have the `TFTrainer` take its step for one micro-batch; returns the loss."""
        steps, inputs = self.steps, self._prepare_inputs(inputs)
        model.train()
        steps.train_loss.reset_states()
        self.instances = num_items_in_batch
        try:
            steps.distributed_training_steps(self._native(inputs))
        finally:
            self.instances = None
        if self.args.torch_empty_cache_steps is not None:
            empty_cache_if_due(self.args, self.state.global_step)
        # The mean over the processes is logged, and each of them has a part of the sum.
        return steps.train_loss.result() * self.world_size

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Have the `TFTrainer` take its step for one batch; returns loss, predictions and
        labels.
        """
        steps, inputs = self.steps, self._prepare_inputs(inputs)
        rows, self._rows = find_batch_size(inputs) or 0, self._rows_that_count(inputs)
        steps.eval_loss.reset_states()
        with torch.no_grad():
            logits = steps.distributed_prediction_steps(
                self._native(rows_of(inputs, 0, max(self._rows, 1)))
            )
        loss = steps.eval_loss.value
        if prediction_loss_only:
            return loss, None, None
        labels = inputs["labels"]
        if isinstance(labels, dict):
            labels = tuple(labels.values()) if len(labels) > 1 else next(iter(labels.values()))
        logits = self.model.to_torch(logits)
        return loss, logits if self._rows == rows else filled_up(logits, rows), labels

    def _rows_that_count(self, inputs: Any) -> int:
        """Rows of a batch without those that fill up the last one to equal shares of all
        processes.
        """
        rows, accelerator = find_batch_size(inputs) or 0, self.accelerator
        if (
            self.args.world_size == 1
            or not accelerator.end_of_dataloader
            or accelerator.remainder <= 0
        ):
            return rows
        return min(max(accelerator.remainder - self.args.process_index * rows, 0), rows)

    def _losses_of_samples(self, losses: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return the mean loss of each process's batch as often as it has samples that count."""
        own = torch.stack([losses[0].double(), losses.new_tensor(self._rows, dtype=torch.float64)])
        found = self.accelerator.gather(own).view(-1, 2).cpu()
        return torch.cat([loss.repeat(int(rows)) for loss, rows in found]).to(losses)

    def _native(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        return self.model.native(inputs["features"]), self.model.native(inputs["labels"])

    def take_gradients(self, gradients: Any, *, added: bool) -> None:
        """Let the optimizer have the gradients that a `training_step` returned.

        Args:
            gradients: one for each trainable variable; None where those that the parameters have
                are meant.
            added: they come on top of those of earlier micro-batches; otherwise they take the place
                of all.

        Raises:
            ValueError: there are more or fewer than variables.
        """
        variables = self.model.variables()
        if gradients is None:
            return
        if len(gradients) != len(variables):
            said = (
                f"training_step returned {len(gradients)} gradients for {len(variables)} variables"
            )
            raise ValueError(
                f"{said}. Return one for each of model.trainable_variables, in that order."
            )
        for variable, given in zip(variables, gradients, strict=True):
            if given is None or given is variable.grad:
                continue
            gradient = self.model.to_torch(given).detach().to(variable).reshape(variable.shape)
            if added and self.world_size > 1:
                gradient = self.accelerator.reduce(gradient)
            variable.grad = (
                gradient if variable.grad is None or not added else variable.grad + gradient
            )

    # --- evaluation and logs

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Call that of the `TFTrainer`; each of several datasets with names is evaluated here."""
        if metric_key_prefix == "eval":
            return self.steps.evaluate(eval_dataset)
        return self.own_evaluation(eval_dataset, metric_key_prefix)

    def own_evaluation(
        self, eval_dataset: Any, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate as a `Trainer`."""
        return super().evaluate(eval_dataset, metric_key_prefix=metric_key_prefix)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Call `prediction_loop` of the `TFTrainer`."""
        source, batches = dataloader, len(dataloader) if has_length(dataloader) else None
        if isinstance(dataloader, BatchLoader) and isinstance(dataloader.dataset, EvaluationStream):
            source, batches = dataloader.dataset.dataset, dataloader.dataset.batches
        count = self.num_examples(dataloader) if has_length(dataloader) else -1
        self._prefix = metric_key_prefix
        output = self.steps.prediction_loop(
            source, -1 if batches is None else batches, count, description, prediction_loss_only
        )
        return EvalLoopOutput(
            *output, num_samples=self._samples if self._samples is not None else max(count, 0)
        )

    def own_loop(
        self, dataloader: Any, description: str, prediction_loss_only: bool | None
    ) -> PredictionOutput:
        """Go through the batches as a `Trainer`."""
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only, metric_key_prefix=self._prefix
        )
        self._samples = output.num_samples
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Call that of the `TFTrainer`."""
        self.steps.log(logs)
