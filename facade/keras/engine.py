"""The Trainer that runs a `TFTrainer`, and calls its documented members in each step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...lightning_modules.common.device_copies import to_device_async
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
    padded_to,
    rows_of,
)
from ..evaluation.results import EvalLoopOutput, PredictionOutput
from ..trainer import Trainer
from ..trainer.optimization import groups_of
from ..trainer.steps import empty_cache_if_due
from .arguments import TFTrainingArguments

_NO_DECAY = re.compile("LayerNorm|layer_norm|bias")
"""Names of parameters without weight decay, as in the original `TFTrainer`."""


class KerasEngine(Trainer):
    """A `Trainer` of the torch module around a Keras model, which calls the steps of a `TFTrainer`.

    Args:
        tf_trainer: the `TFTrainer`.
        kwargs: arguments of `Trainer`.

    Attributes:
        instances: number of labels in the current step that the loss does not ignore, over all
            processes; None outside of a training.
    """

    # A `KerasModule`; the base class declares another type.
    model: Any
    args: TFTrainingArguments
    loss_is_scaled_for_ga = True
    """True, because a `TFTrainer` divides the loss by the instances of the whole step."""

    def __init__(self, tf_trainer: Any, **kwargs: Any) -> None:
        # Typed as Any, because the module of `TFTrainer` imports this one.
        self.tf_trainer = tf_trainer
        self.instances: torch.Tensor | int | None = None
        # The optimizer with the hook that applies the constraints of the weights.
        self._constrained_optimizer: Optimizer | None = None
        self._metric_key_prefix = "eval"
        # Number of rows of the current evaluation batch that are not padding.
        self._rows = 0
        self._evaluated_samples: int | None = None
        super().__init__(**kwargs)
        self.world_size = self.args.world_size
        if self.world_size > 1:
            self._lightrainer.gather_losses = self._losses_of_samples

    # --- data

    def get_train_dataloader(self) -> EpochLoader | BatchLoader:
        """Return a loader of the dataset that `get_train_tfdataset` returns."""
        tf_trainer = self.tf_trainer
        args = self.args
        dataset = tf_trainer.get_train_tfdataset()
        if isinstance(dataset, EpochLoader):
            tf_trainer.steps_per_epoch = 0
            if has_length(dataset):
                steps = math.ceil(len(dataset) / args.gradient_accumulation_steps)
                tf_trainer.steps_per_epoch = steps
            return dataset

        # Each batch of the dataset has the samples of a whole step for all processes.
        tf_trainer.steps_per_epoch = self._steps_per_epoch(dataset)
        stream = StepStream(
            dataset,
            steps=tf_trainer.steps_per_epoch,
            parts=args.gradient_accumulation_steps,
            rank=args.process_index,
            world_size=args.world_size,
        )
        samples_per_round = args.train_batch_size * args.world_size
        examples = tf_trainer.num_train_examples
        if not examples:
            examples = len(stream) * samples_per_round
        return BatchLoader(
            stream,
            examples=examples,
            batches=len(stream),
            samples_per_round=samples_per_round,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> EpochLoader:
        """Return a loader of the dataset that `get_eval_tfdataset` returns."""
        return self.evaluation_loader(*self.tf_trainer.get_eval_tfdataset(eval_dataset))

    def get_test_dataloader(self, test_dataset: Any) -> EpochLoader:
        """Return a loader of the dataset that `get_test_tfdataset` returns."""
        return self.evaluation_loader(*self.tf_trainer.get_test_tfdataset(test_dataset))

    def evaluation_loader(
        self, dataset: Iterable[object], steps: int, num_examples: int
    ) -> EpochLoader:
        """Return a loader of batches.

        Args:
            dataset: batches of (features, labels); a loader is returned unchanged.
            steps: number of batches to read; -1 for all.
            num_examples: number of samples in these batches; -1 if unknown.
        """
        if isinstance(dataset, EpochLoader):
            return dataset
        args = self.args
        samples_per_round = args.eval_batch_size * args.world_size
        batches_to_read = None
        if steps >= 0:
            batches_to_read = steps
        stream = EvaluationStream(
            dataset,
            batches=batches_to_read,
            size=args.eval_batch_size,
            rank=args.process_index,
            world_size=args.world_size,
        )

        examples = None
        batches = None
        if num_examples >= 0:
            examples = num_examples
            batches = math.ceil(examples / samples_per_round)
        return BatchLoader(
            stream, examples=examples, batches=batches, samples_per_round=samples_per_round
        )

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of samples of a loader, if the `TFTrainer` knows it."""
        return getattr(dataloader, "examples", None) or super().num_examples(dataloader)

    def _steps_per_epoch(self, dataset: Any) -> int:
        """Return the number of steps in an epoch, from the dataset's length or its samples."""
        batches = -1
        if hasattr(dataset, "cardinality"):
            batches = int(dataset.cardinality())
        if batches < 0 and has_length(dataset):
            batches = len(dataset)
        if batches >= 0:
            return batches

        # A repeated dataset has no end, so the number of samples defines an epoch.
        tf_trainer = self.tf_trainer
        if tf_trainer.num_train_examples is None:
            raise ValueError(
                "get_train_tfdataset returned a dataset of unknown cardinality. Set "
                "self.num_train_examples in it, or call assert_cardinality."
            )
        steps = tf_trainer.num_train_examples / tf_trainer.total_train_batch_size
        if self.args.dataloader_drop_last:
            return max(math.floor(steps), 1)
        return max(math.ceil(steps), 1)

    # --- the optimizer

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Call the method of the `TFTrainer`, and add the constraints of the weights."""
        self.tf_trainer.create_optimizer_and_scheduler(num_training_steps)
        self._constrain_after_steps(self.optimizer)

    def _constrain_after_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer apply the constraints of the weights after each step, as in Keras."""
        if optimizer is not self._constrained_optimizer and constrained(self.model.model):
            optimizer.register_step_post_hook(lambda *_: self.model.constrain())
            self._constrained_optimizer = optimizer

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Create Keras's Adam, unless the arguments name another optimizer."""
        args = self.args
        is_default = args.optim == args.default_optim and not args.optim_args
        if self.optimizer is None and is_default:
            self.optimizer = KerasAdam(
                groups_of(self, self.model),
                lr=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                exact_powers=args.weight_decay > 0,
            )
        return super().create_optimizer(model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of all parameters except biases and layer normalizations."""
        return [name for name, _ in model.named_parameters() if not _NO_DECAY.search(name)]

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip each value of the gradients if they are accumulated, as the original does.

        Returns:
            the norm before clipping, if it is logged after this step.
        """
        norm = None
        if self._is_logged():
            norm = super()._get_grad_norm(model)
        if self.args.gradient_accumulation_steps > 1:
            self.accelerator.clip_grad_value_(model.parameters(), self.args.max_grad_norm)
        return norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm if it is logged after this step, else None to save the computation.

        The original does not log a norm.
        """
        if not self._is_logged():
            return None
        return super()._get_grad_norm(model, grad_norm)

    def _is_logged(self) -> bool:
        """Return whether the arguments ask for a log after the current step."""
        args = self.args
        step = self.state.global_step + 1
        if args.logging_strategy == "epoch":
            return True
        if args.logging_first_step and step == 1:
            return True
        interval = self.state.logging_steps
        if args.logging_strategy != "steps" or not interval:
            return False
        return step % interval == 0

    # --- steps

    def _get_num_items_in_batch(
        self, batch_samples: list[Any], device: torch.device
    ) -> torch.Tensor:
        """Count the labels of a step, over all processes."""
        total = sum(count_instances(batch["labels"]) for batch in batch_samples)
        count = to_device_async(torch.as_tensor(total, device="cpu"), device)
        if self.world_size > 1:
            return self.accelerator.gather(count).sum()
        return count

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Call the step of the `TFTrainer` for one micro-batch, and return the loss."""
        train_loss = self.tf_trainer.train_loss
        inputs = self._prepare_inputs(inputs)
        model.train()
        train_loss.reset_states()
        self.instances = num_items_in_batch
        try:
            self.tf_trainer.distributed_training_steps(self._to_native(inputs))
        finally:
            self.instances = None
        if self.args.torch_empty_cache_steps is not None:
            empty_cache_if_due(self.args, self.state.global_step)
        # Each process has only its part of the summed loss, but the Trainer logs the mean over the
        # processes. So multiply by their number.
        return train_loss.result() * self.world_size

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Call the step of the `TFTrainer` for one batch; return loss, predictions and labels."""
        eval_loss = self.tf_trainer.eval_loss
        inputs = self._prepare_inputs(inputs)
        rows = find_batch_size(inputs) or 0
        self._rows = self._count_unpadded_rows(inputs)
        eval_loss.reset_states()

        # Cut off the padding. If all rows are padding, keep one, because every process has to take
        # every step.
        unpadded = rows_of(inputs, 0, max(self._rows, 1))
        with torch.no_grad():
            logits = self.tf_trainer.distributed_prediction_steps(self._to_native(unpadded))
        loss = eval_loss.value
        if prediction_loss_only:
            return loss, None, None

        labels = inputs["labels"]
        if isinstance(labels, dict):
            labels = tuple(labels.values())
            if len(labels) == 1:
                labels = labels[0]
        logits = self.model.to_torch(logits)
        if self._rows != rows:
            logits = padded_to(logits, rows)
        return loss, logits, labels

    def _count_unpadded_rows(self, inputs: object) -> int:
        """Return the number of rows, excluding those that pad the last batch of all processes."""
        rows = find_batch_size(inputs) or 0
        if self.args.world_size == 1 or not self.accelerator.end_of_dataloader:
            return rows
        remainder = self.accelerator.remainder
        if remainder <= 0:
            return rows
        left_for_this_process = max(remainder - self.args.process_index * rows, 0)
        return min(left_for_this_process, rows)

    def _losses_of_samples(self, losses: torch.Tensor, **kwargs: object) -> torch.Tensor:
        """Return the mean loss of each process's batch, repeated for each of its samples.

        The mean over the repeated losses is then the mean over all samples.
        """
        row_count = losses.new_tensor(self._rows, dtype=torch.float64)
        loss_and_rows = torch.stack([losses[0].double(), row_count])
        gathered = self.accelerator.gather(loss_and_rows).view(-1, 2).cpu()
        repeated = [loss.repeat(int(rows)) for loss, rows in gathered]
        return torch.cat(repeated).to(losses)

    def _to_native(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Return features and labels as tensors of the library that the model computes in."""
        return self.model.to_keras(inputs["features"]), self.model.to_keras(inputs["labels"])

    def set_gradients(self, gradients: Sequence[object] | None, *, add: bool) -> None:
        """Set the gradients that an override of `training_step` returned.

        Args:
            gradients: a gradient for each trainable variable; None keeps the parameters' gradients.
            add: True to add them to the gradients of earlier micro-batches; False to replace those.

        Raises:
            ValueError: the numbers of gradients and variables differ.
        """
        variables = self.model.variables()
        if gradients is None:
            return
        if len(gradients) != len(variables):
            raise ValueError(
                f"training_step returned {len(gradients)} gradients for {len(variables)} "
                "variables. Return one for each of model.trainable_variables, in that order."
            )

        for variable, returned in zip(variables, gradients, strict=True):
            if returned is None or returned is variable.grad:
                continue
            gradient = self.model.to_torch(returned).detach().to(variable).reshape(variable.shape)
            # Gradients that the override computed itself are local to this process. Those of
            # torch's backward pass have already been summed over the processes.
            if add and self.world_size > 1:
                gradient = self.accelerator.reduce(gradient)
            if add and variable.grad is not None:
                gradient = variable.grad + gradient
            variable.grad = gradient

    # --- evaluation and logs

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Call the method of the `TFTrainer`; evaluate a dataset with a name here."""
        if metric_key_prefix == "eval":
            return self.tf_trainer.evaluate(eval_dataset)
        return self.evaluate_as_trainer(eval_dataset, metric_key_prefix)

    def evaluate_as_trainer(
        self, eval_dataset: Any, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate as a `Trainer` does, without calling `TFTrainer.evaluate`."""
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
        dataset = dataloader
        steps = -1
        num_examples = -1
        if has_length(dataloader):
            steps = len(dataloader)
            num_examples = self.num_examples(dataloader)

        # Unwrap the dataset, because an override of `prediction_loop` gets the user's dataset, as
        # in the original.
        if isinstance(dataloader, BatchLoader) and isinstance(dataloader.dataset, EvaluationStream):
            dataset = dataloader.dataset.dataset
            steps = -1
            if dataloader.dataset.batches is not None:
                steps = dataloader.dataset.batches

        self._metric_key_prefix = metric_key_prefix
        output = self.tf_trainer.prediction_loop(
            dataset, steps, num_examples, description, prediction_loss_only
        )
        num_samples = self._evaluated_samples
        if num_samples is None:
            num_samples = max(num_examples, 0)
        return EvalLoopOutput(*output, num_samples=num_samples)

    def loop_as_trainer(
        self, dataloader: Any, description: str, prediction_loss_only: bool | None
    ) -> PredictionOutput:
        """Run the evaluation loop of a `Trainer`, without calling `TFTrainer.prediction_loop`."""
        output = super().evaluation_loop(
            dataloader,
            description,
            prediction_loss_only,
            metric_key_prefix=self._metric_key_prefix,
        )
        self._evaluated_samples = output.num_samples
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Call the method of the `TFTrainer`."""
        self.tf_trainer.log(logs)
