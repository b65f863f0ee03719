"""Norms of the gradients of each layer."""

import math

import pytest
import torch

from helpers.callbacks.small_training import train_small, training_logs
from lightrainer import TrainerCallback
from lightrainer.callbacks import GradientNormCallback, gradient_norms

LAYERS = {"embedding", "h.0", "h.1", "h.2", "lm_head"}


def norms(entry):
    return {
        name.removeprefix("grad_norm/"): value
        for name, value in entry.items()
        if name.startswith("grad_norm/")
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_grad_norm": 0.1},
        {"max_grad_norm": 0.0, "gradient_accumulation_steps": 2},
        {"logging_strategy": "epoch"},
    ],
    ids=str,
)
def test_gradient_norms_add_up_to_the_total(tmp_path, changes):
    """Before clipping, as `grad_norm` is."""
    logs = training_logs(train_small(tmp_path, [GradientNormCallback()], **changes))
    assert logs
    for entry in logs:
        gradient_norms = norms(entry)
        assert set(gradient_norms) == LAYERS
        whole = math.sqrt(sum(value * value for value in gradient_norms.values()))
        assert whole == pytest.approx(entry["grad_norm"], rel=1e-4)
    assert len({norms(entry)["h.0"] for entry in logs}) == len(logs)


def test_gradient_norm_of_each_layer(tmp_path):
    class Looks(TrainerCallback):
        found = {}

        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            gradients = [weight.grad.flatten() for weight in model.h[1].parameters()]
            self.found[state.global_step + 1] = torch.cat(gradients).norm().item()

    for entry in training_logs(
        train_small(tmp_path, [GradientNormCallback(), Looks()], max_grad_norm=0.0)
    ):
        assert norms(entry)["h.1"] == pytest.approx(Looks.found[entry["step"]], rel=1e-5)


def test_gradient_norms_are_computed_only_when_logged(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(
        gradient_norms, "dense_values", lambda gradient: steps.append(1) or gradient
    )
    train_small(tmp_path, [GradientNormCallback()], logging_steps=5, logging_first_step=True)
    # 1, 5, 10 and 15 of 16 steps
    assert len(steps) == len(list(train_small(tmp_path).model.parameters())) * 4


def test_layers_can_be_chosen(tmp_path):
    callback = GradientNormCallback(lambda name: "head" if name.startswith("lm_head") else None)
    assert set(norms(training_logs(train_small(tmp_path, [callback]))[0])) == {"head"}
