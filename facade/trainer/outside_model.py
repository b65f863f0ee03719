"""What is trained with a model, but is not part of it, such as a loss with weights."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from ...lightning_modules import checkpoints
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.training.out_of_memory import average_gradients

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)

OUTSIDE_MODEL_NAME = "outside_model.pt"
"""File of a checkpoint; transformers has no such file."""


class OutsideModel:
    """Trained parameters outside the model, and the buffers of a `compute_loss_func`.

    The model clears, and its wrapper averages, the gradients of its own parameters only, and its
    weights are the only ones in a checkpoint. Here is the same for all others.

    Args:
        trainer: the Trainer.

    Attributes:
        parameters: those that the optimizer holds and the model does not, in its order.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.parameters: list[nn.Parameter] = []

    def begin(self, parameters: list[nn.Parameter]) -> None:
        """Train these parameters, with the values of the first process in all of them."""
        self.parameters = parameters
        if self.trainer.args.world_size > 1:
            for parameter in parameters:
                dist.broadcast(parameter.data, src=0)

    def average_gradients(self) -> None:
        """Average the gradients over the processes."""
        if self.trainer.args.world_size > 1:
            average_gradients(self.parameters)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def save(self, folder: str) -> None:
        """Write all values, if there are any; the saving process writes."""
        state = self._state()
        if self.trainer.args.should_save and any(state.values()):
            files = self.trainer._checkpoints.files_of(folder)
            files.write_tensors(state, os.path.join(folder, OUTSIDE_MODEL_NAME))

    def load(self, checkpoint: str) -> None:
        """Restore the values of a checkpoint; warn of trained ones that it lacks.

        Raises:
            ValueError: the parameters of the checkpoint are others.
        """
        path = os.path.join(checkpoint, OUTSIDE_MODEL_NAME)
        if not os.path.isfile(path):
            if self.parameters:
                logger.warning(
                    "%s has no %s: %s trained parameters that are not part of the model keep their "
                    "present values.",
                    checkpoint,
                    OUTSIDE_MODEL_NAME,
                    len(self.parameters),
                )
            return

        state = checkpoints.load_torch(path)
        shapes = [tuple(tensor.shape) for tensor in state["parameters"]]
        present_shapes = [tuple(parameter.shape) for parameter in self.parameters]
        if shapes != present_shapes:
            raise ValueError(
                f"{path} holds trained parameters of shapes {shapes} that are not part of the "
                f"model, but those of the optimizer have shapes {present_shapes}. Pass the "
                "optimizer and the loss of the interrupted training, or delete the file."
            )
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
            for name, buffer in self._buffers().items():
                if name in state["buffers"]:
                    buffer.copy_(state["buffers"][name])

    def _state(self) -> dict[str, Any]:
        """Return parameters and buffers as a checkpoint holds them."""
        parameters = [parameter.detach() for parameter in self.parameters]
        return {"parameters": parameters, "buffers": self._buffers()}

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers of a module `compute_loss_func` that a `state_dict` of it holds."""
        loss_function = getattr(self.trainer, "compute_loss_func", None)
        if not isinstance(loss_function, nn.Module):
            return {}

        # A loss may hold the model, whose buffers are saved with it.
        buffers_of_model = {id(buffer) for buffer in self.trainer.model.buffers()}
        buffers: dict[str, torch.Tensor] = {}
        saved_names = loss_function.state_dict()
        for name, buffer in loss_function.named_buffers():
            if name in saved_names and id(buffer) not in buffers_of_model:
                buffers[name] = buffer
        return buffers
