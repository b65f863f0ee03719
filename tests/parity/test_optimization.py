"""Frozen parameters and optimizers of the user give the same bits; see argument_effects.py for
those by name.
"""

import pytest
import torch

from helpers.parity.harness import Case, assert_parity, run
from helpers.parity.parity_datasets import point_data
from helpers.parity.parity_models import Classifier


def test_frozen_parameters(reference, ours, tmp_path):
    def model():
        classifier = Classifier()
        classifier.first.requires_grad_(False)
        return classifier

    _, actual = assert_parity(reference, ours, Case(model, point_data), tmp_path)
    torch.manual_seed(7)
    assert torch.equal(actual.weights["first.weight"], model().first.weight)


@pytest.mark.parametrize("with_schedule", [True, False])
def test_optimization_with_an_optimizer_of_the_user(reference, ours, tmp_path, with_schedule):
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


def test_optimization_with_an_optimizer_class_of_the_user(reference, ours, tmp_path):
    extras = {"optimizer_cls_and_kwargs": (torch.optim.Adagrad, {"lr": 0.02, "lr_decay": 0.01})}
    case = Case(Classifier, point_data, {"weight_decay": 0.1}, extras=lambda api: dict(extras))
    assert_parity(reference, ours, case, tmp_path)


def replaces_optimizer(trainer):
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.05, momentum=0.9)


def replaces_schedule(trainer):
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2, gamma=0.5)


def replaces_both(trainer):
    replaces_optimizer(trainer)
    replaces_schedule(trainer)


def doubles_accumulation(trainer):
    trainer.args.gradient_accumulation_steps *= 2


@pytest.mark.parametrize(
    ("change", "event"),
    [
        (replaces_both, "on_train_begin"),
        (replaces_optimizer, "on_step_end"),
        (replaces_schedule, "on_train_begin"),
        (replaces_schedule, "on_step_end"),
        (replaces_both, "on_epoch_begin"),
        (doubles_accumulation, "on_epoch_begin"),
    ],
)
def test_optimization_changed_by_a_callback(reference, ours, tmp_path, change, event):
    """At its start, between two steps, and between two epochs."""

    def changing(api):
        class Changing(api.TrainerCallback):
            trainer = None

        def change_once(self, args, state, control, **_):
            is_later_epoch = event != "on_epoch_begin" or state.epoch >= 1
            if self.trainer is not None and is_later_epoch:
                change(self.trainer)
                self.trainer = None

        setattr(Changing, event, change_once)
        return {"callbacks": [Changing()]}

    def telling_its_callback(base):
        class Telling(base):
            def train(self, *positional, **keywords):
                for callback in self.callback_handler.callbacks:
                    if type(callback).__name__ == "Changing":
                        callback.trainer = self
                return super().train(*positional, **keywords)

        return Telling

    case = Case(
        Classifier, point_data, {"max_grad_norm": 0.5}, changing, subclass=telling_its_callback
    )
    assert_parity(reference, ours, case, tmp_path)
    unchanged = run(ours, case.but(subclass=lambda base: base), tmp_path / "unchanged")
    changed = run(ours, case, tmp_path / "changed")
    assert changed.history != unchanged.history
