"""A torch module around a model that computes in TensorFlow."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..common.libraries import is_installed, is_instance, loaded
from ..common.nested import map_nested
from .module import Compute, KerasModule, constrained, nested_layers
from .names import stable_names
from .tensorflow_graphs import TensorFlowGraphs
from .tensorflow_tensors import SharedVariable, to_tensorflow, to_torch


class TensorFlowModule(KerasModule):
    """A torch module around a model that computes loss and gradients in TensorFlow.

    During training, the forward pass also computes the gradients of the sum of the losses in the
    same TensorFlow graph, as a TensorFlow training step does; torch's backward pass only scales
    them. So all samples need the same weight, and no gradient flows through the predictions. A
    graph is traced once for each batch shape.

    Args:
        model: a Keras model on TensorFlow, or a `tf.Module` with a `call`.
        compute: the forward pass, see `KerasModule`; traced by `tf.function`.
        xla: True to compile the graphs with XLA.

    Raises:
        ImportError: TensorFlow is not installed.
        ValueError: Keras computes in another library.
    """

    _tf: Any
    _xla: bool
    _shared: dict[int, SharedVariable]
    """All variables, by the id of the TensorFlow variable."""
    _trained: list[SharedVariable]
    """The trained variables, in the order of `trainable_variables`."""
    _states: list[SharedVariable]
    """The variables that are not trained."""
    _loss_scale: float
    """Factor by which the next forward pass multiplies the loss before computing gradients."""
    _training_graphs: TensorFlowGraphs
    _evaluation_graphs: TensorFlowGraphs

    def __init__(self, model: Any, compute: Compute, *, xla: bool = False) -> None:
        _check_library(model)
        super().__init__(model, compute)
        vars(self).update(
            _tf=sys.modules["tensorflow"],
            _xla=xla,
            _shared={},
            _trained=[],
            _states=[],
            _loss_scale=1.0,
        )
        self._discard_graphs()
        # Before creating a state dict, copy what TensorFlow has written since the last step.
        self.register_state_dict_pre_hook(lambda *_: self._copy_changes())
        self.read_variables()

    @property
    def is_built(self) -> bool:
        """Return whether each layer has its weights."""
        has_variables = bool(self._trained or self._states)
        layers = [self.model, *nested_layers(self.model), *_layers_of_keras_2(self.model)]
        return has_variables and all(getattr(layer, "built", True) for layer in layers)

    def build(self, features: object, labels: object) -> None:
        """See `KerasModule.build`."""
        self.compute(self.to_keras(features), self.to_keras(labels), False)
        self.read_variables()

    def read_variables(self) -> None:
        """See `KerasModule.read_variables`."""
        variables = _variables(self.model)
        trained_ids: list[int] = []
        for variable in _existing_variables(self.model, "trainable_variables"):
            trained_ids.append(id(_tensorflow_variable(variable)))

        self._parameters.clear()
        self._buffers.clear()
        shared_by_id: dict[int, SharedVariable] = {}
        for variable, name in zip(variables, stable_names(map(_path, variables)), strict=True):
            tensorflow_variable = _tensorflow_variable(variable)
            key = id(tensorflow_variable)
            shared = self._shared.get(key)
            if shared is None:
                shared = SharedVariable(tensorflow_variable)
            shared_by_id[key] = shared
            shared.read()
            self._register(name, shared, key in trained_ids)

        # A graph computes gradients for the variables that were trained when it was traced, so it
        # is outdated if these have changed.
        if trained_ids != [id(shared.variable) for shared in self._trained]:
            self._discard_graphs()
        trained = [shared_by_id[key] for key in trained_ids]
        states = [shared for key, shared in shared_by_id.items() if key not in trained_ids]
        vars(self).update(_shared=shared_by_id, _trained=trained, _states=states)

    def write_variables(self) -> None:
        """See `KerasModule.write_variables`."""
        for shared in self._shared.values():
            shared.write()

    def forward(self, features: Any, labels: object = None) -> tuple[Tensor, Any]:
        """See `KerasModule.forward`; no gradients flow through the predictions."""
        self.write_variables()
        if torch.is_grad_enabled() and self._trained:
            structure: list[Any] = []
            losses, *leaves = _Losses.apply(self, structure, features, labels, *self.variables())
            return losses, self._tf.nest.pack_sequence_as(structure[0], leaves)
        losses, predictions, states = self._evaluation_graphs(features, labels, self.training)
        self._copy_changes(states)
        return to_torch(losses), self.to_torch(predictions)

    def variables(self) -> list[nn.Parameter]:
        """See `KerasModule.variables`."""
        return [shared.tensor for shared in self._trained]

    def constrain(self) -> None:
        """See `KerasModule.constrain`."""
        for variable in constrained(self.model):
            shared = self._shared[id(_tensorflow_variable(variable))]
            shared.write()
            shared.variable.assign(variable.constraint(shared.variable))
            shared.read()

    def to_keras(self, value: object) -> Any:
        """See `KerasModule.to_keras`."""
        return map_nested(to_tensorflow, value)

    def to_torch(self, value: object) -> Any:
        """See `KerasModule.to_torch`."""
        return map_nested(to_torch, value)

    def _register(self, name: str, shared: SharedVariable, trained: bool) -> None:
        """Register the tensor of a variable as a parameter or as a buffer.

        An optimizer may hold the tensor, so it is the same object as before, unless the variable
        was frozen or unfrozen.
        """
        tensor = shared.tensor
        is_parameter = isinstance(tensor, nn.Parameter)
        if trained:
            if not is_parameter:
                tensor = nn.Parameter(tensor)
            self.register_parameter(name, cast("nn.Parameter", tensor))
        else:
            if is_parameter:
                tensor = tensor.data
            self.register_buffer(name, tensor)
        shared.tensor = tensor

    def _copy_changes(self, states: Any = None) -> None:
        """Copy to torch what TensorFlow has written.

        Args:
            states: the values of the variables that are not trained, as returned by a graph; None
                to check all variables instead.
        """
        if states is None:
            for shared in self._shared.values():
                shared.copy_changes()
        else:
            for shared, value in zip(self._states, states, strict=True):
                shared.copy_changes(value)

    # --- functions that TensorFlow traces

    def _discard_graphs(self) -> None:
        """Discard all graphs, so that the next call traces a new one."""
        vars(self).update(
            _training_graphs=TensorFlowGraphs(self._compute_with_gradients, xla=self._xla),
            _evaluation_graphs=TensorFlowGraphs(self._compute_with_states, xla=self._xla),
        )

    def _compute_with_states(
        self, features: object, labels: object, training: bool
    ) -> tuple[Any, Any, list[Any]]:
        """Return losses, predictions and states."""
        losses, predictions = self.compute(features, labels, training)
        return losses, predictions, self._values_of_states()

    def _compute_with_gradients(
        self, features: object, labels: object, training: bool, scale: object
    ) -> tuple[Any, Any, list[Any], Any]:
        """Return losses, predictions, states, and gradients.

        The gradients are those of the sum of the losses times `scale`.
        """
        tf = self._tf
        variables = [shared.variable for shared in self._trained]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, predictions = self.compute(features, labels, training)
            # Sum in float32, because a sum in half precision could overflow.
            summands = losses
            if losses.dtype.size < 4:
                summands = tf.cast(losses, tf.float32)
            total = tf.reduce_sum(summands)
            total *= tf.cast(scale, total.dtype)

        gradients = tape.gradient(total, variables)
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                f"{_name(self.model)} has a loss that does not depend on its trainable variables. "
                "Remove calls of numpy() and tf.stop_gradient, which cut it off."
            )

        # Make all gradients dense: those of embeddings are sparse, those of unused variables None.
        dense_gradients: list[Any] = []
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is None:
                dense_gradients.append(tf.zeros_like(variable))
            else:
                dense_gradients.append(tf.convert_to_tensor(gradient))
        return losses, predictions, self._values_of_states(), dense_gradients

    def _values_of_states(self) -> list[Any]:
        """Return the values of the variables that are not trained."""
        return [shared.variable.read_value() for shared in self._states]


class _Losses(torch.autograd.Function):
    """The losses of a batch as an autograd function of the parameters.

    The forward pass already computes the gradients of the sum of the losses.
    """

    @staticmethod
    def forward(
        ctx: Any,
        module: TensorFlowModule,
        structure: list[Any],
        features: Any,
        labels: object,
        *parameters: Tensor,
    ) -> Any:
        """Compute losses and gradients.

        Args:
            ctx: holds the gradients for the backward pass.
            module: the module.
            structure: an empty list, to which the nested predictions of TensorFlow are appended,
                because an autograd function can only return a flat tuple.
            features: the features of a batch.
            labels: the labels of that batch.
            parameters: the trained parameters, whose gradients `backward` returns.

        Returns:
            the losses, and the tensors in the predictions.
        """
        ctx.module = module
        ctx.scale = module._loss_scale
        scale = torch.tensor(ctx.scale)
        losses, predictions, states, gradients = module._training_graphs(
            features, labels, module.training, scale
        )
        module._copy_changes(states)
        structure.append(predictions)
        ctx.gradients = [to_torch(gradient) for gradient in gradients]
        leaves = [to_torch(leaf) for leaf in module._tf.nest.flatten(predictions)]
        ctx.mark_non_differentiable(*leaves)
        return to_torch(losses), *leaves

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Scale the gradients by the weight of the losses.

        Raises:
            ValueError: the losses have different weights.
        """
        weight = _common_weight(grad_outputs[0])

        # Compute the next gradients with a scale close to this weight, so that they do not
        # underflow in float16. A power of two does not add rounding errors.
        scale = 1.0
        if weight and math.isfinite(weight):
            _, exponent = math.frexp(weight)
            scale = 2.0 ** (exponent - 1)
        ctx.module._loss_scale = scale

        # The product creates new tensors. They are needed because torch may change gradients in
        # place, while in TensorFlow several gradients, or a constant, may share memory.
        gradients = [gradient * (weight / ctx.scale) for gradient in ctx.gradients]
        return None, None, None, None, *gradients


def _common_weight(weights: Tensor) -> float:
    """Return the weight that all losses have in common; 0 without losses."""
    first = weights.reshape(-1)[:1]
    # If all strides are 0, the weights are a single number in memory, and need no comparison.
    if any(weights.stride()):
        expected = first.expand(weights.numel()).reshape(weights.shape)
        if not torch.equal(weights, expected):
            raise ValueError(
                "Losses of samples were weighted after TensorFlow had computed the gradients: "
                "weight them in compute_loss."
            )
    if len(first) == 0:
        return 0.0
    return first.item()


def _check_library(model: Any) -> None:
    """Import TensorFlow, and raise if Keras computes in another library.

    Raises:
        ImportError: TensorFlow is not installed.
        ValueError: Keras computes in another library.
    """
    keras = loaded("keras")
    if is_instance(model, "keras", "Model") and keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras computes in {keras.backend.backend()!r}: set KERAS_BACKEND to torch or "
            "tensorflow before importing it, or run `python -m lightrainer script.py`."
        )
    if not is_installed("tensorflow"):
        raise ImportError(
            "This model needs `pip install 'lightrainer[tf]'`, or keras.layers with "
            "KERAS_BACKEND=torch."
        )
    import_module("tensorflow")


def _variables(model: object) -> list[Any]:
    """Return all variables of a model, except those of metrics, which are reset in each epoch.

    Also return the states of Keras 2's random generators, which dropout uses, because Keras 2 does
    not list them among the variables of a model.
    """
    metric_ids: set[int] = set()
    for metric in getattr(model, "metrics", ()):
        metric_ids.update(id(variable) for variable in metric.variables)

    variables: list[Any] = []
    for variable in _existing_variables(model, "variables"):
        if id(variable) not in metric_ids:
            variables.append(variable)
    for layer in _layers_of_keras_2(model):
        random_generator = getattr(layer, "_random_generator", None)
        generator = getattr(random_generator, "_generator", None)
        if generator is not None:
            variables.append(generator.state)
    return variables


def _layers_of_keras_2(model: Any) -> list[Any]:
    """Return all layers in a model of Keras 2, in an order that depends only on their names."""
    keras = loaded("tf_keras")
    if keras is None or not isinstance(model, keras.layers.Layer):
        return []
    layers: list[Any] = []
    for module in model.submodules:
        is_metric = hasattr(module, "update_state")
        if isinstance(module, keras.layers.Layer) and not is_metric:
            layers.append(module)
    return layers


def _existing_variables(model: object, name: str) -> list[Any]:
    """Return variables of a model, or an empty list before it is built, when Keras 2 raises."""
    if not getattr(model, "built", True):
        return []
    return list(getattr(model, name))


def _tensorflow_variable(variable: object) -> Any:
    """Return the TensorFlow variable in a Keras 3 variable; other variables are unchanged."""
    value = getattr(variable, "value", None)
    if hasattr(value, "read_value"):
        return value
    return variable


def _path(variable: Any) -> str:
    """Return the path of a variable, which Keras 2 stores in the variable's name."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def _name(model: object) -> str:
    """Return a description of the model for the start of an error message."""
    return f"The model ({getattr(model, 'name', type(model).__name__)})"
