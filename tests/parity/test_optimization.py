"""Frozen parameters and optimizers of the user give the same bits; see argument_effects.py for
those by name.
"""

import pytest
import torch

from helpers.parity.harness import Case, assert_parity
from helpers.parity.parity_datasets import point_data
from helpers.parity.parity_models import Classifier


def test_frozen_parameters(reference, ours, tmp_path):
    def model():
        made = Classifier()
        made.first.requires_grad_(False)
        return made

    _, actual = assert_parity(reference, ours, Case(model, point_data), tmp_path)
    torch.manual_seed(7)
    assert torch.equal(actual.weights["first.weight"], model().first.weight)


@pytest.mark.parametrize("with_schedule", [True, False])
def test_an_optimizer_of_the_user(reference, ours, tmp_path, with_schedule):
    """`optimizers=(optimizer, schedule)`, and with only the first of them."""

    def subclass(base):
        class WithOwnOptimizer(base):
            def __init__(self, model, **keywords):
                optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, momentum=0.5)
                schedule = (
                    torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
                    if with_schedule
                    else None
                )
                super().__init__(model=model, optimizers=(optimizer, schedule), **keywords)

        return WithOwnOptimizer

    case = Case(Classifier, point_data, {"gradient_accumulation_steps": 2}, subclass=subclass)
    assert_parity(reference, ours, case, tmp_path)


def test_an_optimizer_class_of_the_user(reference, ours, tmp_path):
    extras = {"optimizer_cls_and_kwargs": (torch.optim.Adagrad, {"lr": 0.02, "lr_decay": 0.01})}
    case = Case(Classifier, point_data, {"weight_decay": 0.1}, extras=lambda api: dict(extras))
    assert_parity(reference, ours, case, tmp_path)
