"""Logged values are the same; argument_effects.py has the steps."""

import math

import pytest

from helpers.parity.harness import Case, assert_parity
from helpers.parity.parity_datasets import point_data, points
from helpers.parity.parity_models import Classifier, SometimesNotANumber


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize(("accumulation", "logging_steps"), [(1, 1), (1, 4), (3, 2)])
def test_losses_that_are_not_numbers(
    reference, ours, tmp_path, filtered, accumulation, logging_steps
):
    """With the filter such a loss counts as the mean of those since the last log; without it NaN
    is shown.
    """
    arguments = {
        "logging_nan_inf_filter": filtered,
        "logging_steps": logging_steps,
        "num_train_epochs": 3,
    }
    arguments["gradient_accumulation_steps"] = accumulation
    _, actual = assert_parity(
        reference, ours, Case(SometimesNotANumber, point_data, arguments), tmp_path
    )
    losses = [entry["loss"] for entry in actual.history if "loss" in entry]
    assert any(math.isnan(loss) for loss in losses) is not filtered
    assert all(item["x"].isfinite().all() for item in points(22))


def test_logging_keeps_a_log_of_the_user(reference, ours, tmp_path):
    """`trainer.log` called in `compute_loss`, and a subclass's `log` that adds to its argument."""

    def subclass(base):
        class Talkative(base):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
                self.log({"spread": float(outputs["logits"].detach().std())})
                return (loss, outputs) if return_outputs else loss

            def log(self, logs, start_time=None):
                super().log({**logs, "extra": len(logs)}, start_time)

        return Talkative

    case = Case(
        Classifier, point_data, {"logging_steps": 3, "eval_strategy": "epoch"}, subclass=subclass
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert any("spread" in entry for entry in actual.history)
