"""Optimizers, schedules, clipping and precision give the same bits."""

import pytest
import torch
from datasets_for_parity import point_data, sentence_data
from harness import Case, assert_parity
from models import Classifier, TokenModel, gpt2

SCHEDULES = {
    "linear": {"lr_scheduler_type": "linear"},
    "linear, warm-up in steps": {"lr_scheduler_type": "linear", "warmup_steps": 3},
    "linear, warm-up as a share": {"lr_scheduler_type": "linear", "warmup_steps": 0.3},
    "cosine": {"lr_scheduler_type": "cosine"},
    "cosine, warm-up in steps": {"lr_scheduler_type": "cosine", "warmup_steps": 3},
    "cosine, warm-up as a share": {"lr_scheduler_type": "cosine", "warmup_steps": 0.3},
    "cosine, half a wave more": {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 1.0}},
    "constant": {"lr_scheduler_type": "constant"},
    "constant, warm-up in steps": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3},
    "constant, warm-up as a share": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.3},
    "polynomial": {"lr_scheduler_type": "polynomial", "warmup_steps": 2},
    "inverse square root": {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2},
    "cosine with restarts": {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(reference, ours, tmp_path, name):
    _, actual = assert_parity(reference, ours, Case(Classifier, point_data, SCHEDULES[name]), tmp_path)
    assert len({entry["learning_rate"] for entry in actual.history if "learning_rate" in entry}) > 1 or (
        name == "constant"
    )


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused", "sgd"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_optimizers(reference, ours, tmp_path, optimizer, weight_decay):
    """Weight decay leaves out biases and the LayerNorm."""
    arguments = {"optim": optimizer, "weight_decay": weight_decay, "gradient_accumulation_steps": 2}
    _, actual = assert_parity(reference, ours, Case(Classifier, point_data, arguments), tmp_path)
    groups = actual.trainer.optimizer.param_groups
    assert sorted(group["weight_decay"] for group in groups) == [0.0, weight_decay]


def test_the_numbers_of_adam(reference, ours, tmp_path):
    arguments = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-5, "weight_decay": 0.01}
    assert_parity(reference, ours, Case(gpt2, sentence_data, arguments), tmp_path)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.05, 1.0, 1000.0])
def test_clipping(reference, ours, tmp_path, max_grad_norm):
    """The norm before clipping is logged; without clipping too."""
    arguments = {"max_grad_norm": max_grad_norm, "optim": "sgd", "gradient_accumulation_steps": 2}
    _, actual = assert_parity(reference, ours, Case(TokenModel, sentence_data, arguments), tmp_path)
    assert all("grad_norm" in entry for entry in actual.history if "loss" in entry)


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
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5) if with_schedule else None
                super().__init__(model=model, optimizers=(optimizer, schedule), **keywords)

        return WithOwnOptimizer

    case = Case(Classifier, point_data, {"gradient_accumulation_steps": 2}, subclass=subclass)
    assert_parity(reference, ours, case, tmp_path)


def test_an_optimizer_class_of_the_user(reference, ours, tmp_path):
    extras = {"optimizer_cls_and_kwargs": (torch.optim.Adagrad, {"lr": 0.02, "lr_decay": 0.01})}
    case = Case(Classifier, point_data, {"weight_decay": 0.1}, extras=lambda api: dict(extras))
    assert_parity(reference, ours, case, tmp_path)


def test_a_schedule_that_looks_at_the_metric(reference, ours, tmp_path):
    """A plateau schedule is stepped by the evaluation."""
    arguments = {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
        "eval_strategy": "steps",
        "eval_steps": 2,
        "learning_rate": 0.1,
        "metric_for_best_model": "loss",
    }
    assert_parity(reference, ours, Case(Classifier, point_data, arguments), tmp_path)


@pytest.mark.parametrize("model", [Classifier, gpt2], ids=["plain module", "gpt2"])
def test_bfloat16(reference, ours, tmp_path, model):
    """Mixed precision on the CPU rounds in the same places."""
    data = sentence_data if model is gpt2 else point_data
    arguments = {"bf16": True, "gradient_accumulation_steps": 2, "eval_strategy": "epoch"}
    assert_parity(reference, ours, Case(model, data, arguments), tmp_path)
