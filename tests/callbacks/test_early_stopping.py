"""Early stopping: what its switches do beside the reference is in test_flow.py; here are its
errors and its state.
"""

import logging
from types import SimpleNamespace

import pytest
from transformers import trainer_callback as reference

from lightrainer.callbacks import (
    EarlyStoppingCallback,
    EarlyStoppingError,
    TrainerControl,
    TrainerState,
)


def arguments(**changed):
    values = {
        "metric_for_best_model": "loss",
        "eval_strategy": "steps",
        "load_best_model_at_end": True,
    }
    return SimpleNamespace(**(values | {"greater_is_better": False} | changed))


@pytest.mark.parametrize("expected", [ValueError, AssertionError, EarlyStoppingError])
@pytest.mark.parametrize("wrong", [{"metric_for_best_model": None}, {"eval_strategy": "no"}])
def test_arguments_that_give_nothing_to_watch_are_refused_when_training_begins(wrong, expected):
    with pytest.raises(expected, match=next(iter(wrong))):
        EarlyStoppingCallback().on_train_begin(arguments(**wrong), TrainerState(), TrainerControl())


@pytest.mark.parametrize("greater", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 0.5, -0.5])
@pytest.mark.parametrize("best", [None, 1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("value", [0.4, 0.5, 1.0, 1.5, 1.6, float("nan"), float("inf")])
def test_early_stopping_comparisons_equal_the_reference(value, best, threshold, greater):
    counts = []
    for cls in (EarlyStoppingCallback, reference.EarlyStoppingCallback):
        callback = cls(2, threshold)
        callback.early_stopping_patience_counter = 1
        callback.check_metric_value(
            arguments(greater_is_better=greater),
            TrainerState(best_metric=best),
            TrainerControl(),
            value,
        )
        counts.append(callback.early_stopping_patience_counter)
    assert counts[0] == counts[1]


def test_early_stopping_skips_an_evaluation_without_the_metric_and_warns(caplog):
    callback, control = EarlyStoppingCallback(), TrainerControl()
    with caplog.at_level(logging.WARNING, "lightrainer"):
        callback.on_evaluate(
            arguments(metric_for_best_model="f1"), TrainerState(), control, {"eval_loss": 1.0}
        )
    assert "eval_f1" in caplog.text
    assert "this evaluation has only: eval_loss" in caplog.text
    assert callback.early_stopping_patience_counter == 0
    assert not control.should_training_stop
