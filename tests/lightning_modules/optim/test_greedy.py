"""GreedyLR: rates that follow a metric; `tests/parity/test_added_later.py` compares it with the
reference.
"""

import logging
import math

import pytest
import torch

from lightrainer import GreedyLR


def scheduled(rate=0.1, groups=1, **settings):
    parameters = [
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate * (1 + i)}
        for i in range(groups)
    ]
    return GreedyLR(
        torch.optim.SGD(parameters, lr=rate),
        **{"factor": 0.5, "patience": 0, "max_lr": 9.0, **settings},
    )


def rates(schedule, metrics):
    """The rate of the last group after each metric, in units of the first one."""
    seen = []
    for metric in metrics:
        schedule.step(metric)
        seen.append(round(schedule.get_last_lr()[-1] / schedule._init_lrs[-1], 6))
    assert schedule.get_last_lr() == [group["lr"] for group in schedule.optimizer.param_groups]
    return seen


# Settings, metrics, and the rates after them: seen of transformers 5.23.0.
SEEN = {
    "better and worse": ({}, [3, 2, 2, 1, 1.5, 0.9], [2, 4, 2, 4, 2, 4]),
    "patience is for both": ({"patience": 1}, [3, 2, 1, 1, 1, 0.5, 0.4], [1, 2, 2, 2, 1, 1, 2]),
    "patience is of steps in a row": ({"patience": 1}, [3, 4, 2, 4, 1, 4], [1] * 6),
    "no metric counts after a fall": ({"cooldown": 2}, [3, 3, 1, 9, 2, 2], [2, 1, 1, 1, 2, 1]),
    "nor after a rise": ({"warmup": 2}, [3, 1, 9, 2, 2], [2, 2, 2, 4, 4]),
    "a higher metric": ({"mode": "max"}, [0.1, 0.2, 0.2], [2, 4, 2]),
    "a share of the best": (
        {"threshold": 0.1, "threshold_mode": "rel"},
        [1.0, 0.95, 0.9, 0.8],
        [2, 1, 0.5, 1],
    ),
    "bounds": ({"max_lr": 0.3, "min_lr": 0.07}, [3, 2, 1, 1, 1, 1], [2, 3, 3, 1.5, 0.75, 0.7]),
    "small changes": ({"eps": 0.06}, [3, 2, 2, 2, 2], [2, 4, 2, 1, 1]),
    "the mean of two": ({"smooth": True, "window_size": 2}, [1.0, 0.5, 0.9, 0.2], [2, 4, 8, 16]),
    "it begins anew": (
        {"min_lr": 0.05, "reset_start": 3},
        [3] * 8,
        [2, 1, 0.5, 0.5, 1, 2, 1, 0.5],
    ),
    "of several groups": ({"groups": 2, "min_lr": [0.05, 0.15]}, [3, 3, 3], [2, 1, 0.75]),
    "not a number": ({}, [3, math.nan, 1, math.inf], [2, 1, 2, 1]),
}


@pytest.mark.parametrize("name", SEEN)
def test_rates_are_those_of_the_reference(name):
    settings, metrics, expected = SEEN[name]
    assert rates(scheduled(**settings), metrics) == expected


def test_greedy_lr_resumes_from_its_state():
    metrics = [1.0, 0.5, 0.9, 0.2, 0.4, 0.3, 0.9, 0.9, 0.1]
    settings = {"smooth": True, "window_size": 3, "cooldown": 1, "warmup": 1}
    whole, stopped, resumed = scheduled(**settings), scheduled(**settings), scheduled(**settings)
    for metric in metrics[:5]:
        stopped.step(metric)
    resumed.optimizer.load_state_dict(stopped.optimizer.state_dict())
    resumed.load_state_dict(stopped.state_dict())
    for metric in metrics[5:]:
        stopped.step(-99.0)  # the two share nothing
        resumed.step(metric)
    for metric in metrics:
        whole.step(metric)
    assert resumed.state_dict() == whole.state_dict() != stopped.state_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": 1.0}, "`factor` is 1.0"),
        ({"max_lr": [0.1, 0.2]}, "`max_lr` has 2 rates"),
        ({"mode": "least"}, "least"),
    ],
)
def test_greedy_lr_options_that_cannot_be_are_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        scheduled(**settings)


def test_greedy_rate_that_cannot_fall_warns(caplog):
    """With the default `min_lr` that is every usual rate of AdamW."""
    with caplog.at_level(logging.WARNING):
        scheduled(rate=5e-5)
    assert "5e-05 is below `min_lr` (0.001)" in caplog.text
    caplog.clear()
    scheduled(rate=5e-5, min_lr=0)
    assert not caplog.text
