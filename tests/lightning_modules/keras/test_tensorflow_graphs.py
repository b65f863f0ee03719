"""Graphs of TensorFlow for batches of all kinds; with `make test-tf`."""

import pytest
import torch

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed; run `make test-tf`")

from lightrainer.lightning_modules.keras.tensorflow_graphs import TensorFlowGraphs


def traced():
    """Return graphs of a sum, and the shapes that each of them was made for."""
    shapes = []

    def function(batch, scale):
        shapes.append(tuple(batch["x"].shape))
        return {"sum": tf.reduce_sum(batch["x"]) * scale, "nothing": None}

    return TensorFlowGraphs(function, xla=False), shapes


def test_tensorflow_graph_is_cached_per_kind_of_batch():
    graphs, shapes = traced()
    for _ in range(2):
        for columns in (3, 4):
            result = graphs({"x": torch.ones(2, columns)}, 2)
            assert result["sum"].numpy() == 4 * columns
            assert result["nothing"] is None
    assert shapes == [(2, 3), (2, None)], "the second of them is open where the first one was not"
    assert graphs({"x": torch.ones(5, 6)}, 2)["sum"].numpy() == 60
    assert graphs({"x": torch.ones(7, 8)}, 2)["sum"].numpy() == 112
    assert shapes[2:] == [(None, None), (None, None)]
