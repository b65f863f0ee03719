"""The host waits for the device at logs, and at most once for a batch of an evaluation."""

import pytest
import torchmetrics
from counted_waits import CONTROL, SETTINGS, TOKENS, Setting, waits_between_logs, waits_of_batches

import lightrainer
from lightrainer import BatchMetrics

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_between_logs_do_not_wait(name):
    waits = waits_between_logs(lightrainer, SETTINGS[name], steps=3)
    assert waits.total() == 3 * SETTINGS[name].waits, waits


def test_a_loss_that_is_read_is_counted():
    waits = waits_between_logs(lightrainer, CONTROL, steps=3)
    assert waits.total() == 3
    assert all(line.startswith("counted_waits.py:") for _, line in waits)


def test_batches_that_are_not_page_locked_are_counted():
    waits = waits_between_logs(lightrainer, Setting({"dataloader_pin_memory": False}), steps=3)
    assert waits.total() == 3 * 3, "ids, mask and labels of three steps"


def number_of_samples(prediction, compute_result=True):
    return {"samples": len(prediction.predictions)}


def metrics_of_two_kinds():
    """They need the labels that count, and the second one probabilities, too."""
    names = {"num_classes": TOKENS, "validate_args": False}
    return BatchMetrics(
        {
            "accuracy": torchmetrics.Accuracy("multiclass", **names),
            "calibration": torchmetrics.CalibrationError("multiclass", **names),
        }
    )


METRICS = {"compute_metrics": number_of_samples}

EVALUATIONS = {
    "loss": (Setting(), 0),
    "predictions": (Setting(parts=METRICS), 1),
    "predictions, apart": (Setting({"eval_do_concat_batches": False}, parts=METRICS), 1),
    "predictions, inputs and losses": (Setting({"include_for_metrics": ["inputs", "loss"]}, parts=METRICS), 1),
    "predictions, moved at each batch": (Setting({"eval_accumulation_steps": 1}, parts=METRICS), 1),
    "predictions, gathered as objects": (Setting({"eval_use_gather_object": True}, parts=METRICS), 1),
    "metrics of each batch": (Setting({"batch_eval_metrics": True}, parts=METRICS), 0),
    "bf16": (Setting({"bf16": True}, parts=METRICS), 1),
    "torchmetrics": (Setting(parts={"compute_metrics": metrics_of_two_kinds()}), 1),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_waits_at_most_once_for_a_batch(name):
    setting, allowed = EVALUATIONS[name]
    waits = waits_of_batches(lightrainer, setting, "evaluate", batches=3)
    assert waits.total() == 3 * allowed, waits


def test_predict_waits_once_for_a_batch():
    assert waits_of_batches(lightrainer, Setting(), "predict", batches=3).total() == 3
