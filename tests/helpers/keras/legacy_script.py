"""A script of transformers 4: trains a classifier of Keras with TFTrainer, evaluates, predicts,
writes its figures.

python legacy_script.py SCENARIO OUTPUT.json
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from transformers import TFTrainer, TFTrainingArguments

from helpers.keras.legacy_scenarios import SCENARIOS, accuracy, built_model, named_weights, numbers


class Recorded(TFTrainer):
    """Keeps what is logged."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.logged = []

    def log(self, logs):
        self.logged.append(
            {"step": int(self.global_step), **{name: float(value) for name, value in logs.items()}}
        )
        super().log(logs)


def dataset(scenario, part):
    return tf.data.Dataset.from_tensor_slices(numbers(scenario, part))


def main(scenario, output):
    with tempfile.TemporaryDirectory() as folder:
        Path(output).write_text(json.dumps(figures(scenario, folder)))


def arguments(scenario, folder):
    defaults = {
        "learning_rate": 0.01,
        "logging_steps": 5,
        "eval_steps": 25,
        "save_steps": 10_000,
        "logging_dir": folder,
    }
    return TFTrainingArguments(folder, **{**defaults, **SCENARIOS[scenario][1]})


def figures(scenario, folder):
    """Train; all results, as lists and numbers."""
    args = arguments(scenario, folder)
    with args.strategy.scope():
        model = built_model(scenario)
    train, evaluated, test = (dataset(scenario, part) for part in ("train", "eval", "test"))
    trainer = Recorded(model, args, train, evaluated, accuracy)
    trainer.train()
    results = {
        "global_step": int(trainer.global_step),
        "weights": {
            name: np.asarray(variable).tolist() for name, variable in named_weights(model).items()
        },
    }
    if scenario != "dict":
        predicted = trainer.predict(test)
        results["predictions"] = np.asarray(predicted.predictions).tolist()
        results["predicted"] = {name: float(value) for name, value in predicted.metrics.items()}
        results["evaluated"] = {name: float(value) for name, value in trainer.evaluate().items()}
    return {**results, "logged": trainer.logged}


if __name__ == "__main__":
    main(*sys.argv[1:])
