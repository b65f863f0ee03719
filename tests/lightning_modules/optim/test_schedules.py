"""The schedules give the reference's learning rates to the last bit, and exchange their states
with it.
"""

import logging
import math

import pytest
import torch
from transformers import optimization as reference

from lightrainer import TrainingArguments
from lightrainer.lightning_modules.common.enums import SchedulerType
from lightrainer.lightning_modules.optim import schedules as ours

RATE = 3e-4

WSD = {"num_decay_steps": 20, "min_lr_ratio": 0.1}
CASES = [
    ("constant", None, None, {}),
    ("constant_with_warmup", 0, None, {}),
    ("constant_with_warmup", 7, None, {}),
    ("linear", 0, 10, {}),
    ("linear", 7, 53, {}),
    ("linear", 20, 10, {}),
    ("linear", 10, 10, {}),
    ("cosine", 0, 10, {}),
    ("cosine", 7, 53, {}),
    ("cosine", 7, 53, {"num_cycles": 1.7}),
    ("cosine_with_restarts", 7, 53, {}),
    ("cosine_with_restarts", 3, 53, {"num_cycles": 4}),
    ("polynomial", 7, 53, {}),
    ("polynomial", 0, 53, {"power": 2.3, "lr_end": 1e-5}),
    ("inverse_sqrt", 7, None, {}),
    ("inverse_sqrt", 0, None, {}),
    ("cosine_with_min_lr", 7, 53, {"min_lr": 1e-5}),
    ("cosine_with_min_lr", 7, 53, {"min_lr_rate": 0.1, "num_cycles": 1.3}),
    ("cosine_warmup_with_min_lr", 7, 53, {"min_lr": 1e-5}),
    (
        "cosine_warmup_with_min_lr",
        7,
        53,
        {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2, "num_cycles": 1},
    ),
    ("cosine_warmup_with_min_lr", 1, 5, {"min_lr_rate": 0, "warmup_lr_rate": 0}),
    ("warmup_stable_decay", 7, 53, {"num_decay_steps": 20}),
    ("warmup_stable_decay", 7, None, {"num_decay_steps": 20, "num_stable_steps": 5}),
    ("warmup_stable_decay", 7, 20, {"num_decay_steps": 20, "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", 0, None, {"num_decay_steps": 0.3, "num_stable_steps": 2.7}),
    *(
        ("warmup_stable_decay", 7, 53, {**WSD, "warmup_type": up, "decay_type": down})
        for up, down in (("cosine", "linear"), ("1-sqrt", "1-sqrt"), ("linear", "cosine"))
    ),
]
IDS = [f"{case[0]}-{number}" for number, case in enumerate(CASES)]


def make_optimizer():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return torch.optim.SGD(
        [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 1 / 3}], lr=RATE
    )


def build(module, name, warmup, total, kwargs):
    optimizer = make_optimizer()
    return optimizer, module.get_scheduler(name, optimizer, warmup, total, kwargs)


def rates(optimizer, scheduler, steps):
    values = []
    for _ in range(steps):
        values.append([float(group["lr"]).hex() for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return values


@pytest.mark.parametrize(("name", "warmup", "total", "kwargs"), CASES, ids=IDS)
def test_whole_run_equals_reference(name, warmup, total, kwargs):
    """Every learning rate, also past the end, has the reference's bits."""
    expected = rates(*build(reference, name, warmup, total, kwargs), 70)
    assert rates(*build(ours, name, warmup, total, kwargs), 70) == expected


def test_schedules_are_all_compared():
    # below
    waiting = {"reduce_lr_on_plateau"}
    assert {case[0] for case in CASES} | waiting == {kind.value for kind in SchedulerType}
    assert set(ours.SCHEDULES) == set(SchedulerType)


def test_plateau_follows_reference():
    """The plateau schedule takes the same steps down."""
    losses = [3.0, 2.0, 2.0, 2.0, 2.0, 1.9, 1.9, 1.9, 1.9, 1.9]
    rate_lists = []
    for module in (ours, reference):
        optimizer, scheduler = build(
            module, "reduce_lr_on_plateau", None, None, {"patience": 1, "factor": 0.3}
        )
        rate_lists.append([])
        for loss in losses:
            scheduler.step(loss)
            rate_lists[-1].append(optimizer.param_groups[0]["lr"])
    assert rate_lists[0] == rate_lists[1]
    assert len(set(rate_lists[0])) > 1


LACKING = [
    ("linear", None, 10, {}, "num_warmup_steps"),
    ("cosine", 3, None, {}, "num_training_steps"),
    ("constant_with_warmup", None, None, {}, "num_warmup_steps"),
    ("inverse_sqrt", None, None, {}, "num_warmup_steps"),
    ("warmup_stable_decay", 3, 10, {}, "num_decay_steps"),
    ("warmup_stable_decay", 3, None, {"num_decay_steps": 4}, "num_stable_steps"),
    ("cosine_with_min_lr", 3, 10, {}, "min_lr_rate"),
    ("cosine_warmup_with_min_lr", 3, 10, {"min_lr": 1e-6, "min_lr_rate": 0.1}, "min_lr"),
    ("polynomial", 3, 10, {"lr_end": 0.1}, "lr_end"),
]


@pytest.mark.parametrize(("name", "warmup", "total", "kwargs", "missing"), LACKING)
def test_missing_values_and_impossible_ones_are_named(name, warmup, total, kwargs, missing):
    with pytest.raises(ValueError, match=missing):
        build(ours, name, warmup, total, kwargs)


def test_unknown_name_and_argument():
    """An unknown schedule, argument or curve is an error that lists the known ones."""
    with pytest.raises(ValueError, match="cosine"):
        build(ours, "cosin", 3, 10, {})
    with pytest.raises(ValueError, match="linear"):
        ours.ScheduleConfig(name="liner")
    with pytest.raises(TypeError, match=r"\['cycles'\].*num_cycles"):
        build(ours, "cosine", 3, 10, {"cycles": 2})
    with pytest.raises(ValueError, match=r"decay_type.*1-sqrt"):
        build(ours, "warmup_stable_decay", 3, 10, {"num_decay_steps": 2, "decay_type": "exp"})


def test_schedule_wsd_lengths_warn_as_in_the_reference():
    arguments = ("warmup_stable_decay", 7, 53, {"num_decay_steps": 20, "num_stable_steps": 5})
    with pytest.warns(UserWarning, match="num_stable_steps"):
        expected = rates(*build(reference, *arguments), 60)
    with pytest.warns(UserWarning, match="num_stable_steps"):
        assert rates(*build(ours, *arguments), 60) == expected


def test_inverse_sqrt_takes_its_timescale():
    """5.3.0 drops the schedule's own arguments in `get_scheduler`; 5.23 passes them on, and so
    do we.
    """
    actual = rates(*build(ours, "inverse_sqrt", 3, None, {"timescale": 50}), 40)
    optimizer = make_optimizer()
    assert actual == rates(
        optimizer, reference.get_inverse_sqrt_schedule(optimizer, 3, timescale=50), 40
    )
    assert actual != rates(*build(reference, "inverse_sqrt", 3, None, {"timescale": 50}), 40)


def test_arguments_of_constant_schedules_are_not_dropped_in_silence(caplog):
    with caplog.at_level(logging.WARNING):
        build(ours, "constant", None, None, {"num_cycles": 2})
    assert "num_cycles" in caplog.text
    assert "is ignored" in caplog.text


def test_polynomial_with_nothing_but_warmup():
    """The reference divides by zero at the last step; here the rate ends at `lr_end`."""
    optimizer, scheduler = build(ours, "polynomial", 5, 5, {"lr_end": 1e-5})
    rates(optimizer, scheduler, 6)
    assert math.isclose(optimizer.param_groups[0]["lr"], 1e-5)
    with pytest.raises(ZeroDivisionError):
        rates(*build(reference, "polynomial", 5, 5, {"lr_end": 1e-5}), 6)


NAN, INFINITE = float("nan"), float("inf")
NUMBERS = {
    "linear": {
        "num_warmup_steps": [-1, NAN, "3", True],
        "num_training_steps": [-5, INFINITE, "10", [1]],
    },
    "cosine": {"num_cycles": [-0.5, NAN, "1", None]},
    "cosine_with_restarts": {"num_cycles": [-1, "1"]},
    "polynomial": {"power": [-1, NAN, "1"], "lr_end": [-1e-7, NAN, "0"]},
    "inverse_sqrt": {"timescale": [0, -3, NAN, "5"]},
    "cosine_with_min_lr": {"min_lr": [-1e-5, NAN, "0"], "min_lr_rate": [-0.1, "0.1"]},
    "cosine_warmup_with_min_lr": {"min_lr_rate": [-0.1], "warmup_lr_rate": [-0.1, NAN, "0"]},
    "warmup_stable_decay": {
        "num_decay_steps": [-5, NAN, "5"],
        "num_stable_steps": [-1, "5"],
        "min_lr_ratio": [-1, "0"],
    },
    "reduce_lr_on_plateau": {
        "patience": [-1, "3"],
        "factor": [-0.5, 0, "x"],
        "cooldown": [-1],
        "min_lr": [-1, [-1]],
    },
}
WRONG = [
    (name, key, value)
    for name, keys in NUMBERS.items()
    for key, values in keys.items()
    for value in values
]


@pytest.mark.parametrize(("name", "key", "value"), WRONG)
def test_numbers_that_cannot_be_are_named(name, key, value):
    """By the function, by `get_scheduler`, by a config, and by the training arguments."""
    options = (
        {"num_decay_steps": 2} if name == "warmup_stable_decay" and key != "num_decay_steps" else {}
    )
    options |= {"min_lr_rate": 0.1} if key == "warmup_lr_rate" else {}
    steps = {"num_warmup_steps": 0, "num_training_steps": 10}
    steps, options = (
        ({**steps, key: value}, options) if key in steps else (steps, {**options, key: value})
    )
    doors = [
        lambda: ours.get_scheduler(
            name, make_optimizer(), **steps, scheduler_specific_kwargs=options
        )
    ]
    if key not in steps:
        doors += [lambda: ours.ScheduleConfig(name=name, kwargs=options)]
        doors += [
            lambda: TrainingArguments(
                use_cpu=True, lr_scheduler_type=name, lr_scheduler_kwargs=options
            )
        ]
    for door in doors:
        with pytest.raises((ValueError, TypeError), match=rf"`{key}` must be .*, but is "):
            door()
