"""Names, batches and the optimizer for Keras models, each by itself."""

import itertools

import numpy as np
import pytest
import torch

from lightrainer.lightning_modules.keras.adam import KerasAdam
from lightrainer.lightning_modules.keras.names import stable_names
from lightrainer.lightning_modules.keras.tensorflow_data import EvaluationStream, StepStream


def test_names_do_not_depend_on_how_many_models_there_were():
    first = [
        "net/dense/kernel",
        "net/dense/bias",
        "net/dense_1/kernel",
        "net/block/dense_2/kernel",
        "seed/state",
    ]
    later = [
        "net_3/dense_7/kernel",
        "net_3/dense_7/bias",
        "net_3/dense_8/kernel",
        "net_3/block_2/dense_9/kernel",
        "seed_4/state",
    ]
    assert stable_names(first) == stable_names(later)
    assert stable_names(later)[2:] == [
        "net/dense_1/kernel",
        "net/block/dense/kernel",
        "seed/state",
    ]


def test_names_are_different_and_such_as_torch_allows():
    assert stable_names(["a.b/x", "a.b/x", "c/x", "c_1/x", "x"]) == [
        "a_b/x",
        "a_b/x#1",
        "c/x",
        "c_1/x",
        "x",
    ]


def batches(*sizes):
    """Return batches of these sizes, whose features are the sample numbers."""
    starts = np.cumsum([0, *sizes])
    return [(np.arange(a, b), np.arange(a, b)) for a, b in itertools.pairwise(starts)]


def rows(stream):
    return [batch["features"].tolist() for batch in stream]


def test_keras_step_is_split_by_sample():
    """Two processes with two micro-batches each see what one process sees with twice the batch."""
    whole = rows(StepStream(batches(8, 8), steps=2, parts=2))
    assert whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    shares = [
        rows(StepStream(batches(8, 8), steps=2, parts=2, rank=rank, world_size=2))
        for rank in (0, 1)
    ]
    assert [left + right for left, right in zip(*shares, strict=True)] == whole
    assert rows(StepStream(batches(8, 8), steps=1)) == [list(range(8))]


def test_keras_step_that_cannot_be_split_raises():
    with pytest.raises(ValueError, match=r"7 samples.*2 processes.*drop_remainder=True"):
        rows(StepStream(batches(7), steps=1, world_size=2))
    with pytest.raises(ValueError, match=r"1 samples.*gradient_accumulation_steps=2"):
        rows(StepStream(batches(1), steps=1, parts=2))


def test_keras_epoch_iterator_is_restored():
    class Shuffled:
        """Each iterator has its own order, as those of a `tf.data.Dataset` that shuffles."""

        made = 0

        def __iter__(self):
            self.made += 1
            return iter([(np.array([self.made]), np.array([0]))])

    through, resumed = StepStream(Shuffled(), steps=1), StepStream(Shuffled(), steps=1)
    epochs = []
    for epoch in range(3):
        through.set_epoch(epoch)
        epochs.append(rows(through))
    resumed.set_epoch(2)
    resumed.set_epoch(2)
    assert rows(resumed) == epochs[2] == [[3]]


@pytest.mark.parametrize("sizes", [(7,), (3, 1, 3), (1,) * 7, (4, 3)])
def test_keras_evaluation_reads_each_sample_once(sizes):
    stream = EvaluationStream(batches(*sizes), batches=None, size=4)
    assert rows(stream) == [[0, 1, 2, 3], [4, 5, 6]]
    assert stream.last_round == 3
    shares = [
        EvaluationStream(batches(*sizes), batches=None, size=2, rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    rounds = [rows(share) for share in shares]
    assert rounds == [
        [[0, 1], [4, 5]],
        [[2, 3], [6, 0]],
    ], "the last one is filled up from the start"
    assert rows(EvaluationStream(batches(2, 2, 2), batches=2, size=4)) == [[0, 1, 2, 3]]


def test_keras_parameter_without_gradient_counts_as_zeros():
    """And the rate that a schedule has set stays set."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [KerasAdam([parameter], lr=0.1) for parameter in parameters]
    for step in range(3):
        for parameter, missing in zip(parameters, (None, torch.zeros(2)), strict=True):
            parameter.grad = torch.ones(2) if step == 0 else missing
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(*parameters)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.1, 0.1]
