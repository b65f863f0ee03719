"""The base class of torch modules around Keras models, which compute in torch or TensorFlow."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

Compute = Callable[[Any, Any, bool], tuple[Any, Any]]
"""Takes features, labels and `training`; returns the loss of each sample, and the predictions.

All tensors belong to the library that the model computes in.
"""


class KerasModule(nn.Module, ABC):
    """A torch module whose parameters are the trained variables of a Keras model.

    All other variables of the model are buffers.

    The model is not a child of this module, for two reasons. `.train()` does not affect a Keras
    model, so `forward` passes `training=` in each call. And Keras numbers its names by the models
    that the process has created; the names in `named_parameters`, `named_buffers` and `state_dict`
    of this module are the same in every process that builds the model again.

    There are two subclasses: `TorchKerasModule` for models that compute in torch, and
    `TensorFlowModule` for models that compute in TensorFlow. `wrap_keras_model` chooses one.

    Args:
        model: a Keras model, with or without weights.
        compute: the forward pass, which calls the model and its loss.
    """

    model: Any
    compute: Compute

    def __init__(self, model: Any, compute: Compute) -> None:
        super().__init__()
        # torch's `__setattr__` would make the model a child.
        vars(self).update(model=model, compute=compute)

    @property
    @abstractmethod
    def is_built(self) -> bool:
        """Return whether all weights exist."""

    @abstractmethod
    def build(self, features: object, labels: object) -> None:
        """Create the weights with a forward pass, which changes nothing else.

        Args:
            features: a batch of torch tensors; one sample is enough.
            labels: the labels of that batch.
        """

    @abstractmethod
    def read_variables(self) -> None:
        """Read the variables of the model, whether each is trained, and their values.

        Called before each training and each evaluation, because the script may have frozen layers
        or loaded weights.
        """

    @abstractmethod
    def write_variables(self) -> None:
        """Copy torch's values to the model; called before other code uses the model."""

    @abstractmethod
    def forward(self, features: Any, labels: object = None) -> tuple[Tensor, Any]:
        """Call `compute` with `training=self.training`.

        Args:
            features: a nested batch of torch tensors.
            labels: the labels of that batch.

        Returns:
            The loss of each sample, from which gradients flow to the parameters, and the
            predictions, both as torch tensors.
        """

    @abstractmethod
    def variables(self) -> list[nn.Parameter]:
        """Return the parameters of the model's `trainable_variables`, in that order."""

    @abstractmethod
    def constrain(self) -> None:
        """Apply the constraints of the trainable variables, as Keras does after each step."""

    @abstractmethod
    def to_keras(self, value: object) -> Any:
        """Convert nested torch tensors to tensors of the library that the model computes in."""

    @abstractmethod
    def to_torch(self, value: object) -> Any:
        """Convert nested tensors of either library to torch tensors; None stays None."""

    def save(self, folder: Path) -> None:
        """Write `model.weights.h5` with `keras.Model.save_weights`.

        An earlier file is replaced only when the new one is complete. If the model has a method
        `save_pretrained`, call that method instead.
        """
        if hasattr(type(self.model), "save_pretrained"):
            self.model.save_pretrained(str(folder))
            return

        # Keras 3 accepts only names that end with `.weights.h5`.
        partial = folder / ".partial.weights.h5"
        try:
            self.model.save_weights(partial)
            os.replace(partial, folder / "model.weights.h5")
        finally:
            partial.unlink(missing_ok=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KerasModule:
        """Move or cast the tensors in place, because TensorFlow and optimizers hold them, too."""
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            if tensor is not None:
                tensor.data = fn(tensor.data)
                if tensor.grad is not None:
                    tensor.grad.data = fn(tensor.grad.data)
        return self


def constrained(model: Any) -> list[Any]:
    """Return the trainable variables with a constraint, such as `kernel_constraint`."""
    variables: list[Any] = []
    for variable in model.trainable_variables:
        if getattr(variable, "constraint", None) is not None:
            variables.append(variable)
    return variables


def nested_layers(model: object) -> Iterator[Any]:
    """Yield the layers of a model, and recursively those of models inside it."""
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from nested_layers(layer)
