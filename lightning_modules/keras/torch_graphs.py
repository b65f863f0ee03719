"""Models of Keras on torch without the Python between the calls of torch."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..common.nested import leaves, map_nested
from .batch_kinds import kind_of
from .module import Compute
from .recorded_calls import CallRecorder, NotRecordableError, RecordedCalls

logger = logging.getLogger(__name__)

_MOST_KINDS = 64
"""Kinds of batches that graphs are kept for."""


class _Graph(NamedTuple):
    calls: RecordedCalls
    outputs: Any
    """What the model returned, with numbers in place of the tensors: which of the results is there."""

    def __call__(self, tensors: list[Tensor]) -> Any:
        results = self.calls(tensors)
        return map_nested(lambda leaf: results[leaf] if type(leaf) is int else leaf, self.outputs)


class TorchGraphs:
    """As `tf.function`, for models of Keras on torch that are made of nothing but layers and losses of Keras.

    Keras takes as long to find out what to call as torch takes to compute a small model. So the calls are recorded with
    the first batch of a kind. With the second they are made again, and the model is called as well: where losses,
    predictions, gradients, states and random numbers are the same, bit for bit, the recorded calls take the place of
    the model for that kind of batch from then on. A model with code of others in it is always called, as that may do
    more than to call torch; and where somebody changes an attribute of a layer, the calls are recorded anew.

    Args:
        model: is built.
        compute: see `KerasModule`; calls the model and its loss.
        parameters: of the model.
        states: what else it keeps.
    """

    def __init__(
        self, model: nn.Module, compute: Compute, parameters: Iterable[Tensor], states: Iterable[Tensor]
    ) -> None:
        self._model = model
        self._compute = compute
        self._parameters = [one for one in parameters if one.requires_grad]
        self._states = list(states)
        self._watched = _parts_of_keras(model)
        self._attributes = _attributes(self._watched)
        self._graphs: dict[Any, _Graph | None] = {}
        """None where the model has to be called."""
        self._unconfirmed: dict[Any, _Graph] = {}

    def __call__(self, features: Any, labels: Any, training: bool) -> tuple[Tensor, Any]:
        """Return what `compute` does."""
        self._follow_changes()
        if not self._watched or _has_hooks(self._watched):
            return self._compute(features, labels, training)
        batch = features, labels
        tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]
        kind = (training, torch.is_grad_enabled(), _precision(tensors), kind_of(batch))
        if kind in self._unconfirmed:
            return self._confirm(kind, tensors, lambda: self._compute(features, labels, training))
        if kind not in self._graphs and len(self._graphs) + len(self._unconfirmed) < _MOST_KINDS:
            return self._record(kind, tensors, lambda: self._compute(features, labels, training))
        graph = self._graphs.get(kind)
        return self._compute(features, labels, training) if graph is None else graph(tensors)

    def _follow_changes(self) -> None:
        """Forget all graphs where an attribute has become another object, which need not be of Keras."""
        pairs = zip(_attributes(self._watched), self._attributes, strict=True)
        if not all(len(now) == len(then) and all(map(operator.is_, now, then)) for now, then in pairs):
            self._graphs.clear()
            self._unconfirmed.clear()
            self._watched = _parts_of_keras(self._model)
            self._attributes = _attributes(self._watched)

    def _record(self, kind: Any, tensors: list[Tensor], called: Callable[[], Any]) -> Any:
        with CallRecorder(tensors) as recorder:
            outputs = called()
        results = list(filter(torch.is_tensor, leaves(outputs)))
        numbers = iter(range(len(results)))
        numbered = map_nested(lambda leaf: next(numbers) if torch.is_tensor(leaf) else leaf, outputs)
        try:
            self._unconfirmed[kind] = _Graph(recorder.recorded(results), numbered)
        except NotRecordableError as why:
            self._call_always(kind, why)
        self._attributes = _attributes(self._watched)  # a first call may complete a layer
        return outputs

    def _confirm(self, kind: Any, tensors: list[Tensor], called: Callable[[], Any]) -> Any:
        """Return what the model returns, and see whether the recorded calls do the same."""
        graph, before = self._unconfirmed.pop(kind), [state.clone() for state in self._states]
        with torch.random.fork_rng(sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)):
            found = self._effects(graph(tensors))
        with torch.no_grad():
            for state, value in zip(self._states, before, strict=True):
                state.copy_(value)
        outputs = called()
        if _are_same(found, self._effects(outputs)):
            self._graphs[kind] = graph
        else:
            self._call_always(kind, "calls that are made again give other values")
        return outputs

    def _call_always(self, kind: Any, why: object) -> None:
        self._graphs[kind] = None
        logger.debug(f"The model is called for each batch: {why}.")

    def _effects(self, outputs: tuple[Tensor, Any]) -> list[Tensor]:
        """Return all that a forward pass makes or changes: outputs, gradients, states, random generators."""
        losses, parameters, gradients = outputs[0], self._parameters, []
        if losses.requires_grad and parameters:
            found = torch.autograd.grad(losses.sum(), parameters, retain_graph=True, allow_unused=True)
            gradients = [gradient for gradient in found if gradient is not None]
        randomness = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if losses.is_cuda else ())]
        values = filter(torch.is_tensor, leaves(outputs))
        return [*map(Tensor.detach, values), *gradients, *map(torch.clone, self._states), *randomness]


def _parts_of_keras(model: Any) -> list[Any]:
    """Return layers, regularizers and the loss of a model: what decides which calls it makes; none if others do too."""
    if not hasattr(model, "_flatten_layers"):
        return []
    layers = list(model._flatten_layers())
    operations = [one for layer in layers for one in getattr(layer, "operations", ())]
    loss = getattr(model, "loss", None)
    regularizers = [value for one in layers for value in vars(one).values() if _is_regularizer(value)]
    parts = [*layers, *operations, *regularizers, *([loss] if hasattr(loss, "__dict__") else [])]
    parts = list({id(part): part for part in parts}.values())
    given = [value for part in parts for value in vars(part).values() if callable(value)]
    modules = [one for layer in layers for one in layer.modules() if not isinstance(one, nn.ParameterDict)]
    return parts if all(map(_is_of_keras, [*parts, *given, *modules])) else []


def _is_of_keras(part: Any) -> bool:
    kind = part if isinstance(getattr(part, "__name__", None), str) else type(part)
    return str(getattr(kind, "__module__", "")).startswith("keras.src.")


def _is_regularizer(value: Any) -> bool:
    return hasattr(value, "get_config") and type(value).__module__.startswith("keras.src.regularizers.")


def _attributes(parts: list[Any]) -> list[list[Any]]:
    return [list(vars(part).values()) for part in parts]


def _has_hooks(parts: list[Any]) -> bool:
    """Tell whether somebody listens to a layer, who would not hear of recorded calls."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in parts
        if isinstance(part, nn.Module)
    )


def _precision(tensors: list[Tensor]) -> Any:
    """Return where it is computed, and what autocast makes of it there."""
    device = tensors[0].device if tensors else torch.device("cpu")
    enabled = torch.is_autocast_enabled(device.type)
    return device, torch.get_autocast_dtype(device.type) if enabled else None


def _are_same(left: list[Tensor], right: list[Tensor]) -> bool:
    """Tell whether tensors are the same bit for bit; NaN is the same as NaN."""
    return len(left) == len(right) and all(
        one.shape == other.shape and one.dtype == other.dtype and torch.allclose(one, other, 0, 0, equal_nan=True)
        for one, other in zip(left, right, strict=True)
    )
