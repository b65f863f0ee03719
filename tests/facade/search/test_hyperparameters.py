"""Objectives and spaces of a search: those of the reference."""

import numpy as np
import pytest
import torch
from transformers import trainer_utils

from lightrainer.facade.search import hyperparameters
from lightrainer.facade.search.metric_objective import objective_value


class Trial:
    """Returns the name and the arguments of each call."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: (name, args, tuple(kwargs.items()))


def test_objectives_and_spaces():
    for metrics in (
        {"eval_loss": 2.0},
        {"eval_loss": 2.0, "epoch": 3, "eval_runtime": 1.0, "eval_samples_per_second": 3.0},
        {"eval_loss": 2.0, "eval_f1": 0.5, "eval_exact": 0.25, "epoch": 1},
        {"epoch": 1},
    ):
        before = dict(metrics)
        ours = hyperparameters.default_compute_objective(metrics)
        assert ours == trainer_utils.default_compute_objective(metrics)
        assert metrics == before
    measured = dict.fromkeys(("eval_model_preparation_time", "eval_mem_cpu_alloc_delta"), 9.0)
    assert hyperparameters.default_compute_objective({"eval_loss": 2.0, **measured}) == 2.0, (
        "5.3.0 adds them up"
    )
    assert hyperparameters.default_hp_space_optuna(
        Trial()
    ) == trainer_utils.default_hp_space_optuna(Trial())
    assert hyperparameters.BestRun("1", 2.0, {}) == trainer_utils.BestRun("1", 2.0, {})


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.array([0.5]), torch.tensor(0.5), torch.tensor([0.5])]
)
def test_objective_value_in_an_array_or_a_tensor(value):
    assert objective_value(lambda metrics: value, {"eval_loss": 2.0}, 1) == 0.5


@pytest.mark.parametrize("value", [None, "0.5", np.array([0.5, 1.0]), torch.tensor([0.5, 1.0])])
def test_objective_value_that_is_not_a_number_is_refused(value):
    with pytest.raises(ValueError, match=r"compute_objective returned .* not a number"):
        objective_value(lambda metrics: value, {"eval_loss": 2.0}, 1)
