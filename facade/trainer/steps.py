"""The steps that people override: what happens to one batch, in training and in evaluation."""

from __future__ import annotations

import contextlib
import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.nested import map_nested, nested_detach
from ...lightning_modules.models import inspection
from ...lightning_modules.models.inspection import loss_shifts_labels, shifts_smoothed_labels
from ...lightning_modules.models.liger import can_skip_logits
from ...lightning_modules.models.outputs import read_loss, require_trainable, split_outputs
from ...lightning_modules.optim import steps_in_backward
from ..arguments.parallelism import copies_of_batches, data_ranks
from .base import is_own
from .checks import check_loss_func
from .columns import explaining_inputs, require_inputs
from .context_parallel import ContextParallel
from .optimization import TrainerOptimization

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_TENSORS = {torch.Tensor}
_is_on_cpu = operator.attrgetter("is_cpu")


class TrainerSteps(TrainerOptimization):
    """From a batch to a loss, gradients and predictions."""

    loss_is_scaled_for_ga: bool | None = None
    """As in `transformers` 5.19 and later: whether an override of `compute_loss` divides its loss by the items of all
    micro-batches of a step. With None it follows from `compute_loss_func` and `model_accepts_loss_kwargs`."""

    _context_parallel = cached_property(ContextParallel)

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
            flat = None if self._run is None else self._run.flat(model)
            (model if flat is None else flat).train()
            if callable(getattr(self.optimizer, "train", None)):
                self.optimizer.train()
            inputs = self._prepare_inputs(inputs)
            known = inspection.accepted_arguments(self.compute_loss, num_items_in_batch=num_items_in_batch)
            loss: Any = _in_context(self, self.compute_loss, model, inputs, **known)
            del inputs
            if self.args.torch_empty_cache_steps is not None:
                empty_cache_if_due(self.args, self.state.global_step)
            require_trainable(loss)
            parts = self.current_gradient_accumulation_steps
            if parts > 1 and not self._loss_is_scaled(known.get("num_items_in_batch")):
                loss = loss / parts
            own_step = steps_in_backward(self.optimizer) if self._run is None else self._run.steps_in_backward
            kwargs = {"learning_rate": self._get_learning_rate()} if own_step else {}
            self.accelerator.backward(loss, **kwargs)
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
        labels, split = None, self._context_parallel.targets is not None
        if "labels" in inputs and (self.label_smoother is not None or self.compute_loss_func is not None):
            labels = self._context_parallel.pop_labels(model, inputs) if split else inputs.pop("labels")
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = _call(self, model, inputs)
        if self.compute_loss_func is not None:
            loss = _checked_loss(self.compute_loss_func, outputs, labels, num_items_in_batch)
        elif labels is not None and self.label_smoother is not None:
            # A mean over this batch alone would be wrong: 5.3.0 takes it all the same, later versions do not.
            several = self.args.world_size > 1 or (model.training and self.current_gradient_accumulation_steps > 1)
            shift = shifts_smoothed_labels(model) and not split
            items = num_items_in_batch if several or followed().smooths_by_items else None
            loss = self.label_smoother(outputs, labels, shift_labels=shift, num_items_in_batch=items)
        else:
            loss = read_loss(outputs, inputs, first_of_vector=True)
        shared = self.args.average_tokens_across_devices and num_items_in_batch is not None
        if shared and (self.model_accepts_loss_kwargs or self.compute_loss_func is not None):
            loss = loss * data_ranks(self.args) if data_ranks(self.args) > 1 else loss
        if split:
            loss = self._context_parallel.loss_of_part(loss, model, inputs, labels, num_items_in_batch)
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
            items = sum(labels.ne(-100).sum() for labels in self._counted_labels(batch_samples))
        except (TypeError, AttributeError):
            return None
        if not isinstance(items, torch.Tensor):
            return items
        items = items.to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            items = self.accelerator.gather(items).sum() // copies_of_batches(self.args)
        return items.float() if followed().counts_items_in_floats else items

    def _counted_labels(self, batches: list[Any]) -> Iterator[Any]:
        version = followed()
        exact = version.counts_shifted_labels
        smoothed = self.label_smoother is not None and self.compute_loss_func is None and not version.smooths_by_items
        shifted = shifts_smoothed_labels(self.model) if smoothed else exact and loss_shifts_labels(self.model)
        for batch in batches:
            if exact and "shift_labels" in batch:
                yield batch["shift_labels"]
            else:
                yield batch["labels"][..., 1:] if shifted else batch["labels"]

    @property
    def _device(self) -> torch.device:
        """What this process computes on."""
        return self.args.device if self._run_device is None else self._run_device

    def _prepare_input(self, data: Any) -> Any:
        device = self._device
        half = self.accelerator.strategy.half_of_inputs()
        if half is not None:  # the engine has cast the model, and no forward pass is
            data = map_nested(lambda leaf: leaf.to(half) if _is_floating(leaf) else leaf, data)
        if device == _CPU:  # asking for its type takes longer
            if type(data) is dict and {*map(type, data.values())} == _TENSORS and all(map(_is_on_cpu, data.values())):
                return data.copy()  # most often
            return map_nested(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, data)
        config: Any = self.args.accelerator_config
        go_on: bool = config.non_blocking
        return map_nested(lambda leaf: _to_device(leaf, device, go_on), data)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = self._prepare_input(inputs)
        if type(inputs) is dict and inputs:
            return inputs
        if inputs is None:
            require_inputs(inputs, self.data_collator, "compute_loss")
        if hasattr(inputs, "__len__") and len(inputs) == 0:
            columns = ", ".join(self._signature_columns or []) or "unknown"
            raise ValueError(
                "The batch is empty: after the data_collator nothing is left that the model takes. It takes: "
                f"{columns}. Check the names of the data's columns, or set remove_unused_columns=False."
            )
        return inputs

    def _prepare_context_parallel_inputs(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[Callable[[], contextlib.AbstractContextManager[Any]], dict[str, Any]]:
        if self.args.parallelism_config is None:
            return contextlib.nullcontext, inputs
        return self._context_parallel.prepare(model, inputs)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if self.args.include_num_input_tokens_seen != "no":
            self._token_counter.add(inputs)

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
        with_loss = _has_loss(inputs, self.label_names, self.can_return_loss)
        inputs = self._prepare_inputs(inputs)
        labels = None
        if with_loss and not prediction_loss_only:
            labels = nested_detach(_only(tuple([inputs.get(name) for name in self.label_names])))
        if prediction_loss_only and self.args.use_liger_kernel and _only_the_model_needs_logits(self, inputs):
            inputs = {**inputs, "skip_logits": True}  # as in 5.23; they are most of the memory
        evaluate = loss_and_outputs if with_loss else no_loss_and_outputs
        if torch.is_grad_enabled():
            with torch.no_grad():
                loss, outputs = evaluate(self, model, inputs)
        else:
            loss, outputs = evaluate(self, model, inputs)
        if prediction_loss_only:
            return loss, None, None
        if ignore_keys is None:
            config: Any = getattr(self.model, "config", None)
            default = [] if config is None else ["past_key_values"]
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", default))
        return loss, nested_detach(_only(split_outputs(outputs, ignore_keys, has_loss=with_loss))), labels

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As `transformers.Trainer.floating_point_ops`: six for each token and parameter outside the embeddings."""
        main_input = inputs.get(getattr(self.model, "main_input_name", "input_ids")) if _is_mapping(inputs) else None
        if main_input is None or not hasattr(self.model, "num_parameters"):
            return 0
        return 6 * main_input.numel() * self._parameter_counter.count()

    def _loss_is_scaled(self, num_items_in_batch: Any) -> bool:
        """Whether the loss was divided by the items of the whole window already, where it was computed."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        if self.compute_loss_func is not None:
            return True
        return self.model_accepts_loss_kwargs and num_items_in_batch is not None


_OWN_CONTEXTS = (TrainerSteps.compute_loss_context_manager, TrainerSteps.autocast_smart_context_manager)


def _in_context(trainer: TrainerSteps, compute: Callable[..., Any], *inputs: Any, **known: Any) -> Any:
    """Call `compute` in the context that an override gives: the methods themselves give an empty one, which costs."""
    if not _gives_context(trainer):
        return compute(*inputs, **known)
    with trainer.compute_loss_context_manager():
        return compute(*inputs, **known)


def _gives_context(trainer: TrainerSteps) -> bool:
    kind, attributes = type(trainer), vars(trainer)
    given = (kind.compute_loss_context_manager, kind.autocast_smart_context_manager)
    replaced = "compute_loss_context_manager" in attributes or "autocast_smart_context_manager" in attributes
    return replaced or given != _OWN_CONTEXTS


def loss_and_outputs(trainer: TrainerSteps, model: nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    """The loss of a batch that is evaluated, as `compute_loss` has it, and what the model returned."""
    items = trainer._get_num_items_in_batch([inputs], trainer._device)
    known = inspection.accepted_arguments(trainer.compute_loss, num_items_in_batch=items)
    loss, outputs = _in_context(trainer, trainer.compute_loss, model, inputs, return_outputs=True, **known)
    return loss.detach() if loss.dim() == 0 else loss.detach().mean(), outputs


def no_loss_and_outputs(trainer: TrainerSteps, model: nn.Module, inputs: dict[str, Any]) -> tuple[None, Any]:
    """No loss, and what the model returned for a batch."""
    return None, _in_context(trainer, _call, trainer, model, inputs)


def _call(trainer: TrainerSteps, model: nn.Module, inputs: Any) -> Any:
    try:
        return model(**inputs)
    except TypeError:
        with explaining_inputs(model, inputs, trainer.train_dataset if model.training else trainer.eval_dataset):
            require_inputs(inputs, trainer.data_collator, "compute_loss")
            raise


def _checked_loss(compute_loss_func: Any, outputs: Any, labels: Any, num_items: Any) -> torch.Tensor:
    check_loss_func(compute_loss_func)
    loss = compute_loss_func(outputs, labels, num_items_in_batch=num_items)
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"compute_loss_func returned a {type(loss).__name__} ({loss!r:.60}), but the loss has to be a "
            "torch.Tensor that the outputs led to."
        )
    return loss


def _has_loss(inputs: Any, label_names: list[str], can_return_loss: bool) -> bool:
    if label_names:
        return all(inputs.get(name) is not None for name in label_names)
    return_loss = inputs.get("return_loss")
    return bool(can_return_loss if return_loss is None else return_loss)


def empty_cache_if_due(args: Any, step: int) -> None:
    """Give memory back to the device every `torch_empty_cache_steps` steps; the CPU has no such cache."""
    if step % args.torch_empty_cache_steps == 0 and args.device.type != "cpu":
        getattr(torch, args.device.type).empty_cache()  # torch.cuda, torch.mps and torch.xpu have it


def _only_the_model_needs_logits(trainer: TrainerSteps, inputs: dict[str, Any]) -> bool:
    """Whether the model computes the loss of its labels itself, and can do so without giving logits."""
    elsewhere = trainer.label_smoother is not None or trainer.compute_loss_func is not None
    own = is_own(trainer, "compute_loss") and not elsewhere
    return own and inputs.get("labels") is not None and can_skip_logits(trainer.model)


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
