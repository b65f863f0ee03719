"""Implement the overridable steps of a Trainer: counting items, preparing batches, losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.common.device_copies import to_device_async
from ...lightning_modules.common.nested import map_nested, mapping_like, sequence_like
from ...lightning_modules.common.version_behavior import version_behavior
from ...lightning_modules.data.lengths import is_table
from ...lightning_modules.models.liger import can_skip_logits
from ...lightning_modules.models.pretrained import loss_shifts_labels, shifts_smoothed_labels
from ...lightning_modules.models.signatures import accepted_arguments, signature_columns
from ...lightning_modules.models.wrappers import base_of_adapter
from ...lightning_modules.training.micro_batch_loss import MicroBatchLoss
from ...lightning_modules.training.tracked_items import TrackedItems
from ..arguments.rank_groups import copies_of_batches, parts_of_sequences, ranks_counted_together
from .checks import describe
from .overrides import is_own

if TYPE_CHECKING:
    from .. import Trainer


def count_items(
    trainer: Trainer, batches: list[Any], device: torch.device
) -> torch.Tensor | int | None:
    """Count the labels of a step that are not -100, over all processes; None if they are not
    tensors.
    """
    if not batches or not isinstance(batches[0], Mapping) or "labels" not in batches[0]:
        return None
    if not all(isinstance(batch["labels"], torch.Tensor) for batch in batches):
        return None

    args = trainer.args
    items = to_device_async(_own_items(trainer, batches), device)
    if args.average_tokens_across_devices and args.world_size > 1:
        # Ranks that read the same batches have counted the same labels.
        items = trainer.accelerator.gather(items).sum() // copies_of_batches(args)
    if version_behavior().counts_items_in_floats:
        return items.float()
    return items


def _own_items(trainer: Trainer, batches: list[Any]) -> torch.Tensor:
    """Count the labels of micro-batches of this process that are not -100."""
    counts = [labels.ne(-100).sum() for labels in _counted_labels(trainer, batches)]
    return torch.stack(counts).sum()


def _counted_labels(trainer: Trainer, batches: list[Any]) -> Iterator[torch.Tensor]:
    """Yield the labels that the selected version of transformers counts."""
    version = version_behavior()
    counts_shifted = version.counts_shifted_labels

    # A loss that shifts the labels ignores the first label of each row.
    smooths = trainer.label_smoother is not None and trainer.compute_loss_func is None
    if smooths and not version.smooths_by_items:
        leaves_out_first = shifts_smoothed_labels(trainer.model)
    else:
        leaves_out_first = counts_shifted and loss_shifts_labels(trainer.model)

    for batch in batches:
        if counts_shifted and "shift_labels" in batch:
            yield batch["shift_labels"]
        elif leaves_out_first:
            yield batch["labels"][..., 1:]
        else:
            yield batch["labels"]


def to_half(data: object, dtype: torch.dtype) -> object:
    """Cast the floating-point tensors of a batch to the dtype to which an engine has cast the
    model.
    """

    def cast(leaf: object) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf.to(dtype)

    return map_nested(cast, data)


def prepare_values(prepare: Callable[[Any], object], data: object) -> object:
    """Apply a function to each value of a batch; return anything but a collection unchanged."""
    if isinstance(data, Mapping):
        return mapping_like(data, {name: prepare(value) for name, value in data.items()})
    if isinstance(data, (tuple, list)):
        return sequence_like(data, [prepare(value) for value in data])
    return data


def require_batch(trainer: Trainer, inputs: object) -> None:
    """Raise an error for an empty batch.

    Raises:
        ValueError: the batch is empty; the message lists the columns that the model accepts.
    """
    if isinstance(inputs, Sized) and len(inputs) == 0:
        columns = "unknown"
        if trainer._signature_columns:
            columns = ", ".join(trainer._signature_columns)
        raise ValueError(
            f"The batch is empty. The model takes: {columns}. "
            "Check the data's columns, or set remove_unused_columns=False."
        )


def wrong_batch(trainer: Trainer, inputs: object) -> TypeError:
    """Return the error for a batch that is not a mapping."""
    model = base_of_adapter(trainer.model)
    names = inspect.signature(model.forward).parameters
    return TypeError(
        f"The batch is {describe(inputs)}, but the model is called with keyword arguments. "
        f"Let the data_collator return a dict, with names that {type(model).__name__}.forward "
        f"takes: {', '.join(names)}. To train on other batches override compute_loss, and "
        "prediction_step for evaluations."
    )


def wrong_loss(source: str, loss: object) -> TypeError:
    """Return the error for a loss that is not a tensor.

    Args:
        source: the user's function that returned it.
        loss: what it returned.
    """
    advice = "Return the loss, a tensor with gradients"
    if isinstance(loss, tuple):
        advice += "; return outputs as well only with return_outputs=True"
    return TypeError(f"{source} returned {describe(loss)}, not a loss. {advice}.")


def why_no_loss(trainer: Trainer, model: nn.Module, inputs: Any) -> str:
    """Explain which labels or columns a model needs to compute its loss, and what to change.

    Args:
        trainer: the Trainer.
        model: the model, in training or evaluation mode.
        inputs: the batch.
    """
    base = base_of_adapter(trainer.model)
    name = type(base).__name__
    instead = "override compute_loss, or pass compute_loss_func"
    if not trainer.label_names:
        # Models such as CLIP compute a loss on request.
        if "return_loss" in signature_columns(base, []):
            return (
                f"{name}.forward computes one if asked: let the data_collator add "
                "return_loss=True to the batch."
            )
        return f"{name}.forward takes no labels: {instead}."

    missing = [label for label in trainer.label_names if inputs.get(label) is None]
    if not missing:
        return f"{name}.forward has to compute it; otherwise {instead}."

    parts = [f"Missing: {', '.join(missing)} (label_names={trainer.label_names})."]
    dropped = _dropped_columns(trainer, training=model.training)
    if dropped:
        parts.append(
            f"Dropped from the dataset, as {name}.forward does not take them "
            f"(remove_unused_columns=True): {', '.join(dropped)}. Rename the column with the "
            f"labels to {missing[0]!r}."
        )
    else:
        parts.append(f"Add a column {missing[0]!r} to the dataset.")
    parts.append(f"Or {instead}.")
    return " ".join(parts)


def _dropped_columns(trainer: Trainer, *, training: bool) -> list[str]:
    """Return the columns that are removed because the model does not accept them; none if the
    columns of the dataset are unknown.
    """
    accepted_columns = trainer._signature_columns
    if accepted_columns is None:
        return []
    dataset = trainer.train_dataset if training else trainer.eval_dataset
    columns: Iterable[str] = ()
    if is_table(dataset):
        columns = dataset.column_names
    elif isinstance(dataset, list) and dataset and isinstance(dataset[0], Mapping):
        columns = dataset[0]
    return [column for column in columns if column not in accepted_columns]


def smoothed_loss(
    trainer: Trainer, model: nn.Module, outputs: Any, labels: Any, items: Any, *, split: bool
) -> Any:
    """Return the label-smoothed loss of a batch.

    Args:
        trainer: the Trainer.
        model: the model, in training or evaluation mode.
        outputs: the outputs of the model.
        labels: the labels of the batch.
        items: number of labels in the whole window that are not ignored, over all processes.
        split: whether processes share sequences, so that labels are already shifted.
    """
    # With several micro-batches or ranks the mean over this batch would be wrong. transformers
    # 5.3.0 only uses it in a single process without accumulation; later versions never use it.
    accumulates = model.training and trainer.current_gradient_accumulation_steps > 1
    is_one_of_several = trainer.args.world_size > 1 or accumulates
    counted_items = None
    if is_one_of_several or version_behavior().smooths_by_items:
        counted_items = items

    shift = shifts_smoothed_labels(model) and not split
    smoother = trainer.label_smoother
    assert smoother is not None
    return smoother(outputs, labels, shift_labels=shift, num_items_in_batch=counted_items)


def loss_and_outputs(
    trainer: Trainer, model: nn.Module, inputs: dict[str, Any]
) -> tuple[torch.Tensor, object]:
    """Return the loss of `compute_loss` for an evaluated batch, and the outputs of the model."""
    device = trainer._lightrainer.device_of_run or trainer.args.device
    items = trainer._get_num_items_in_batch([inputs], device)
    scaling: AbstractContextManager[None] = nullcontext()
    router_losses = trainer._lightrainer.router_losses
    if items is not None and router_losses is not None:
        items = TrackedItems.of(items)
        factor = ranks_counted_together(trainer.args) * parts_of_sequences(trainer.args)
        scaling = router_losses.scaled(MicroBatchLoss(items, 1, 1), factor)

    kwargs = accepted_arguments(trainer.compute_loss, num_items_in_batch=items)
    with scaling, trainer.compute_loss_context_manager():
        returned: Any = trainer.compute_loss(model, inputs, return_outputs=True, **kwargs)
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise TypeError(
            f"{type(trainer).__name__}.compute_loss returned {describe(returned)} with "
            "return_outputs=True. Return a pair (loss, outputs) in that case."
        )
    loss, outputs = returned
    if not isinstance(loss, torch.Tensor):
        raise wrong_loss(f"{type(trainer).__name__}.compute_loss", loss)

    # As in the reference, a loss that is not a scalar is averaged.
    loss = loss.detach()
    if loss.dim() > 0:
        loss = loss.mean()
    return loss, outputs


def no_loss_and_outputs(
    trainer: Trainer, model: nn.Module, inputs: dict[str, Any]
) -> tuple[None, object]:
    """Return None as the loss, and the outputs of the model."""
    with trainer.compute_loss_context_manager():
        return None, model(**inputs)


def has_loss(inputs: Any, label_names: list[str], can_return_loss: bool) -> bool:
    """Return whether a batch has the labels, or the `return_loss`, that the loss needs."""
    if label_names:
        return all(inputs.get(name) is not None for name in label_names)

    return_loss = inputs.get("return_loss")
    if return_loss is None:
        return_loss = can_return_loss
    return bool(return_loss)


def empty_cache_if_due(args: Any, step: int) -> None:
    """Empty the memory cache of the device every `torch_empty_cache_steps` steps."""
    if step % args.torch_empty_cache_steps != 0 or args.device.type == "cpu":
        return

    device = getattr(torch, args.device.type)  # torch.cuda, torch.mps or torch.xpu
    device.empty_cache()
    if hasattr(device, "clear_graph_cache"):  # of torch.mps
        device.clear_graph_cache()


def only_model_needs_logits(trainer: Trainer, inputs: dict[str, Any]) -> bool:
    """Return whether the model computes the loss itself, and can do so without returning logits."""
    if trainer.label_smoother is not None or trainer.compute_loss_func is not None:
        return False
    if not is_own(trainer, "compute_loss"):
        return False
    return inputs.get("labels") is not None and can_skip_logits(trainer.model)


def unwrap_single(values: object) -> Any:
    """Return the element of a sequence of length 1, and anything else unchanged."""
    if isinstance(values, (tuple, list)) and len(values) == 1:
        return values[0]
    return values
