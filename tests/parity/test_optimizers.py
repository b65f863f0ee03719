"""Adafactor, and torch's optimizers with their own arguments: same bits, also in saved states."""

import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, Run, assert_parity, assert_same, run
from helpers.parity.interrupted_runs import DIRECTIONS, exchanged
from helpers.parity.parity_datasets import point_data, sentence_data
from helpers.parity.parity_models import Classifier, TokenModel, gpt2

SAVED = {"save_strategy": "steps", "save_steps": 4}
ARGUMENTS = {
    "adafactor, decay": {
        "optim": "adafactor",
        "weight_decay": 0.1,
        "gradient_accumulation_steps": 2,
    },
    "adafactor, cosine": {"optim": "adafactor", "lr_scheduler_type": "cosine", "warmup_steps": 2},
    "adafactor, bf16": {"optim": "adafactor", "bf16": True},
    "sgd, dampening": {"optim": "sgd", "optim_args": "momentum=0.9, dampening=0.1"},
    "adagrad": {"optim": "adagrad", "optim_args": "lr_decay=0.01,eps=1e-6", "weight_decay": 0.1},
    "rmsprop": {"optim": "rmsprop", "optim_args": "momentum=0.5,alpha=0.9,eps=1e-7,centered=yes"},
}


def assert_same_states(expected: Run, actual: Run) -> None:
    """The saved states of optimizer and schedule are the same, and the optimizer has one."""
    folders = sorted(path.name for path in expected.folder.iterdir())
    assert folders
    for folder in folders:
        for name in ("optimizer.pt", "scheduler.pt"):
            left, right = (
                torch.load(result.folder / folder / name, weights_only=True)
                for result in (expected, actual)
            )
            assert not differences(left, right, f"{folder}/{name}")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_training_and_its_checkpoints(reference, ours, tmp_path, name):
    case = Case(TokenModel, sentence_data, {**SAVED, **ARGUMENTS[name]})
    expected, actual = assert_parity(reference, ours, case, tmp_path)
    assert_same_states(expected, actual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_adafactor_with_weights_of_another_type(reference, ours, tmp_path, dtype):
    """Its state is float32 where the weights are of half the size."""
    case = Case(
        lambda: gpt2().to(dtype),
        sentence_data,
        {"optim": "adafactor", "weight_decay": 0.1, **SAVED},
    )
    trained = [run(api, case, tmp_path / api.__name__) for api in (reference, ours)]
    for result in trained:
        result.weights = {name: weight.to(torch.float64) for name, weight in result.weights.items()}
        states = result.trainer.optimizer.state_dict()["state"].values()
        expected = torch.float32 if dtype is torch.bfloat16 else dtype
        assert {state["exp_avg_sq"].dtype for state in states if "exp_avg_sq" in state} == {
            expected
        }
    assert_same(*trained)
    assert_same_states(*trained)


OWN = {
    "relative": {"warmup_init": False},
    "warm-up": {"warmup_init": True, "weight_decay": 0.01},
    "mean": {"beta1": 0.9, "clip_threshold": 0.5, "decay_rate": -0.7},
    "not scaled": {"scale_parameter": False},
}


def with_own_schedule(options, initial_lr=0.0):
    """The subclass of a case whose Trainer makes an Adafactor that sets its learning rate
    itself.
    """

    def subclass(base):
        if base.__module__.startswith("lightrainer"):
            from lightrainer import Adafactor
            from lightrainer.lightning_modules import AdafactorSchedule
        else:
            from transformers.optimization import Adafactor, AdafactorSchedule

        class WithOwnSchedule(base):
            def __init__(self, model, **keywords):
                optimizer = Adafactor(model.parameters(), **options)
                schedule = AdafactorSchedule(optimizer, initial_lr)
                super().__init__(model=model, optimizers=(optimizer, schedule), **keywords)

        return WithOwnSchedule

    return subclass


@pytest.mark.parametrize("name", OWN)
def test_adafactor_with_its_own_schedule(reference, ours, tmp_path, name):
    """The rates that it shows are logged; those before the first step are the initial one."""
    case = Case(Classifier, point_data, dict(SAVED), subclass=with_own_schedule(OWN[name], 0.25))
    expected, actual = assert_parity(reference, ours, case, tmp_path)
    assert_same_states(expected, actual)
    rates = [entry["learning_rate"] for entry in actual.history if "learning_rate" in entry]
    assert rates[0] == 0.25
    # Without a warm-up the rate of the first steps is the largest there is, and is scaled by the
    # weights alone.
    assert len(set(rates[1:])) > 1 or name == "not scaled"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_checkpoints_of_an_adafactor_with_its_own_schedule_are_exchanged(
    reference, ours, tmp_path, direction
):
    case = Case(Classifier, point_data, subclass=with_own_schedule(OWN["mean"]))
    exchanged(reference, ours, case, tmp_path, direction)


def test_arguments_that_adafactor_does_not_take(reference, ours, tmp_path, caplog):
    """Both train as without them, but the reference says nothing."""
    case = Case(Classifier, point_data, {"optim": "adafactor", "optim_args": "clip_threshold=0.1"})
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert "clip_threshold" in caplog.text
    without = run(ours, case.but(arguments={"optim_args": None}), tmp_path / "without")
    assert not differences(actual.weights, without.weights)
