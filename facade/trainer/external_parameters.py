"""Train, save and restore parameters outside of the model, such as those of a loss module."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules import checkpoints
from ...lightning_modules.common.collectives import broadcast_tensors
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.distributed.gradient_averages import average_gradients

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)

EXTERNAL_PARAMETERS_NAME = "outside_model.pt"
"""File name in a checkpoint; transformers does not write this file."""


class ExternalParameters:
    """Trained parameters outside of the model, and the buffers of a `compute_loss_func`.

    `model.zero_grad`, the gradient averaging of DDP and `save_model` only cover the parameters of
    the model. This class clears, averages and saves the others.

    Args:
        trainer: the Trainer.

    Attributes:
        parameters: parameters in the optimizer that do not belong to the model, in the order of the
            optimizer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.parameters: list[nn.Parameter] = []

    def begin(self, parameters: list[nn.Parameter]) -> None:
        """Train these parameters, starting from the values on rank 0."""
        self.parameters = parameters
        if self.trainer.args.world_size > 1:
            broadcast_tensors(parameters)

    def average_gradients(self) -> None:
        """Average the gradients over the processes."""
        if self.trainer.args.world_size > 1:
            average_gradients(self.parameters)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def save(self, folder: str) -> None:
        """Write all values, if there are any, on the process that saves."""
        trainer = self.trainer
        if not trainer.args.should_save:
            return

        state = self._state()
        if any(state.values()):
            path = os.path.join(folder, EXTERNAL_PARAMETERS_NAME)
            files = trainer._lightrainer.checkpoint_saver.files_of(folder)
            files.write_tensors(state, path)

    def load(self, checkpoint: str) -> None:
        """Restore the values from a checkpoint; warn about trained parameters that it does not
        contain.

        Raises:
            ValueError: the parameters in the checkpoint differ in number or shape.
        """
        path = os.path.join(checkpoint, EXTERNAL_PARAMETERS_NAME)
        if not os.path.isfile(path):
            if self.parameters:
                logger.warning(
                    "%s has no %s: %s trained parameters that are not part of the model keep their "
                    "current values.",
                    checkpoint,
                    EXTERNAL_PARAMETERS_NAME,
                    len(self.parameters),
                )
            return

        state = checkpoints.load_torch(path)
        saved_parameters: list[torch.Tensor] = state["parameters"]
        saved_buffers: dict[str, torch.Tensor] = state["buffers"]

        # Compare all shapes before anything is changed.
        _require_shapes(path, "trained parameters", self.parameters, saved_parameters)
        buffers: list[torch.Tensor] = []
        values_of_buffers: list[torch.Tensor] = []
        for name, buffer in self._buffers().items():
            if name in saved_buffers:
                buffers.append(buffer)
                values_of_buffers.append(saved_buffers[name])
        _require_shapes(path, "buffers of the loss", buffers, values_of_buffers)

        with torch.no_grad():
            for parameter, saved in zip(self.parameters, saved_parameters, strict=True):
                parameter.copy_(saved)
            for buffer, saved in zip(buffers, values_of_buffers, strict=True):
                buffer.copy_(saved)

    def _state(self) -> dict[str, Any]:
        """Return parameters and buffers in the format of the checkpoint."""
        return {
            "parameters": [parameter.detach() for parameter in self.parameters],
            "buffers": self._buffers(),
        }

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Return the persistent buffers of `compute_loss_func` if it is a module."""
        loss_function = getattr(self.trainer, "compute_loss_func", None)
        if not isinstance(loss_function, nn.Module):
            return {}

        # A loss module may contain the model, whose buffers are already saved with the model.
        model = self.trainer.model
        buffers_of_model = set(model.buffers())
        saved_names = loss_function.state_dict()

        buffers: dict[str, torch.Tensor] = {}
        for name, buffer in loss_function.named_buffers():
            is_saved = name in saved_names
            if is_saved and buffer not in buffers_of_model:
                buffers[name] = buffer
        return buffers


def _require_shapes(
    path: str, kind: str, tensors: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]
) -> None:
    """Raise a ValueError if tensors differ in number or shape from those of a checkpoint."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    saved_shapes = [tuple(tensor.shape) for tensor in saved]
    if shapes == saved_shapes:
        return
    raise ValueError(
        f"{path} holds {kind} of shapes {saved_shapes} that are not part of the model, but those "
        f"of this training have shapes {shapes}. Pass the optimizer and the loss of the "
        "interrupted training, or delete the file."
    )
