"""Graphs of TensorFlow for functions of batches, one for each kind of batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .tensorflow_tensors import to_tensorflow

_Sizes = list[tuple[int | None, ...]]
"""The shapes of tensors; None is any size."""


class TensorFlowGraphs:
    """As `tf.function(function, reduce_retracing=True)`, which needs longer to find a graph than
    small ones to run.

    A batch of other sizes than those before gets a graph for all of them, in which the sizes that
    differ are open.

    Args:
        function: of TensorFlow's tensors, nested in any way, and of values that a graph can be made
            for.
        xla: have XLA compile the graphs.
    """

    def __init__(self, function: Callable[..., Any], *, xla: bool) -> None:
        self._function = function
        self._xla = xla
        self._graphs: dict[Any, Callable[..., Any]] = {}
        self._sizes: dict[Any, _Sizes] = {}
        """Sizes that the newest graph takes, for tensors of the same number of dimensions."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph for these arguments, with tensors of torch in them, and return what
        `function` returns.
        """
        kind = _kind_of(arguments)
        leaves = sys.modules["tensorflow"].nest.flatten(arguments)
        tensors = [to_tensorflow(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        graph = self._graphs.get(kind)
        if graph is None:
            graph = self._graphs[kind] = self._graph(arguments, leaves, tensors)
        return graph(*tensors)

    def _graph(self, arguments: Any, leaves: list[Any], tensors: list[Any]) -> Callable[..., Any]:
        tf = sys.modules["tensorflow"]
        kind, found = _kind_of(arguments, len), [tuple(tensor.shape) for tensor in tensors]
        sizes = self._sizes[kind] = _open(self._sizes.get(kind, found), found)

        def flat(*given: Any) -> Any:
            parts = iter(given)
            filled = [next(parts) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return self._function(*tf.nest.pack_sequence_as(arguments, filled))

        signature = [
            tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(sizes, tensors, strict=True)
        ]
        graph = tf.function(
            flat, input_signature=signature, jit_compile=self._xla or None
        ).get_concrete_function()
        known = all(
            leaf is None or isinstance(leaf, tf.Tensor)
            for leaf in tf.nest.flatten(graph.structured_outputs)
        )
        simple = known and not self._xla and not tf.config.list_logical_devices("GPU")
        return _Operation(graph, tf) if simple else graph


class _Operation:
    """Calls a graph by the operation for that: half a millisecond less than
    `ConcreteFunction.__call__` takes.
    """

    def __init__(self, graph: Any, tf: Any) -> None:
        self._tf = tf
        self._graph = graph
        self._captured = list(graph.captured_inputs)
        self._types = [output.dtype for output in graph.outputs]
        self._nesting = graph.structured_outputs
        self._is_there = [leaf is not None for leaf in tf.nest.flatten(self._nesting)]

    def __call__(self, *tensors: Any) -> Any:
        arguments = [*tensors, *self._captured]
        found = iter(
            self._tf.raw_ops.StatefulPartitionedCall(
                args=arguments, Tout=self._types, f=self._graph
            )
        )
        return self._tf.nest.pack_sequence_as(
            self._nesting, [next(found) if it else None for it in self._is_there]
        )


def _open(known: _Sizes, found: _Sizes) -> _Sizes:
    """Return shapes that both are of."""
    return [
        tuple(size if size == other else None for size, other in zip(shape, others, strict=True))
        for shape, others in zip(known, found, strict=True)
    ]


def _kind_of(value: Any, of_shape: Callable[[Any], Any] = tuple) -> Any:
    """Return what two values have in common that one graph serves: their nesting, types, and what
    is no tensor.

    Args:
        value: tensors of torch, nested in any way, and hashable others.
        of_shape: what counts of the shape of a tensor.
    """
    if isinstance(value, Tensor):
        return value.dtype, of_shape(value.shape)
    if isinstance(value, Mapping):
        return type(value), *((key, _kind_of(part, of_shape)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), *(_kind_of(part, of_shape) for part in value)
    return type(value), value
