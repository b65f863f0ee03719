"""A Keras model as a module of torch, in any library that it computes in: its weights have names
that stay.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

Compute = Callable[[Any, Any, bool], tuple[Any, Any]]
"""`(features, labels, training)` -> (loss of each sample, predictions), in tensors of the
library of the model.
"""


class KerasModule(nn.Module, ABC):
    """As the Keras model in it, but what is trained are parameters of torch, and all else that it
    keeps are buffers.

    The model itself is no child of this module: `.train()` does nothing to it, and in its own state
    dict names count the models that the process has made. So `forward` says `training=` at each
    call, and `named_parameters`, `named_buffers` and `state_dict` have names that are the same in
    every process that builds the model again.

    Two classes do this: `TorchKerasModule` where Keras computes in torch, `TensorFlowModule` where
    the model computes in TensorFlow. `wrap_keras_model` chooses.

    Args:
        model: of Keras; may still be without weights.
        compute: what a forward pass is: calls the model, and its loss.
    """

    model: Any
    compute: Compute

    def __init__(self, model: Any, compute: Compute) -> None:
        super().__init__()
        vars(self).update(model=model, compute=compute)

    @property
    @abstractmethod
    def is_built(self) -> bool:
        """Return whether all weights are there."""

    @abstractmethod
    def build(self, features: Any, labels: Any) -> None:
        """Make the weights, by a forward pass that changes nothing else.

        Args:
            features: a batch, in torch's tensors; one sample is enough.
            labels: of that batch.
        """

    @abstractmethod
    def pull(self) -> None:
        """Read the model as it is now: its weights, which of them are trained, and all values.

        Called before each training and each evaluation: layers may have been frozen, or weights
        loaded.
        """

    @abstractmethod
    def push(self) -> None:
        """Let the model have the values that torch has; called before anybody looks at the
        model.
        """

    @abstractmethod
    def forward(self, features: Any, labels: Any = None) -> tuple[Tensor, Any]:
        """Call `compute` with `training=self.training`.

        Args:
            features: a batch, nested, in torch's tensors.
            labels: of that batch.

        Returns:
            the loss of each sample, through which gradients flow to the parameters, and the
            predictions; in torch's tensors.
        """

    @abstractmethod
    def variables(self) -> list[nn.Parameter]:
        """Return the parameters of the model's `trainable_variables`, in that order."""

    @abstractmethod
    def constrain(self) -> None:
        """Apply the constraints of the trainable variables, as an optimizer of Keras does after
        its step.
        """

    @abstractmethod
    def native(self, value: Any) -> Any:
        """Return nested tensors of torch as those that overrides of the steps are given."""

    @abstractmethod
    def to_torch(self, value: Any) -> Any:
        """Return nested tensors, of either library, as torch's; None stays None."""

    def save(self, folder: Path) -> None:
        """Write `model.weights.h5`, of `keras.Model.save_weights`; what was there stays until
        all of it is written.
        """
        if hasattr(type(self.model), "save_pretrained"):
            self.model.save_pretrained(str(folder))
            return
        partial = folder / ".partial.weights.h5"
        try:
            self.model.save_weights(partial)
            os.replace(partial, folder / "model.weights.h5")
        finally:
            partial.unlink(missing_ok=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KerasModule:
        """Move or cast in place: others hold the very same tensors."""
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            if tensor is not None:
                tensor.data = fn(tensor.data)
                if tensor.grad is not None:
                    tensor.grad.data = fn(tensor.grad.data)
        return self


def constrained(model: Any) -> list[Any]:
    """Return the trainable variables of a model that have a constraint, such as
    `kernel_constraint`.
    """
    return [
        variable
        for variable in model.trainable_variables
        if getattr(variable, "constraint", None) is not None
    ]


def nested_layers(model: Any) -> Iterator[Any]:
    """Yield the layers of a model, and of the models in it."""
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from nested_layers(layer)
