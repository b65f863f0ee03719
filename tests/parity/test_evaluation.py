"""Evaluation gives the same metrics and disturbs the training no more; see argument_effects.py for when it is due."""

import numpy as np
import pytest
import torch
from comparison import differences, without_clock
from datasets_for_parity import (
    NoisyPoints,
    class_data,
    labelled_sentences,
    point_data,
    points,
    sentence_data,
    sentences,
)
from harness import Case, assert_parity, build
from models import Classifier, TokenModel, bert, gpt2


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


def test_metrics_of_a_classifier(reference, ours, tmp_path):
    case = Case(
        bert,
        class_data,
        {"eval_strategy": "steps", "eval_steps": 3},
        extras=lambda api: {"compute_metrics": accuracy},
        test=lambda: labelled_sentences(7),
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert any("eval_accuracy" in entry for entry in actual.history)


def test_logits_are_prepared_for_the_metrics(reference, ours, tmp_path):
    """`preprocess_logits_for_metrics` sees tensors; what it returns is what the metrics and `predict` see."""
    shapes = []

    def prepare(logits, labels):
        assert isinstance(logits, torch.Tensor)
        assert isinstance(labels, torch.Tensor)
        return logits.argmax(dim=-1)

    def metrics(prediction):
        shapes.append(prediction.predictions.shape)
        return {"right": int((prediction.predictions == prediction.label_ids).sum())}

    extras = {"preprocess_logits_for_metrics": prepare, "compute_metrics": metrics}
    case = Case(
        gpt2, sentence_data, {"eval_strategy": "epoch"}, lambda api: dict(extras), test=lambda: sentences(7, seed=22)
    )
    assert_parity(reference, ours, case, tmp_path)
    assert len(shapes) == 6
    assert shapes[:3] == shapes[3:]


def test_several_evaluation_sets(reference, ours, tmp_path):
    """A dict of sets gives `eval_<name>_loss` for each."""

    def data():
        sets = {"near": points(6, seed=11), "far": points(9, seed=12)}
        return {"train_dataset": points(22), "eval_dataset": sets}

    arguments = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_on_start": True,
        "metric_for_best_model": "eval_far_loss",
        "greater_is_better": False,
    }
    _, actual = assert_parity(reference, ours, Case(Classifier, data, arguments), tmp_path)
    assert {"eval_near_loss", "eval_far_loss"} <= {key for entry in actual.history for key in entry}


@pytest.mark.parametrize("model", [Classifier, gpt2, TokenModel], ids=["plain", "gpt2", "number of items"])
def test_evaluate_and_predict_without_training(reference, ours, tmp_path, model):
    data = point_data if model is Classifier else sentence_data
    more = points(9, seed=31) if model is Classifier else sentences(9, seed=31)
    results = []
    for api in (reference, ours):
        trainer = build(api, Case(model, data), tmp_path / api.__name__)
        first = without_clock(trainer.evaluate())
        second = without_clock(trainer.evaluate(more, metric_key_prefix="again"))
        prediction = trainer.predict(more)
        history = [without_clock(entry) for entry in trainer.state.log_history]
        predicted = [prediction.predictions, prediction.label_ids, without_clock(prediction.metrics)]
        results.append([first, second, *predicted, history])
    assert not differences(*results)


@pytest.mark.parametrize("event", ["on_step_end", "on_substep_end", "on_epoch_begin", "on_pre_optimizer_step"])
@pytest.mark.parametrize("data", [points, NoisyPoints], ids=["", "data that draws"])
def test_a_user_may_evaluate_in_the_middle_of_training(reference, ours, tmp_path, event, data):
    """A callback evaluates and predicts on its own account; training goes on as if the reference had done it.

    Also between two micro-batches, whose gradients are added up; dropout is on, and the data may draw random numbers.
    """
    predicted = []

    def extras(api):
        class EvaluateNow(api.TrainerCallback):
            trainer = None

        def hook(self, args, state, control, **kwargs):
            if state.global_step in (2, 3):
                self.trainer.evaluate(data(5, seed=41), metric_key_prefix="middle")
                predicted.append(self.trainer.predict(data(3, seed=42)).predictions)

        setattr(EvaluateNow, event, hook)
        return {"callbacks": [EvaluateNow()]}

    def subclass(base):
        class Known(base):
            def __init__(self, *positional, **keywords):
                super().__init__(*positional, **keywords)
                for callback in self.callback_handler.callbacks:
                    if hasattr(callback, "trainer"):
                        callback.trainer = self

        return Known

    case = Case(Classifier, point_data, {"gradient_accumulation_steps": 2, "num_train_epochs": 3}, extras, subclass)
    _, actual = assert_parity(reference, ours, case, tmp_path)
    count = sum("middle_loss" in entry for entry in actual.history)
    assert count == (1 if event == "on_epoch_begin" else 2)
    assert not differences(predicted[:count], predicted[count:])
