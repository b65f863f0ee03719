"""The torch module around a Keras model on torch, whose variables are torch parameters already."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..common.libraries import is_instance, loaded
from ..common.nested import map_nested
from .module import Compute, KerasModule, constrained, nested_layers
from .names import stable_names

_BACKEND = (
    "Set the environment variable KERAS_BACKEND=torch before keras is imported, or run the script "
    "with `python -m lightrainer script.py`."
)


class TorchKerasModule(KerasModule):
    """A torch module around a Keras model on torch, which shares the model's tensors.

    Args:
        model: as in `KerasModule`.
        compute: as in `KerasModule`.

    Raises:
        TypeError: the model is a torch module, but not a Keras model.
        ValueError: Keras computes in another library.
    """

    keras: Any
    _trained: list[nn.Parameter]

    def __init__(self, model: nn.Module, compute: Compute) -> None:
        keras = loaded("keras")
        if not is_instance(model, "keras", "Model"):
            raise TypeError(
                f"model is a {type(model).__name__}, not a keras.Model: the ordinary Trainer "
                "trains it."
            )
        if keras.backend.backend() != "torch":
            raise ValueError(
                f"Keras computes in {keras.backend.backend()!r}, not in torch. {_BACKEND}"
            )
        super().__init__(model, compute)
        self.keras = keras
        self.read_variables()

    @property
    def is_built(self) -> bool:
        """Return whether each layer has its weights."""
        return self.model.built and all(layer.built for layer in nested_layers(self.model))

    def build(self, features: object, labels: object) -> None:
        """Create the weights with a forward pass of Keras; see `KerasModule.build`."""
        with torch.no_grad(), self._on_device():
            self.compute(features, labels, False)
        self.read_variables()

    def read_variables(self) -> None:
        """Register the variables again, because some may be new or frozen."""
        # An existing optimizer keeps its parameters, because the same objects are registered again.
        self._parameters.clear()
        self._buffers.clear()

        # Leave out the metrics of `compile`, which are reset in each epoch.
        metric_ids = {id(variable) for variable in self.model.metrics_variables}
        variables = [
            variable for variable in self.model.variables if id(variable) not in metric_ids
        ]
        names = stable_names(variable.path for variable in variables)
        for variable, name in zip(variables, names, strict=True):
            if variable.value.requires_grad:
                self.register_parameter(name, variable.value)
            else:
                self.register_buffer(name, variable.value)
        # A plain list, because torch does not register its parameters a second time.
        self._trained = [variable.value for variable in self.model.trainable_variables]

    def write_variables(self) -> None:
        """Do nothing, because the model shares the tensors."""

    def forward(self, features: Any, labels: object = None) -> tuple[Tensor, Any]:
        """Return the loss of each sample, and the predictions; see `KerasModule.forward`."""
        with self._on_device():
            return self.compute(features, labels, self.training)

    def variables(self) -> list[nn.Parameter]:
        """Return the parameters of the model's `trainable_variables`, in that order."""
        return self._trained

    def constrain(self) -> None:
        """Apply the constraints of the trainable variables, as Keras does after each step."""
        with torch.no_grad(), self._on_device():
            for variable in constrained(self.model):
                variable.assign(variable.constraint(variable.value))

    def to_keras(self, value: object) -> Any:
        """Return the value unchanged, because Keras on torch accepts torch tensors."""
        return value

    def to_torch(self, value: object) -> Any:
        """Convert nested values to torch tensors; None stays None."""
        return map_nested(_leaf_to_torch, value)

    def _on_device(self) -> AbstractContextManager[Any]:
        """Make Keras create its tensors on the device of the weights.

        By default Keras uses a GPU if there is one.
        """
        device = "cpu"
        for weight in (*self._parameters.values(), *self._buffers.values()):
            if weight is not None:
                device = str(weight.device)
                break
        return self.keras.device(device)


def _leaf_to_torch(leaf: object) -> Tensor | None:
    if leaf is None:
        return None
    return torch.as_tensor(leaf)
