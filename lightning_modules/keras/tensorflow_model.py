"""A model that computes in TensorFlow, as torch trains it."""

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

    In a training the forward pass also computes the gradients of the sum of the losses, in one
    graph of TensorFlow, as a training step of TensorFlow does; the backward pass of torch scales
    them. So all samples need the same weight, and no gradient flows through the predictions. Graphs
    are made once for each shape of a batch.

    Args:
        model: a model of Keras on TensorFlow, or a `tf.Module` with a `call`.
        compute: as in `KerasModule`; traced by `tf.function`.
        xla: let XLA compile the graphs.

    Raises:
        ImportError: TensorFlow is not installed.
        ValueError: Keras computes in another library.
    """

    _tf: Any
    _xla: bool
    _shared: dict[int, SharedVariable]
    """All variables, by the id of that of TensorFlow."""
    _trained: list[SharedVariable]
    _states: list[SharedVariable]
    """Variables that are not trained."""
    _loss_scale: float
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
        # A state dict has what TensorFlow has written since.
        self.register_state_dict_pre_hook(lambda *_: self._follow())
        self.pull()

    @property
    def is_built(self) -> bool:
        """Return whether each layer has its weights."""
        has_variables = bool(self._trained or self._states)
        layers = [self.model, *nested_layers(self.model), *_layers_of_keras_2(self.model)]
        return has_variables and all(getattr(layer, "built", True) for layer in layers)

    def build(self, features: object, labels: object) -> None:
        """See `KerasModule.build`."""
        self.compute(self.native(features), self.native(labels), False)
        self.pull()

    def pull(self) -> None:
        """See `KerasModule.pull`."""
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
            shared.pull()
            self._register(name, shared, key in trained_ids)

        # Graphs compute gradients of the variables that were trained when they were made.
        if trained_ids != [id(shared.variable) for shared in self._trained]:
            self._discard_graphs()
        trained = [shared_by_id[key] for key in trained_ids]
        states = [shared for key, shared in shared_by_id.items() if key not in trained_ids]
        vars(self).update(_shared=shared_by_id, _trained=trained, _states=states)

    def push(self) -> None:
        """See `KerasModule.push`."""
        for shared in self._shared.values():
            shared.push()

    def forward(self, features: Any, labels: object = None) -> tuple[Tensor, Any]:
        """See `KerasModule.forward`; no gradients flow through the predictions."""
        self.push()
        if torch.is_grad_enabled() and self._trained:
            structure: list[Any] = []
            losses, *leaves = _Losses.apply(self, structure, features, labels, *self.variables())
            return losses, self._tf.nest.pack_sequence_as(structure[0], leaves)
        losses, predictions, states = self._evaluation_graphs(features, labels, self.training)
        self._follow(states)
        return to_torch(losses), self.to_torch(predictions)

    def variables(self) -> list[nn.Parameter]:
        """See `KerasModule.variables`."""
        return [shared.tensor for shared in self._trained]

    def constrain(self) -> None:
        """See `KerasModule.constrain`."""
        for variable in constrained(self.model):
            shared = self._shared[id(_tensorflow_variable(variable))]
            shared.push()
            shared.variable.assign(variable.constraint(shared.variable))
            shared.pull()

    def native(self, value: object) -> Any:
        """See `KerasModule.native`."""
        return map_nested(to_tensorflow, value)

    def to_torch(self, value: object) -> Any:
        """See `KerasModule.to_torch`."""
        return map_nested(to_torch, value)

    def _register(self, name: str, shared: SharedVariable, trained: bool) -> None:
        """Register the tensor of a variable.

        An optimizer may hold the tensor, too, so it stays the same object if possible.
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

    def _follow(self, states: Any = None) -> None:
        """Copy what TensorFlow has written: the states that a graph returned, or all variables."""
        if states is None:
            for shared in self._shared.values():
                shared.follow()
        else:
            for shared, value in zip(self._states, states, strict=True):
                shared.follow(value)

    # --- functions that TensorFlow traces

    def _discard_graphs(self) -> None:
        vars(self).update(
            _training_graphs=TensorFlowGraphs(self._compute_with_gradients, xla=self._xla),
            _evaluation_graphs=TensorFlowGraphs(self._compute_with_states, xla=self._xla),
        )

    def _compute_with_states(
        self, features: object, labels: object, training: bool
    ) -> tuple[Any, Any, list[Any]]:
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
            # Half precision would overflow in the sum.
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

        # Gradients of embeddings are sparse, and those of unused variables None.
        dense_gradients: list[Any] = []
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is None:
                dense_gradients.append(tf.zeros_like(variable))
            else:
                dense_gradients.append(tf.convert_to_tensor(gradient))
        return losses, predictions, self._values_of_states(), dense_gradients

    def _values_of_states(self) -> list[Any]:
        return [shared.variable.read_value() for shared in self._states]


class _Losses(torch.autograd.Function):
    """The losses of a batch as a function of the parameters.

    The forward pass already computes the gradients of their sum.
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

        The predictions are appended to `structure` as TensorFlow returned them.
        """
        ctx.module = module
        ctx.scale = module._loss_scale
        scale = torch.tensor(ctx.scale)
        losses, predictions, states, gradients = module._training_graphs(
            features, labels, module.training, scale
        )
        module._follow(states)
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

        # For float16 the next gradients are computed in the size that these were needed in. Powers
        # of two do not round.
        scale = 1.0
        if weight and math.isfinite(weight):
            _, exponent = math.frexp(weight)
            scale = 2.0 ** (exponent - 1)
        ctx.module._loss_scale = scale

        # New tensors: others may change them in place, and TensorFlow may have given several of
        # them, or a constant, the same memory.
        gradients = [gradient * (weight / ctx.scale) for gradient in ctx.gradients]
        return None, None, None, None, *gradients


def _common_weight(weights: Tensor) -> float:
    """Return the weight that all losses have; 0 without losses."""
    first = weights.reshape(-1)[:1]
    # Strides of 0 mean that all are the same number in memory.
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
    """Return all variables of a model, except those of metrics, which start from scratch each time.

    Keras 2 does not list the states of its random generators, which it has for dropout.
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
    """Return variables of a model; none before it is built, when models of Keras 2 raise."""
    if not getattr(model, "built", True):
        return []
    return list(getattr(model, name))


def _tensorflow_variable(variable: object) -> Any:
    """Return the variable of TensorFlow in a variable of Keras 3; others are returned unchanged."""
    value = getattr(variable, "value", None)
    if hasattr(value, "read_value"):
        return value
    return variable


def _path(variable: Any) -> str:
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def _name(model: object) -> str:
    return f"The model ({getattr(model, 'name', type(model).__name__)})"
