"""A script of transformers 4 that trains a Keras model:
`python -m lightrainer examples/keras_classifier.py`.

Imports nothing of lightrainer. Its data are points of two spirals; nothing is downloaded. Started
again, it goes on from its newest checkpoint; `--keras-backend tensorflow` before its name has the
model compute in TensorFlow.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
from transformers import TFTrainer, TFTrainingArguments


class Classifier(keras.Model):
    """Returns the loss of each sample, if there are labels, and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [keras.layers.Dense(32, activation="relu") for _ in range(2)]
        self.dropout = keras.layers.Dropout(0.1)
        self.head = keras.layers.Dense(2)

    def call(
        self, inputs: dict[str, Any], labels: Any = None, training: bool = False
    ) -> tuple[Any, ...]:
        """Classify points of shape (batch, 2)."""
        x = inputs["point"]
        for layer in self.hidden:
            x = layer(x)
        logits = self.head(self.dropout(x, training=training))
        if labels is None:
            return (logits,)
        return (
            keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
            logits,
        )


def spirals(count: int, seed: int) -> list[tuple[dict[str, np.ndarray], int]]:
    """Points on two spirals, with the spiral that each is on."""
    state = np.random.RandomState(seed)
    radius, side = state.uniform(0.2, 1, count), state.randint(0, 2, count)
    angle = 4 * radius + np.pi * side + state.normal(0, 0.1, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype("float32")
    return [({"point": point}, int(label)) for point, label in zip(points, side, strict=True)]


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of points whose spiral was found."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main(output: str = "keras_output") -> None:
    """Train, evaluate, save."""
    args = TFTrainingArguments(
        output,
        num_train_epochs=20,
        per_device_train_batch_size=32,
        learning_rate=0.01,
        weight_decay=0.01,
        warmup_ratio=0.1,
        evaluation_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )
    with args.strategy.scope():
        model = Classifier()
    trainer = TFTrainer(model, args, spirals(640, seed=0), spirals(160, seed=1), accuracy)
    trainer.train()
    print(f"accuracy: {trainer.evaluate()['eval_accuracy']:.3f}")
    trainer.save_model()


if __name__ == "__main__":
    main(*sys.argv[1:])
