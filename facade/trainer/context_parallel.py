"""Context parallelism: training on sequences that are split over processes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.distributed.sequence_sharding import IGNORED, prepare_inputs, split_names
from ...lightning_modules.models.outputs import find_loss
from ...lightning_modules.models.pretrained import is_pretrained, shifts_smoothed_labels
from ...lightning_modules.models.wrappers import base_of_adapter
from ...lightning_modules.training.tracked_items import TrackedItems
from ..arguments.rank_groups import effective_parallelism, parts_of_sequences

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)


class ContextParallel:
    """Prepare batches for splitting, and scale the loss of each rank's part.

    Args:
        trainer: the Trainer.

    Attributes:
        targets: number of labels of the full batch that are not ignored, by label name; None unless
            a batch is split.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.targets: dict[str, torch.Tensor] | None = None
        self._inputs: dict[str, Any] = {}
        self._model_loss: torch.Tensor | None = None
        """The last loss that the model returned for the current split; used for overrides of
        `compute_loss`.
        """
        self._is_scaled = False
        """Whether `loss_of_part` has already scaled the loss of the current split."""
        self._warned = False

    def prepare(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[Callable[[], contextlib.AbstractContextManager[Any]], dict[str, Any]]:
        """Return a context manager that splits sequences, and the inputs to use in it.

        The inputs are new tensors, which the context manager resizes in place. If nothing is split,
        as in evaluations, the inputs are returned unchanged.

        Raises:
            ValueError: the inputs cannot be split.
        """
        trainer = self.trainer
        groups = effective_parallelism(trainer.args)
        if groups is None or not groups.sequence_argument:
            return contextlib.nullcontext, inputs
        if not trainer.accelerator.strategy.splits_sequences:
            return contextlib.nullcontext, inputs

        argument = groups.sequence_argument
        size = parts_of_sequences(trainer.args)
        if callable(trainer.compute_loss_func):
            raise ValueError(
                f"parallelism_config: {argument}={size} cannot be combined with compute_loss_func, "
                "whose labels are not shifted. Override compute_loss instead: its inputs have "
                "shift_labels."
            )

        # Models of transformers build an attention mask over the full sequence themselves.
        full_mask = is_pretrained(base_of_adapter(model))
        inputs = prepare_inputs(inputs, size=size, full_mask=full_mask)
        inputs = trainer._prepare_input(inputs)
        return partial(self._split, model, inputs, argument), inputs

    @contextlib.contextmanager
    def _split(self, model: nn.Module, inputs: dict[str, Any], argument: str) -> Iterator[None]:
        """Split the sequences of a batch within the block, and record the loss of the model."""
        # Count the targets before each rank keeps only its part.
        buffers: list[torch.Tensor] = []
        targets: dict[str, torch.Tensor] = {}
        for name in split_names(inputs):
            buffers.append(inputs[name])
            if name in ("labels", "shift_labels"):
                targets[name] = inputs[name].ne(IGNORED).sum()

        # No buffer needs to be restored to the full sequence after the block.
        sequence_dimensions = [1] * len(buffers)
        splitting = self.trainer.accelerator.maybe_context_parallel(
            buffers, sequence_dimensions, set(buffers)
        )
        with splitting as calls:
            self.targets = targets
            self._inputs = inputs
            self._is_scaled = False
            hook = model.register_forward_hook(self._note_loss)
            try:
                yield
            finally:
                hook.remove()
                self.targets = None
                self._inputs = {}
                self._model_loss = None

        # Any other attention implementation would attend to the local part of each sequence only.
        if calls.count == 0:
            raise ValueError(
                f"parallelism_config: {argument} is above 1, but the model did not call "
                "torch.nn.functional.scaled_dot_product_attention, the only attention that is "
                "sharded. Call it by that name, or use dp_shard_size."
            )

    def _note_loss(self, model: nn.Module, arguments: object, outputs: Any) -> None:
        self._model_loss = find_loss(outputs)

    def loss_of_override(
        self, loss: torch.Tensor, model: nn.Module, items: torch.Tensor | int | None
    ) -> torch.Tensor:
        """Scale the loss that an override of `compute_loss` returned, if it is the model's loss.

        The loss of the Trainer's own `compute_loss` is already scaled. Any other loss is returned
        unchanged, with a warning (once) that explains how to normalise it.

        Args:
            loss: returned by `compute_loss`.
            model: the trained model.
            items: `num_items_in_batch` as passed to `compute_loss`; a `TrackedItems` records
                whether the loss was divided by it.
        """
        if self._is_scaled:
            return loss
        if loss is self._model_loss:
            was_divided = isinstance(items, TrackedItems) and items.use.is_used
            return self.loss_of_part(loss, model, self._inputs, None, is_mean=not was_divided)
        if not self._warned:
            self._warned = True
            logger.warning(
                "The override of compute_loss returns neither the loss of the model nor that of "
                "Trainer.compute_loss. Each process has a part of the sequences, with other "
                "numbers of labels: the mean of these losses over the processes must equal the "
                "loss of the full batch. Build on super().compute_loss(model, inputs, ...)."
            )
        return loss

    def pop_labels(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Remove the labels from the inputs, and return those that label smoothing needs."""
        labels = inputs.pop("labels")
        shift_labels = inputs.pop("shift_labels")
        if shifts_smoothed_labels(model):
            return shift_labels
        return labels

    def loss_of_part(
        self,
        loss: torch.Tensor,
        model: nn.Module,
        inputs: dict[str, Any],
        smoothed_labels: torch.Tensor | None,
        *,
        is_mean: bool,
    ) -> torch.Tensor:
        """Scale the loss of a part so that the mean over the processes equals the loss of the
        batch.

        Args:
            loss: the loss of this rank's part: either a sum divided by the items of all ranks, or a
                mean over the labels of the part that are not ignored.
            model: the trained model.
            inputs: the part of the batch.
            smoothed_labels: the labels of the part, if label smoothing computed the loss.
            is_mean: whether the loss is a mean over the labels of the part.
        """
        self._is_scaled = True
        size = parts_of_sequences(self.trainer.args)

        # Losses that are sums over items add up over the parts; multiply by the number of parts to
        # compensate for the mean over the processes.
        if not is_mean:
            return loss * size

        assert self.targets is not None
        if smoothed_labels is None:
            labels = inputs["shift_labels"]
            total_count = self.targets["shift_labels"]
        elif shifts_smoothed_labels(model):
            labels = smoothed_labels
            total_count = self.targets["shift_labels"]
        else:
            labels = smoothed_labels
            total_count = self.targets["labels"]

        # A mean over zero labels is NaN, and multiplying it by a weight of 0 would stay NaN.
        count = labels.ne(IGNORED).sum()
        share = size * count / total_count.clamp(min=1)
        return torch.where(count > 0, loss * share, torch.zeros_like(loss))
