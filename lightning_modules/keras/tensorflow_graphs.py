"""TensorFlow graphs for functions of batches, one for each batch shape."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Size, Tensor

from .tensorflow_tensors import to_tensorflow

_Shape = tuple[int | None, ...]
"""The shape of a tensor; None matches any size."""


class TensorFlowGraphs:
    """Runs a function as graphs, like `tf.function(function, reduce_retracing=True)`, but faster.

    Finding the graph for a call takes `tf.function` longer than a small graph runs. For a batch
    with a new shape, a graph is traced that accepts this shape and all earlier ones: sizes that
    differ are None in it.

    Args:
        function: a function of nested TensorFlow tensors and of hashable values.
        xla: True to compile the graphs with XLA.
    """

    def __init__(self, function: Callable[..., Any], *, xla: bool) -> None:
        self._function = function
        self._xla = xla

        self._graphs: dict[object, Callable[..., Any]] = {}
        """The graph for each `_graph_key`."""
        self._shapes: dict[object, list[_Shape]] = {}
        """The shapes that the newest graph accepts, for each key that has only dimension counts."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph for these arguments, which contain torch tensors.

        Returns:
            the result of `function`.
        """
        key = _graph_key(arguments)
        tf = sys.modules["tensorflow"]
        leaves: list[object] = tf.nest.flatten(arguments)
        tensors = [to_tensorflow(leaf) for leaf in leaves if isinstance(leaf, Tensor)]

        # A dictionary lookup is faster than the lookup in `tf.function`.
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._make_graph(arguments, leaves, tensors)
            self._graphs[key] = graph
        return graph(*tensors)

    def _make_graph(
        self, arguments: tuple[object, ...], leaves: list[object], tensors: list[Any]
    ) -> Callable[..., object]:
        """Trace a graph for the shapes of these arguments, and of all earlier similar arguments.

        Args:
            arguments: the arguments of `function`.
            leaves: all values in the arguments, in TensorFlow's order.
            tensors: the tensors among the leaves, as TensorFlow tensors.
        """
        tf = sys.modules["tensorflow"]

        # Accept any size in dimensions that differ from those of earlier batches.
        key = _graph_key(arguments, describe_shape=len)
        shapes: list[_Shape] = [tuple(tensor.shape) for tensor in tensors]
        earlier_shapes = self._shapes.get(key, shapes)
        common_shapes: list[_Shape] = []
        for earlier_shape, shape in zip(earlier_shapes, shapes, strict=True):
            common_shapes.append(_common_shape(earlier_shape, shape))
        self._shapes[key] = common_shapes

        # The graph has only the tensors as arguments; all other leaves are constants.
        def function_of_tensors(*graph_tensors: object) -> object:
            remaining = iter(graph_tensors)
            graph_leaves: list[object] = []
            for leaf in leaves:
                if isinstance(leaf, Tensor):
                    leaf = next(remaining)
                graph_leaves.append(leaf)
            graph_arguments = tf.nest.pack_sequence_as(arguments, graph_leaves)
            return self._function(*graph_arguments)

        signature: list[object] = []
        for shape, tensor in zip(common_shapes, tensors, strict=True):
            signature.append(tf.TensorSpec(shape, tensor.dtype))
        function = tf.function(
            function_of_tensors, input_signature=signature, jit_compile=self._xla or None
        )
        graph = function.get_concrete_function()

        # Use `_GraphOperation` only on CPUs without XLA, and if all outputs are tensors or None.
        if self._xla or tf.config.list_logical_devices("GPU"):
            return graph
        for leaf in tf.nest.flatten(graph.structured_outputs):
            if leaf is not None and not isinstance(leaf, tf.Tensor):
                return graph
        return _GraphOperation(graph, tf)


class _GraphOperation:
    """Calls a graph through its raw operation, which saves half a millisecond per call.

    Args:
        graph: a concrete function, whose outputs are tensors or None.
        tf: the module `tensorflow`.
    """

    def __init__(self, graph: Any, tf: Any) -> None:
        self._tf = tf
        self._graph = graph
        # The operation takes the arguments, followed by the variables that the function reads.
        self._captured = list(graph.captured_inputs)
        self._types = [output.dtype for output in graph.outputs]
        self._structure = graph.structured_outputs
        self._leaves = tf.nest.flatten(self._structure)

    def __call__(self, *tensors: Any) -> Any:
        results = self._tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *self._captured], Tout=self._types, f=self._graph
        )

        # The operation returns only the tensors. Insert the None values of the output structure.
        remaining = iter(results)
        leaves: list[Any] = []
        for leaf in self._leaves:
            if leaf is not None:
                leaf = next(remaining)
            leaves.append(leaf)
        return self._tf.nest.pack_sequence_as(self._structure, leaves)


def _common_shape(first: _Shape, second: _Shape) -> _Shape:
    """Return a shape that matches both shapes, with None for sizes that differ."""
    sizes: list[int | None] = []
    for size, other_size in zip(first, second, strict=True):
        if size != other_size:
            size = None
        sizes.append(size)
    return tuple(sizes)


def _graph_key(
    value: object, describe_shape: Callable[[Size], object] = tuple
) -> tuple[object, ...]:
    """Return the key of the graph for arguments.

    The key contains their nesting, types and shapes, and the values that are not tensors.

    Args:
        value: torch tensors and hashable values, nested in any way.
        describe_shape: returns the relevant part of a tensor's shape: all sizes, or with `len` only
            the number of dimensions.
    """
    if isinstance(value, Tensor):
        return value.dtype, describe_shape(value.shape)
    if isinstance(value, Mapping):
        keys = [(name, _graph_key(part, describe_shape)) for name, part in value.items()]
        return type(value), *keys
    if isinstance(value, (list, tuple)):
        keys = [_graph_key(part, describe_shape) for part in value]
        return type(value), *keys

    # Include the type in the key, because 1, 1.0 and True are equal.
    return type(value), value
