"""A model that computes in TensorFlow, as torch trains it."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ..common.libraries import is_installed, is_instance, loaded
from ..common.nested import map_nested
from .module import Compute, KerasModule, constrained, nested_layers
from .names import stable_names
from .tensorflow_graphs import TensorFlowGraphs
from .tensorflow_tensors import SharedVariable, to_tensorflow, to_torch


class TensorFlowModule(KerasModule):
    """A torch module around a model that computes in TensorFlow: loss and gradients there, all else
    in torch.

    In a training the forward pass computes the gradients of the sum of the losses too, in one graph
    of TensorFlow, as a training step of TensorFlow does; the backward pass of torch multiplies
    them. So all samples have to count the same, and no gradient flows through the predictions.
    Graphs are made once for each shape of a batch.

    Args:
        model: of Keras, of a TensorFlow that computes, or a `tf.Module` with a `call`.
        compute: see `KerasModule`; is traced by `tf.function`.
        xla: have XLA compile the graphs.

    Raises:
        ImportError: TensorFlow is not installed.
        ValueError: Keras computes in another library.
    """

    _tf: Any
    _xla: bool
    _known: dict[int, SharedVariable]
    _trained: list[SharedVariable]
    _states: list[SharedVariable]
    _loss_scale: float
    _training: TensorFlowGraphs
    _evaluation: TensorFlowGraphs

    def __init__(self, model: Any, compute: Compute, *, xla: bool = False) -> None:
        _check_library(model)
        super().__init__(model, compute)
        vars(self).update(
            _tf=sys.modules["tensorflow"],
            _xla=xla,
            _known={},
            _trained=[],
            _states=[],
            _loss_scale=1.0,
        )
        self._forget_graphs()
        self.register_state_dict_pre_hook(lambda *_: self._follow())
        self.pull()

    @property
    def is_built(self) -> bool:
        """Return whether each layer has its weights."""
        layers = [self.model, *nested_layers(self.model), *_layers_of_keras_2(self.model)]
        return all(getattr(layer, "built", True) for layer in layers) and bool(
            self._trained or self._states
        )

    def build(self, features: Any, labels: Any) -> None:
        """See `KerasModule.build`."""
        self.compute(self.native(features), self.native(labels), False)
        self.pull()

    def pull(self) -> None:
        """See `KerasModule.pull`."""
        variables = _variables(self.model)
        trained = [
            id(_of_tensorflow(variable)) for variable in _made(self.model, "trainable_variables")
        ]
        self._parameters.clear()
        self._buffers.clear()
        known: dict[int, SharedVariable] = {}
        for variable, name in zip(variables, stable_names(map(_path, variables)), strict=True):
            raw = _of_tensorflow(variable)
            shared = known[id(raw)] = self._known.get(id(raw)) or SharedVariable(raw)
            shared.pull()
            self._register(name, shared, id(raw) in trained)
        if trained != [id(shared.variable) for shared in self._trained]:
            self._forget_graphs()
        states = [shared for key, shared in known.items() if key not in trained]
        vars(self).update(_known=known, _trained=[known[key] for key in trained], _states=states)

    def push(self) -> None:
        """See `KerasModule.push`."""
        for shared in self._known.values():
            shared.push()

    def forward(self, features: Any, labels: Any = None) -> tuple[Tensor, Any]:
        """See `KerasModule.forward`; no gradients flow through the predictions."""
        self.push()
        if torch.is_grad_enabled() and self._trained:
            structure: list[Any] = []
            losses, *leaves = _Losses.apply(self, structure, features, labels, *self.variables())
            return losses, self._tf.nest.pack_sequence_as(structure[0], leaves)
        losses, predictions, states = self._evaluation(features, labels, self.training)
        self._follow(states)
        return to_torch(losses), self.to_torch(predictions)

    def variables(self) -> list[nn.Parameter]:
        """See `KerasModule.variables`."""
        return [shared.tensor for shared in self._trained]

    def constrain(self) -> None:
        """See `KerasModule.constrain`."""
        for variable in constrained(self.model):
            shared = self._known[id(_of_tensorflow(variable))]
            shared.push()
            shared.variable.assign(variable.constraint(shared.variable))
            shared.pull()

    def native(self, value: Any) -> Any:
        """See `KerasModule.native`."""
        return map_nested(to_tensorflow, value)

    def to_torch(self, value: Any) -> Any:
        """See `KerasModule.to_torch`."""
        return map_nested(to_torch, value)

    def _register(self, name: str, shared: SharedVariable, trained: bool) -> None:
        """Hold the tensor of a variable; an optimizer may hold it too, so it stays the same
        while it can.
        """
        tensor = shared.tensor
        if trained:
            parameter = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)
            shared.tensor = parameter
            self.register_parameter(name, parameter)
        else:
            shared.tensor = tensor.data if isinstance(tensor, nn.Parameter) else tensor
            self.register_buffer(name, shared.tensor)

    def _follow(self, states: Any = None) -> None:
        """Take over what TensorFlow has written: of a graph that returned its states, of all
        variables otherwise.
        """
        if states is None:
            for shared in self._known.values():
                shared.follow()
        else:
            for shared, value in zip(self._states, states, strict=True):
                shared.follow(value)

    # --- what TensorFlow traces

    def _forget_graphs(self) -> None:
        functions = {"_training": self._trained_on, "_evaluation": self._evaluated}
        vars(self).update(
            {
                name: TensorFlowGraphs(function, xla=self._xla)
                for name, function in functions.items()
            }
        )

    def _evaluated(self, features: Any, labels: Any, training: bool) -> tuple[Any, Any, list[Any]]:
        losses, predictions = self.compute(features, labels, training)
        return losses, predictions, self._values_of_states()

    def _trained_on(
        self, features: Any, labels: Any, training: bool, scale: Any
    ) -> tuple[Any, Any, list[Any], Any]:
        """Return losses, predictions, states, and the gradients of the sum of the losses times
        `scale`.
        """
        tf, variables = self._tf, [shared.variable for shared in self._trained]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, predictions = self.compute(features, labels, training)
            total = tf.reduce_sum(tf.cast(losses, tf.float32) if losses.dtype.size < 4 else losses)
            total *= tf.cast(scale, total.dtype)
        found = tape.gradient(total, variables)
        if all(gradient is None for gradient in found):
            raise ValueError(
                f"{_name(self.model)} has a loss that does not depend on its trainable variables: "
                "numpy() and tf.stop_gradient cut it off."
            )
        dense = [
            tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
            for variable, gradient in zip(variables, found, strict=True)
        ]
        return losses, predictions, self._values_of_states(), dense

    def _values_of_states(self) -> list[Any]:
        return [shared.variable.read_value() for shared in self._states]


class _Losses(torch.autograd.Function):
    """The losses of a batch as a function of the parameters, with the gradients of their sum
    computed already.
    """

    @staticmethod
    def forward(
        ctx: Any,
        module: TensorFlowModule,
        structure: list[Any],
        features: Any,
        labels: Any,
        *parameters: Tensor,
    ) -> Any:
        """Compute losses and gradients; `structure` gets the predictions as TensorFlow returned
        them.
        """
        ctx.module, ctx.scale = module, module._loss_scale
        scale = torch.tensor(ctx.scale)
        losses, predictions, states, gradients = module._training(
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
        """Weigh the gradients; all losses have to weigh the same.

        Raises:
            ValueError: they do not.
        """
        weight = _only_value(grad_outputs[0])
        # For float16 the next gradients are computed as large as these are wanted. Powers of two
        # round nothing.
        ctx.module._loss_scale = (
            2.0 ** (math.frexp(weight)[1] - 1) if weight and math.isfinite(weight) else 1.0
        )
        # Others may change them in place, and TensorFlow may have given several of them, or a
        # constant, one memory.
        return (
            None,
            None,
            None,
            None,
            *[gradient * (weight / ctx.scale) for gradient in ctx.gradients],
        )


def _only_value(weights: Tensor) -> float:
    first = weights.reshape(-1)[:1]
    if any(weights.stride()) and not torch.equal(
        weights, first.expand(weights.numel()).reshape(weights.shape)
    ):
        raise ValueError(
            "Losses of samples were weighed after TensorFlow's gradients: weigh them in "
            "compute_loss."
        )
    return first.item() if len(first) else 0.0


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


def _variables(model: Any) -> list[Any]:
    """Return all variables of a model but those of its metrics, which begin anew each time.

    Keras 2 does not count the state of its generators among them, which it has where dropout draws
    from such.
    """
    measured = {
        id(variable) for metric in getattr(model, "metrics", ()) for variable in metric.variables
    }
    drawing: list[Any] = [
        getattr(layer, "_random_generator", None) for layer in _layers_of_keras_2(model)
    ]
    states = [
        one._generator.state for one in drawing if getattr(one, "_generator", None) is not None
    ]
    return [
        variable for variable in _made(model, "variables") if id(variable) not in measured
    ] + states


def _layers_of_keras_2(model: Any) -> list[Any]:
    """Return all layers within a model of Keras 2, in an order that depends on nothing but their
    names in it.
    """
    keras = loaded("tf_keras")
    if keras is None or not isinstance(model, keras.layers.Layer):
        return []
    return [
        one
        for one in model.submodules
        if isinstance(one, keras.layers.Layer) and not hasattr(one, "update_state")
    ]


def _made(model: Any, name: str) -> list[Any]:
    """Return variables of a model, none before it is built: models of Keras 2 have an error
    instead.
    """
    return list(getattr(model, name)) if getattr(model, "built", True) else []


def _of_tensorflow(variable: Any) -> Any:
    """Return the variable of TensorFlow that a variable of Keras 3 has inside."""
    inner = getattr(variable, "value", None)
    return inner if hasattr(inner, "read_value") else variable


def _path(variable: Any) -> str:
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def _name(model: Any) -> str:
    return f"The model ({getattr(model, 'name', type(model).__name__)})"
