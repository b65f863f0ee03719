"""Graphs of TensorFlow for functions of batches, one for each shape of a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Size, Tensor

from .tensorflow_tensors import to_tensorflow

_Shape = tuple[int | None, ...]
"""The shape of a tensor; None stands for any size."""


class TensorFlowGraphs:
    """A function that runs as graphs, as `tf.function(function, reduce_retracing=True)`.

    It finds the graph faster: `tf.function` needs longer for that than a small graph takes to run.
    A batch of a new shape gets a graph for this and all earlier shapes, in which the sizes that
    differ are None.

    Args:
        function: a function of nested tensors of TensorFlow, and of hashable values.
        xla: True to let XLA compile the graphs.
    """

    def __init__(self, function: Callable[..., Any], *, xla: bool) -> None:
        self._function = function
        self._xla = xla

        self._graphs: dict[object, Callable[..., Any]] = {}
        """The graph for each `_graph_key`."""
        self._shapes: dict[object, list[_Shape]] = {}
        """For each key with numbers of dimensions, the shapes that the newest graph accepts."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph for these arguments, which contain tensors of torch.

        Returns:
            the result of `function`.
        """
        key = _graph_key(arguments)
        tf = sys.modules["tensorflow"]
        leaves: list[object] = tf.nest.flatten(arguments)
        tensors = [to_tensorflow(leaf) for leaf in leaves if isinstance(leaf, Tensor)]

        # A dictionary finds the graph faster than `tf.function` does.
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._make_graph(arguments, leaves, tensors)
            self._graphs[key] = graph
        return graph(*tensors)

    def _make_graph(
        self, arguments: tuple[object, ...], leaves: list[object], tensors: list[Any]
    ) -> Callable[..., object]:
        """Trace a graph for the shapes of these arguments, and all earlier ones of their kind.

        Args:
            arguments: the arguments of `function`.
            leaves: all values in the arguments, in TensorFlow's order.
            tensors: the tensors among the leaves, as tensors of TensorFlow.
        """
        tf = sys.modules["tensorflow"]

        # Sizes that differ from those of earlier batches are left open.
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

        # `_GraphOperation` is used on CPUs without XLA, and only if all outputs are tensors or
        # None.
        if self._xla or tf.config.list_logical_devices("GPU"):
            return graph
        for leaf in tf.nest.flatten(graph.structured_outputs):
            if leaf is not None and not isinstance(leaf, tf.Tensor):
                return graph
        return _GraphOperation(graph, tf)


class _GraphOperation:
    """Calls a graph by its operation, which saves half a millisecond a call.

    Args:
        graph: a concrete function, whose outputs are tensors or None.
        tf: the module `tensorflow`.
    """

    def __init__(self, graph: Any, tf: Any) -> None:
        self._tf = tf
        self._graph = graph
        # The operation takes the variables that the function reads after its arguments.
        self._captured = list(graph.captured_inputs)
        self._types = [output.dtype for output in graph.outputs]
        self._structure = graph.structured_outputs
        self._leaves = tf.nest.flatten(self._structure)

    def __call__(self, *tensors: Any) -> Any:
        results = self._tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *self._captured], Tout=self._types, f=self._graph
        )

        # The operation returns the tensors only. Put them where the structure does not have None.
        remaining = iter(results)
        leaves: list[Any] = []
        for leaf in self._leaves:
            if leaf is not None:
                leaf = next(remaining)
            leaves.append(leaf)
        return self._tf.nest.pack_sequence_as(self._structure, leaves)


def _common_shape(first: _Shape, second: _Shape) -> _Shape:
    """Return a shape that covers both: sizes that differ are None."""
    sizes: list[int | None] = []
    for size, other_size in zip(first, second, strict=True):
        if size != other_size:
            size = None
        sizes.append(size)
    return tuple(sizes)


def _graph_key(
    value: object, describe_shape: Callable[[Size], object] = tuple
) -> tuple[object, ...]:
    """Return a key; arguments with equal keys use the same graph.

    It contains their nesting, types and shapes, and values that are not tensors.

    Args:
        value: tensors of torch, nested in any way, and hashable values.
        describe_shape: returns the part of a tensor's shape that counts: all sizes, or with `len`
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

    # The type is part of the key, because 1, 1.0 and True are equal.
    return type(value), value
