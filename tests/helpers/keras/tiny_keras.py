"""The smallest Keras models, data and arguments that a TFTrainer can be made of."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

from helpers import TESTS
from helpers.trainer import tiny_trainings
from lightrainer import TFTrainer, TFTrainingArguments

ARGUMENTS = {
    **tiny_trainings.ARGUMENTS,
    "num_train_epochs": 2,
    "adam_epsilon": 1e-7,
    "log_level": "error",
}


def points(count: int = 16, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Four features and a class of three, the same each time."""
    x = np.random.RandomState(seed).standard_normal((count, 4)).astype("float32")
    return [(row, row[:3].argmax().astype("int32")) for row in x]


def network(*more: Any, seed: int = 3) -> Any:
    """A compiled model with the same weights each time."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(6, activation="tanh"), *more, keras.layers.Dense(3)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Subclassed(keras.Model):
    """Has no weights before its first call, and its own loss for each sample, as models of
    transformers 4.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(6, activation="tanh")
        self.second = keras.layers.Dense(3)

    def call(self, x: Any, labels: Any = None, training: bool = False) -> Any:
        logits = self.second(self.first(x))
        if labels is None:
            return (logits,)
        return (
            keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
            logits,
        )


def arguments(folder: Path, **changes: Any) -> TFTrainingArguments:
    return TFTrainingArguments(str(folder), **{**ARGUMENTS, **changes})


in_torch_only = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="inspects torch tensors"
)
ASIDE = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(":")}
"""Where processes that a test starts find the helpers, and what lies aside, as TensorFlow does."""

PARAMETERS = (
    "model",
    "train_dataset",
    "eval_dataset",
    "compute_metrics",
    "tb_writer",
    "optimizers",
    "callbacks",
)


def make_trainer(folder: Path, cls: type[TFTrainer] = TFTrainer, **changes: Any) -> Any:
    """One of `network()` on 16 points, 8 steps; `changes` are parameters of the trainer or of
    the arguments.
    """
    parameters = {name: changes.pop(name) for name in PARAMETERS if name in changes}
    parameters = {"train_dataset": points(), "eval_dataset": points(6, seed=2), **parameters}
    parameters.setdefault("model", network())
    return cls(args=arguments(folder, **changes), **parameters)


def eventful(seed: int = 3) -> Any:
    """Whatever a model may keep: dropout with and without a seed, and moving statistics."""
    keras.utils.set_random_seed(seed)
    more = [
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.4),
        keras.layers.Dropout(0.2, seed=4),
    ]
    return network(*more, seed=seed)


def resumable(folder: Path, model: Any, **changes: Any) -> TFTrainer:
    """A training of three epochs, of four steps each, that saves a checkpoint every three steps."""
    defaults = {
        "train_dataset": points(20),
        "save_strategy": "steps",
        "save_steps": 3,
        "gradient_accumulation_steps": 2,
    }
    return make_trainer(
        folder,
        model=model,
        per_device_train_batch_size=3,
        num_train_epochs=3,
        **{**defaults, **changes},
    )


def weights(model: Any) -> list[np.ndarray]:
    values = [variable.value for variable in model.weights]
    return [
        (tensor.detach().cpu() if isinstance(tensor, torch.Tensor) else tensor).numpy().copy()
        for tensor in values
    ]


def furthest(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The largest difference of two lists of arrays."""
    return max(
        float(np.abs(actual - expected).max()) for actual, expected in zip(left, right, strict=True)
    )


def losses(of: Any) -> list[float]:
    return [entry["loss"] for entry in of.state.log_history if "loss" in entry]


def by_hand(
    model: Any, batches: list[list[tuple[Any, Any]]], rates: list[float], **adam: Any
) -> list[float]:
    """Train with Keras's own optimizer, a batch a step; returns the losses."""
    optimizer = keras.optimizers.Adam(**adam)
    variables, step_losses = model.trainable_variables, []
    optimizer.build(variables)
    for batch, rate in zip(batches, rates, strict=True):
        x, y = (torch.as_tensor(np.stack(part)) for part in zip(*batch, strict=True))
        optimizer.learning_rate = rate
        loss = model.loss(y, model(x, training=True))
        gradients = torch.autograd.grad(loss, [variable.value for variable in variables])
        with torch.no_grad():
            optimizer.apply(gradients, variables)
        step_losses.append(loss.item())
    return step_losses
