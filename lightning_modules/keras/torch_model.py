"""A Keras model that computes in torch: its variables are torch's parameters already."""

from __future__ import annotations

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
    """A torch module around a model of Keras on torch; both have the same memory.

    Args:
        model: see `KerasModule`.
        compute: see `KerasModule`.

    Raises:
        TypeError: it is a torch module, but no Keras model.
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
        vars(self).update(keras=keras)
        self.pull()

    @property
    def is_built(self) -> bool:
        """Return whether each layer has its weights."""
        return self.model.built and all(layer.built for layer in nested_layers(self.model))

    def build(self, features: Any, labels: Any) -> None:
        """See `KerasModule.build`."""
        with torch.no_grad(), self._on_device():
            self.compute(features, labels, False)
        self.pull()

    def pull(self) -> None:
        """Register the variables again: some may be new, or frozen."""
        self._parameters.clear()
        self._buffers.clear()
        # of `compile`: begin anew each time
        measured = {id(variable) for variable in self.model.metrics_variables}
        kept = [variable for variable in self.model.variables if id(variable) not in measured]
        for variable, name in zip(kept, stable_names(v.path for v in kept), strict=True):
            if variable.value.requires_grad:
                self.register_parameter(name, variable.value)
            else:
                self.register_buffer(name, variable.value)
        trained = [variable.value for variable in self.model.trainable_variables]
        vars(self).update(_trained=trained)

    def push(self) -> None:
        """Nothing: the model has the same memory."""

    def forward(self, features: Any, labels: Any = None) -> tuple[Tensor, Any]:
        """See `KerasModule.forward`."""
        with self._on_device():
            return self.compute(features, labels, self.training)

    def variables(self) -> list[nn.Parameter]:
        """See `KerasModule.variables`."""
        return self._trained

    def constrain(self) -> None:
        """See `KerasModule.constrain`."""
        with torch.no_grad(), self._on_device():
            for variable in constrained(self.model):
                variable.assign(variable.constraint(variable.value))

    def native(self, value: Any) -> Any:
        """Return the value: Keras takes torch's tensors."""
        return value

    def to_torch(self, value: Any) -> Any:
        """See `KerasModule.to_torch`."""
        return map_nested(lambda leaf: leaf if leaf is None else torch.as_tensor(leaf), value)

    def _on_device(self) -> Any:
        """Have Keras make its tensors where the weights are; by itself it takes a GPU wherever
        there is one.
        """
        weight = next(iter((*self._parameters.values(), *self._buffers.values())), None)
        return self.keras.device("cpu" if weight is None else str(weight.device))
