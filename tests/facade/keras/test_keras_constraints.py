"""Constraints of weights, which optimizers of Keras apply; in either library (`make test-tf`)."""

import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")

import numpy as np
import torch

from helpers.keras.tiny_keras import furthest, make_trainer, network, points, weights


def constrained(limit=0.3):
    keras.utils.set_random_seed(3)
    largest = keras.constraints.MaxNorm(limit)
    return network(keras.layers.Dense(5, kernel_constraint=largest, bias_constraint="non_neg"))


def norms(model):
    return np.linalg.norm(weights(model)[2], axis=0)


@pytest.mark.parametrize("own", [False, True])
def test_constraints_hold_after_each_step(tmp_path, own):
    """With Keras's Adam and with an optimizer that was passed in; weights without a constraint
    go their own way.
    """
    model, free = constrained(), constrained(1e9)
    trainer = make_trainer(tmp_path, model=model, learning_rate=0.1)
    if own:
        trainer.optimizer = torch.optim.SGD(trainer.parameters(), lr=0.5)
    trainer.train()
    assert norms(model).max() <= 0.3 + 1e-6
    assert weights(model)[3].min() >= 0
    other = make_trainer(tmp_path, model=free, learning_rate=0.1)
    other.train()
    assert norms(free).max() > 0.4, "negative control"
    assert np.linalg.norm(weights(model)[0], axis=0).max() > 0.4


def test_constraints_are_those_of_keras_by_hand(tmp_path):
    """Over the first epoch, in the order of the samples."""
    ours, theirs = constrained(), constrained()
    options = {
        "train_sampling_strategy": "sequential",
        "num_train_epochs": 1,
        "lr_scheduler_type": "constant",
    }
    make_trainer(tmp_path, model=ours, **options).train()
    optimizer = keras.optimizers.Adam(1e-2)
    theirs.compile(optimizer=optimizer, loss=theirs.loss)
    x, y = (np.stack(part) for part in zip(*points(), strict=True))
    theirs.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    assert furthest(weights(ours), weights(theirs)) < 1e-6
