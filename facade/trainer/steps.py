"""The steps that people override: what happens to one batch, in training and in evaluation."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ...lightning_modules.common.nested import map_nested, nested_detach
from ...lightning_modules.models import inspection
from ...lightning_modules.models.liger import can_skip_logits
from ...lightning_modules.models.outputs import read_loss, require_trainable, split_outputs
from ..arguments.parallelism import copies_of_batches, data_ranks
from .checks import check_loss_func
from .columns import explaining_inputs, require_inputs
from .sequences import SequenceSplitting, predicts_next_token

logger = logging.getLogger(__name__)


class TrainerSteps(SequenceSplitting):
    """From a batch to a loss, gradients and predictions."""

    loss_is_scaled_for_ga: bool | None = None
    """As in `transformers` 5.19 and later: whether an override of `compute_loss` divides its loss by the items of all
    micro-batches of a step. With None it follows from `compute_loss_func` and `model_accepts_loss_kwargs`."""

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """As `transformers.Trainer.training_step`: forward and backward pass of one micro-batch.

        Args:
            model: the model to train.
            inputs: keyword arguments of its `forward`.
            num_items_in_batch: labels that count in the whole window of micro-batches, over all processes.

        Returns:
            The loss, detached; its sum over the window is the loss of the step.
        """
        split, inputs = self._prepare_context_parallel_inputs(model, inputs)
        with split():
            return self._forward_and_backward(model, inputs, num_items_in_batch)

    def _forward_and_backward(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor:
        flat = None if self._run is None else self._run.flat(model)
        (model if flat is None else flat).train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        known = inspection.accepted_arguments(self.compute_loss, num_items_in_batch=num_items_in_batch)
        with self.compute_loss_context_manager():
            loss: Any = self.compute_loss(model, inputs, **known)
        del inputs
        self._empty_cache_if_due()
        require_trainable(loss)
        parts = self.current_gradient_accumulation_steps
        if parts > 1 and not self._loss_is_scaled(known.get("num_items_in_batch")):
            loss = loss / parts
        self.accelerator.backward(loss, **self._backward_arguments())
        return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """As `transformers.Trainer.compute_loss`; overrides without `num_items_in_batch` are fine too.

        Args:
            model: the model.
            inputs: keyword arguments of its `forward`.
            return_outputs: return what the model returned as well.
            num_items_in_batch: see `training_step`.

        Returns:
            The loss, or the loss and the model's outputs.
        """
        if not isinstance(inputs, dict):
            require_inputs(inputs, self.data_collator, "compute_loss")
        labels = None
        if "labels" in inputs and (self.label_smoother is not None or self.compute_loss_func is not None):
            labels = self._labels_of_part(model, inputs) if self._is_split else inputs.pop("labels")
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = self._call(model, inputs)
        loss = self._loss_of(model, inputs, outputs, labels, num_items_in_batch)
        shared = self.args.average_tokens_across_devices and num_items_in_batch is not None
        if shared and (self.model_accepts_loss_kwargs or self.compute_loss_func is not None):
            loss = loss * data_ranks(self.args) if data_ranks(self.args) > 1 else loss
        if self._is_split:
            loss = self._of_part(loss, model, inputs, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """As `transformers.Trainer.compute_loss_context_manager`: what `autocast_smart_context_manager` gives.

        Only the model's forward pass is cast in a mixed precision; what else computes the loss stays in float32.
        """
        contexts = contextlib.ExitStack()
        contexts.enter_context(self.autocast_smart_context_manager())
        return contexts

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """As `transformers.Trainer.autocast_smart_context_manager`: empty, for code that still enters it."""
        return contextlib.nullcontext()

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """As `transformers.Trainer.prediction_step`: loss, predictions and labels of one batch, each None if absent.

        Args:
            model: the model to evaluate.
            inputs: keyword arguments of its `forward`.
            prediction_loss_only: return nothing but the loss.
            ignore_keys: outputs of the model that are no predictions.
        """
        if not isinstance(inputs, dict):
            require_inputs(inputs, self.data_collator, "prediction_step")
        with_loss = self._has_loss(inputs)
        inputs = self._prepare_inputs(inputs)
        labels = nested_detach(tuple(inputs.get(name) for name in self.label_names)) if with_loss else None
        if prediction_loss_only and self.args.use_liger_kernel and self._only_the_model_needs_logits(inputs):
            inputs = {**inputs, "skip_logits": True}  # as in 5.23; they are most of the memory
        if ignore_keys is None:
            ignore_keys = self._keys_to_ignore()
        with torch.no_grad():
            loss, outputs = self._loss_and_outputs(model, inputs) if with_loss else (None, self._outputs(model, inputs))
        if prediction_loss_only:
            return loss, None, None
        logits = nested_detach(split_outputs(outputs, ignore_keys, has_loss=with_loss))
        return loss, _only(logits), _only(labels)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As `transformers.Trainer.floating_point_ops`: six for each token and parameter outside the embeddings."""
        main_input = inputs.get(getattr(self.model, "main_input_name", "input_ids")) if _is_mapping(inputs) else None
        if main_input is None or not hasattr(self.model, "num_parameters"):
            return 0
        return 6 * main_input.numel() * self._parameter_counter.count(self.model)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """As `transformers.Trainer.get_batch_samples`: the micro-batches of a step, and the items in all of them."""
        batch_samples = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        return batch_samples, self._get_num_items_in_batch(batch_samples, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | int | None:
        if not (self.model_accepts_loss_kwargs or self.compute_loss_func is not None):
            return None
        if not batch_samples or not _is_mapping(batch_samples[0]) or "labels" not in batch_samples[0]:
            return None
        try:
            items = sum(self._counted_labels(batch["labels"]).ne(-100).sum() for batch in batch_samples)
        except (TypeError, AttributeError):
            return None
        if isinstance(items, torch.Tensor):
            items = items.to(device)
            if self.args.average_tokens_across_devices and self.args.world_size > 1:
                items = self.accelerator.gather(items).sum() // copies_of_batches(self.args)
        return items

    def _counted_labels(self, labels: Any) -> Any:
        """Label smoothing shifts the labels itself, and with them what counts; models count them unshifted."""
        smoothed = self.label_smoother is not None and self.compute_loss_func is None
        return labels[..., 1:] if smoothed and predicts_next_token(self.model) else labels

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = self._prepare_input(inputs)
        if inputs is None:
            require_inputs(inputs, self.data_collator, "compute_loss")
        if hasattr(inputs, "__len__") and len(inputs) == 0:
            columns = ", ".join(self._signature_columns or []) or "unknown"
            raise ValueError(
                "The batch is empty: after the data_collator nothing is left that the model takes. It takes: "
                f"{columns}. Check the names of the data's columns, or set remove_unused_columns=False."
            )
        return inputs

    def _prepare_input(self, data: Any) -> Any:
        device = self.args.device if self._run is None else self._run.computes_on
        half = self.accelerator.strategy.half_of_inputs()
        if half is not None:  # the engine has cast the model, and no forward pass is
            data = map_nested(lambda leaf: leaf.to(half) if _is_floating(leaf) else leaf, data)
        if device.type == "cpu":
            return map_nested(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, data)
        go_on: bool = self.args.accelerator_config.non_blocking  # made in __post_init__
        return map_nested(lambda leaf: _to_device(leaf, device, go_on), data)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if self.args.include_num_input_tokens_seen != "no":
            self._token_counter.add(inputs)

    def _calls_loss_func(self) -> bool:
        steps = ("compute_loss", "training_step")
        return all(getattr(getattr(self, name), "__func__", None) is getattr(TrainerSteps, name) for name in steps)

    def _loss_is_scaled(self, num_items_in_batch: Any) -> bool:
        """Whether the loss was divided by the items of the whole window already, where it was computed."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        if self.compute_loss_func is not None:
            return True
        return self.model_accepts_loss_kwargs and num_items_in_batch is not None

    def _loss_of(self, model: Any, inputs: Any, outputs: Any, labels: Any, num_items: Any) -> torch.Tensor:
        if self.compute_loss_func is not None:
            check_loss_func(self.compute_loss_func)
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items)
            if not isinstance(loss, torch.Tensor):
                raise TypeError(
                    f"compute_loss_func returned a {type(loss).__name__} ({loss!r:.60}), but the loss has to be a "
                    "torch.Tensor that the outputs led to."
                )
            return loss
        if labels is not None and self.label_smoother is not None:
            shift = predicts_next_token(inspection.unwrap_model(model)) and not self._is_split
            items = num_items if self._spans_several_batches(model) else None
            return self.label_smoother(outputs, labels, shift_labels=shift, num_items_in_batch=items)
        return read_loss(outputs, inputs, first_of_vector=True)

    def _spans_several_batches(self, model: nn.Module) -> bool:
        """Whether a mean over this batch alone would be wrong: 5.3.0 takes it all the same, later versions do not."""
        several = model.training and self.current_gradient_accumulation_steps > 1
        return several or self.args.world_size > 1

    def _has_loss(self, inputs: Any) -> bool:
        if self.label_names:
            return all(inputs.get(name) is not None for name in self.label_names)
        return_loss = inputs.get("return_loss")
        return bool(self.can_return_loss if return_loss is None else return_loss)

    def _only_the_model_needs_logits(self, inputs: dict[str, Any]) -> bool:
        """Whether the model computes the loss of its labels itself, and can do so without giving logits."""
        own = getattr(self.compute_loss, "__func__", None) is TrainerSteps.compute_loss
        elsewhere = not own or self.label_smoother is not None or self.compute_loss_func is not None
        return not elsewhere and inputs.get("labels") is not None and can_skip_logits(self.model)

    def _loss_and_outputs(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
        items = self._get_num_items_in_batch([inputs], self.args.device)
        known = inspection.accepted_arguments(self.compute_loss, num_items_in_batch=items)
        with self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True, **known)
        return loss.detach().mean(), outputs

    def _outputs(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        with self.compute_loss_context_manager():
            return self._call(model, inputs)

    def _call(self, model: nn.Module, inputs: Any) -> Any:
        try:
            return model(**inputs)
        except TypeError:
            with explaining_inputs(model, inputs, self.train_dataset if model.training else self.eval_dataset):
                require_inputs(inputs, self.data_collator, "compute_loss")
                raise

    def _keys_to_ignore(self) -> list[str]:
        config = getattr(self.model, "config", None)
        return [] if config is None else list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]))

    def _empty_cache_if_due(self) -> None:
        every = self.args.torch_empty_cache_steps
        if every is None or self.state.global_step % every:
            return
        kind = self.args.device.type
        if kind != "cpu":
            getattr(torch, kind).empty_cache()  # torch.cuda, torch.mps and torch.xpu have it


def _only(values: Any) -> Any:
    """The one value where there is just one."""
    return values[0] if isinstance(values, (tuple, list)) and len(values) == 1 else values


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _is_mapping(inputs: Any) -> bool:
    return isinstance(inputs, Mapping)


def _to_device(leaf: Any, device: torch.device, go_on: bool) -> Any:
    """Copy a tensor. From pinned memory the program always goes on meanwhile, for nobody can notice it."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.to(device, non_blocking=go_on or (leaf.device.type == "cpu" and leaf.is_pinned()))
