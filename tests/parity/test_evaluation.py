"""Evaluation gives the same metrics and disturbs the training no more; see argument_effects.py
for when it is due.
"""

import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, assert_parity
from helpers.parity.parity_datasets import (
    NoisyPoints,
    Stream,
    point_data,
    points,
    sentence_data,
    sentences,
)
from helpers.parity.parity_models import Classifier, gpt2


def test_logits_are_prepared_for_the_metrics(reference, ours, tmp_path):
    """`preprocess_logits_for_metrics` sees tensors; what it returns is what the metrics and
    `predict` see.
    """
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
        gpt2,
        sentence_data,
        {"eval_strategy": "epoch"},
        lambda api: dict(extras),
        test=lambda: sentences(7, seed=22),
    )
    assert_parity(reference, ours, case, tmp_path)
    assert len(shapes) == 6
    assert shapes[:3] == shapes[3:]


@pytest.mark.parametrize(
    "event", ["on_step_end", "on_substep_end", "on_epoch_begin", "on_pre_optimizer_step"]
)
@pytest.mark.parametrize("data", [points, NoisyPoints], ids=["", "data that draws"])
def test_evaluation_in_the_middle_of_training(reference, ours, tmp_path, event, data):
    """A callback evaluates and predicts on its own account; training goes on as if the reference
    had done it.

    Also between two micro-batches, whose gradients are added up; dropout is on, and the data may
    draw random numbers.
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

    case = Case(
        Classifier,
        point_data,
        {"gradient_accumulation_steps": 2, "num_train_epochs": 3},
        extras,
        subclass,
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    count = sum("middle_loss" in entry for entry in actual.history)
    assert count == (1 if event == "on_epoch_begin" else 2)
    assert not differences(predicted[:count], predicted[count:])


@pytest.mark.parametrize("count", [0, 3], ids=["no rows", "less than a batch"])
def test_evaluation_without_batches_draws_as_any_other(reference, ours, tmp_path, count):
    """Dropout of the steps that follow depends on the seed that each iteration of a loader draws."""
    case = Case(
        Classifier,
        lambda: {**point_data(), "eval_dataset": points(count)},
        {
            "eval_strategy": "steps",
            "eval_steps": 2,
            "dataloader_drop_last": True,
            "per_device_eval_batch_size": 4,
        },
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert not any("eval_loss" in entry for entry in actual.history)


class NoisyStream(Stream):
    """Draws for each item when it is read."""

    def __iter__(self):
        for item in self.items:
            yield {**item, "x": item["x"] + 0.1 * torch.randn(8)}


class DrawingClassifier(Classifier):
    """Draws in each forward pass, as masked autoencoders do, in evaluations too."""

    def forward(self, x, labels=None):
        return super().forward(x + 0.1 * torch.randn_like(x), labels)


@pytest.mark.parametrize(
    "eval_data", [NoisyPoints, lambda count: NoisyStream(points(count))], ids=["", "stream"]
)
def test_evaluation_draws_in_turn_with_the_model(reference, ours, tmp_path, eval_data):
    """Streams too: no batch more is read ahead than from data with a length."""
    case = Case(
        DrawingClassifier,
        lambda: {**point_data(), "eval_dataset": eval_data(11)},
        {"eval_strategy": "epoch", "per_device_eval_batch_size": 2},
        test=lambda: eval_data(9),
    )
    assert_parity(reference, ours, case, tmp_path)
