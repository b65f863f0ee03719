"""The numbers of the TFTrainer of transformers 4, over the very samples that it drew.

Keras computes in torch here, and in TensorFlow with `make test-tf`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")

from helpers.keras.legacy_scenarios import SCENARIOS, accuracy, built_model, named_weights, numbers
from lightrainer import TFTrainer, TFTrainingArguments

# 2026-11: keras 3.15 has numpy look into tensors of torch in its old way, and warns of layers made
# in __init__.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{said}")
    for said in ("__array__ implementation", r"`build\(\)` was")
]

FROZEN = json.loads(Path(__file__).with_name("figures.json").read_text())["scenarios"]
NEW_NAMES = {"evaluation_strategy": "eval_strategy"}
CLOSE = 1e-6


class Steps:
    """The batches of a training, an epoch at each iteration."""

    def __init__(self, scenario, per_epoch):
        self.features, self.labels = numbers(scenario, "train")
        self.order, self.per_epoch, self.epochs = FROZEN[scenario]["order"], per_epoch, 0

    def __len__(self):
        return self.per_epoch

    def __iter__(self):
        start, self.epochs = self.epochs * self.per_epoch, self.epochs + 1
        return (self.batch(rows) for rows in self.order[start : start + self.per_epoch])

    def batch(self, rows):
        labels = self.labels
        features = {name: values[rows] for name, values in self.features.items()}
        return features, (
            {n: v[rows] for n, v in labels.items()} if isinstance(labels, dict) else labels[rows]
        )


class Followed(TFTrainer):
    """Trains on the samples that the original drew, in its order."""

    scenario = ""

    def get_train_tfdataset(self):
        super().get_train_tfdataset()
        return Steps(self.scenario, -(-self.num_train_examples // self.total_train_batch_size))


def pairs(scenario, part):
    """The samples of one part of the data, without TensorFlow."""
    features, labels = numbers(scenario, part)
    pick = lambda values, row: (
        {n: v[row] for n, v in values.items()} if isinstance(values, dict) else values[row]
    )
    return [(pick(features, row), pick(labels, row)) for row in range(len(features["index"]))]


def trained(scenario, folder):
    options = {NEW_NAMES.get(name, name): value for name, value in SCENARIOS[scenario][1].items()}
    defaults = {
        "learning_rate": 0.01,
        "logging_steps": 1,
        "eval_steps": 25,
        "save_strategy": "no",
        "report_to": "none",
    }
    quiet = {"disable_tqdm": True, "log_level": "error", "use_cpu": True}
    args = TFTrainingArguments(str(folder), **{**defaults, **quiet, **options})
    sets = [pairs(scenario, part) for part in ("train", "eval")]
    trainer = Followed(built_model(scenario), args, *sets, compute_metrics=accuracy)
    trainer.scenario = scenario
    trainer.train()
    return trainer


def difference(ours, theirs):
    return np.abs(np.array(ours) - np.array(theirs)).max()


def furthest_weight(trainer, frozen):
    weights = {
        name: keras.ops.convert_to_numpy(weight)
        for name, weight in named_weights(trainer.model).items()
    }
    assert set(weights) == set(frozen["weights"])
    return max(difference(weights[name], values) for name, values in frozen["weights"].items())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_weights_logs_metrics_and_predictions_are_those_of_the_original(scenario, tmp_path):
    """What is logged as `loss` there is the mean since the epoch began; the learning rate that of
    the next step.

    Where labels are a dict, the original counts one label in a batch: its loss is a sum, ours is a
    mean over samples, which Adam tells apart by its epsilon only.
    """
    frozen, trainer = FROZEN[scenario], trained(scenario, tmp_path)
    assert trainer.global_step == frozen["global_step"]
    counted, close = (4, 5 * CLOSE) if scenario == "dict" else (1, CLOSE)
    assert furthest_weight(trainer, frozen) < close
    history = trainer.state.log_history
    losses, rates = (
        [log[name] for log in history if "learning_rate" in log]
        for name in ("loss", "learning_rate")
    )
    evaluations = {log["step"]: log["eval_loss"] for log in history if "eval_loss" in log}
    for log in frozen["logged"]:
        step = log["step"]
        if "learning_rate" in log:
            began = (step - 1) // trainer.steps_per_epoch * trainer.steps_per_epoch
            assert abs(np.mean(losses[began:step]) * counted - log["loss"]) < close
            assert abs((*rates, 0.0)[step] - log["learning_rate"]) < CLOSE
            assert (
                abs(
                    log["epoch"]
                    - next(entry["epoch"] for entry in history if entry["step"] == step)
                )
                < 1e-4
            )
        elif step in evaluations:
            assert abs(evaluations[step] - log["eval_loss"]) < CLOSE
    assert len(evaluations) == (3 if "evaluation_strategy" in SCENARIOS[scenario][1] else 0)
    compare_evaluation(trainer, scenario, frozen)


def compare_evaluation(trainer, scenario, frozen):
    if scenario == "dict":  # which the original cannot evaluate
        return
    # It fills the last batch up with samples that it has counted already; ours counts each once.
    expected = FROZEN["plain" if scenario == "ragged" else scenario]["evaluated"]
    evaluated = trainer.evaluate()
    assert max(abs(evaluated[name] - value) for name, value in expected.items()) < CLOSE
    if scenario == "ragged":
        assert abs(evaluated["eval_loss"] - frozen["evaluated"]["eval_loss"]) > 1e-4
        return
    predicted = trainer.predict(pairs(scenario, "test"))
    assert difference(predicted.predictions, frozen["predictions"]) < 2 * CLOSE
    assert (
        max(abs(predicted.metrics[name] - value) for name, value in frozen["predicted"].items())
        < CLOSE
    )
