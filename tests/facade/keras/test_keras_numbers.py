"""The numbers of trainings: those of Keras by hand, of one batch as of several, of one process
as of two.
"""

import json

import numpy as np
import pytest

from helpers import HELPERS

keras = pytest.importorskip("keras", reason="keras is not installed")

import torch

from helpers.keras.tiny_keras import (
    ARGUMENTS,
    ASIDE,
    Subclassed,
    by_hand,
    furthest,
    in_torch_only,
    losses,
    make_trainer,
    network,
    points,
    weights,
)
from helpers.processes.starting import finished_ranks
from lightrainer import TFTrainer

STEPS = 50
LINEAR = [1e-2 * (1 - step / STEPS) for step in range(STEPS)]


class InOrder(TFTrainer):
    """Notes down the samples of each step."""

    def run_model(self, features, labels, training):
        if training:
            self.__dict__.setdefault("seen", []).append(
                [*zip(features.numpy(), labels.numpy(), strict=True)]
            )
        return super().run_model(features, labels, training)


@in_torch_only
def test_losses_and_weights_are_those_of_keras_by_hand(tmp_path):
    """Over fifty steps: same weights, order, schedule, and Adam with Keras's epsilon."""
    ours, theirs = network(), network()
    trainer = make_trainer(
        tmp_path, cls=InOrder, model=ours, train_dataset=points(40), num_train_epochs=5
    )
    trainer.train()
    expected = by_hand(theirs, trainer.seen, LINEAR)
    assert trainer.global_step == STEPS
    assert np.abs(np.array(losses(trainer)) - expected).max() < 1e-6
    assert furthest(weights(ours), weights(theirs)) < 1e-6
    other = network()
    by_hand(other, trainer.seen, LINEAR, epsilon=1e-5)
    assert furthest(weights(ours), weights(other)) > 1e-5, "negative control: epsilon counts"


@in_torch_only
def test_regularization_losses_of_layers_count_once(tmp_path):
    def regularized():
        keras.utils.set_random_seed(7)
        return network(keras.layers.Dense(5, kernel_regularizer=keras.regularizers.L2(0.3)))

    whole, parts = regularized(), regularized()
    trainer = make_trainer(tmp_path, model=whole, train_sampling_strategy="sequential", max_steps=3)
    trainer.train()
    halves = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    two = make_trainer(
        tmp_path, model=parts, train_sampling_strategy="sequential", max_steps=3, **halves
    )
    two.train()
    penalty = float(0.3 * np.square(weights(regularized())[2]).sum())
    x, y = (torch.as_tensor(np.stack(part)) for part in zip(*points(4), strict=True))
    plain = regularized()
    assert losses(trainer)[0] == pytest.approx(plain.loss(y, plain(x)).item() + penalty, abs=1e-5)
    assert losses(two) == pytest.approx(losses(trainer), abs=1e-6)


def test_values_of_gradients_are_clipped_only_where_they_are_accumulated(tmp_path, caplog):
    def trained(**changes):
        model = network()
        make_trainer(
            tmp_path, model=model, optim="sgd", learning_rate=1.0, log_level="warning", **changes
        ).train()
        return weights(model)

    accumulated = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    default = trained()
    assert "max_grad_norm" not in caplog.text
    assert furthest(trained(max_grad_norm=1e-4), default) == 0
    assert "max_grad_norm=0.0001 has no effect with gradient_accumulation_steps=1" in caplog.text
    caplog.clear()
    clipped = trained(max_grad_norm=1e-4, **accumulated)
    assert "max_grad_norm" not in caplog.text
    # at most so much in each of eight steps
    assert 0 < furthest(clipped, weights(network())) < 8 * 1.01e-4


@in_torch_only
def test_labels_of_minus_100_do_not_count(tmp_path):
    """Neither in the loss nor in its divisor, also if micro-batches have different numbers of
    them.
    """

    class Tagger(Subclassed):
        def call(self, x, labels=None, training=False):
            logits = super().call(x)[0]
            if labels is None:
                return (logits,)
            entropy = keras.losses.sparse_categorical_crossentropy
            return entropy(labels, logits, from_logits=True, ignore_class=-100), logits

    x = np.random.RandomState(0).standard_normal((4, 5, 4)).astype("float32")
    labels = x[..., :3].argmax(-1).astype("int32")
    labels[0, 1:] = labels[2, 3:] = -100
    keras.utils.set_random_seed(1)
    model = Tagger()
    sizes = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "max_steps": 1}
    trainer = make_trainer(
        tmp_path,
        model=model,
        train_dataset=[*zip(x, labels, strict=True)],
        learning_rate=0.0,
        **sizes,
    )
    trainer.train()
    mask = labels != -100
    logits = model(torch.as_tensor(x))[0][mask]
    each = keras.losses.sparse_categorical_crossentropy(
        torch.as_tensor(labels[mask]), logits, from_logits=True
    )
    assert losses(trainer)[0] == pytest.approx(each.mean().item(), abs=1e-6)


LOSS = [
    (
        keras.losses.CategoricalCrossentropy(from_logits=True),
        np.eye(3, dtype="float32")[[0, 2, 1, 1]],
    ),
    (keras.losses.MeanSquaredError(), np.ones((4, 3), "float32")),
    ("mse", np.ones((4, 3), "float32")),
    (
        lambda labels, logits: keras.ops.mean(keras.ops.square(labels - logits)),
        np.ones((4, 3), "float32"),
    ),
]


@pytest.mark.parametrize(
    ("loss", "labels"), LOSS, ids=["one-hot", "several numbers", "by name", "a mean"]
)
def test_keras_loss_is_the_mean_whatever_the_labels(tmp_path, loss, labels):
    model = network()
    model.compile(loss=loss)
    x = np.stack([point[0] for point in points(4)])
    expected = float(model.evaluate(x, labels, verbose=0))
    trainer = make_trainer(
        tmp_path, model=model, train_dataset=[*zip(x, labels, strict=True)], max_steps=1
    )
    trainer.train()
    assert losses(trainer)[0] == pytest.approx(expected, abs=1e-6)


def test_keras_two_processes_equal_twice_the_batch(tmp_path):
    """Also with micro-batches; each sample is evaluated once, in its order."""
    script, log = HELPERS / "keras" / "keras_script.py", tmp_path / "log"
    finished_ranks(script, str(tmp_path), log=log, seconds=240, **ASIDE)
    alone = network()
    options = {**ARGUMENTS, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = make_trainer(
        tmp_path / "alone",
        model=alone,
        train_dataset=points(36),
        eval_dataset=points(7, seed=2),
        **options,
    )
    trainer.train()
    metrics = trainer.evaluate()
    predictions = trainer.predict(points(7, seed=2)).predictions
    for rank in range(2):
        result = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert furthest([np.array(weight) for weight in result["weights"]], weights(alone)) < 1e-6
        assert np.abs(np.array(result["losses"]) - losses(trainer)).max() < 1e-6
        assert result["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=1e-6)
        assert np.abs(np.array(result["predictions"]) - predictions).max() < 1e-5
