"""The reference's optimizers, made from an `OptimizerConfig`, and a comparison that sees every
bit.
"""

from types import SimpleNamespace

import torch
from torch import nn
from transformers import Trainer

from lightrainer.lightning_modules.common.enums import OptimizerNames


def reference_arguments(config, **changes):
    """Stand in for what the reference reads of its TrainingArguments."""
    values = {
        "optim": OptimizerNames(config.name),
        "optim_args": config.args,
        "optim_target_modules": config.target_modules,
        "learning_rate": config.learning_rate,
        "weight_decay": config.weight_decay,
        "adam_beta1": config.beta1,
        "adam_beta2": config.beta2,
        "adam_epsilon": config.epsilon,
        "warmup_steps": config.warmup_steps or 0,
        "gradient_accumulation_steps": 1,
        "parallel_mode": None,
    }
    return SimpleNamespace(**{**values, **changes})


def reference_class_and_kwargs(config, model=None, **changes):
    return Trainer.get_optimizer_cls_and_kwargs(reference_arguments(config, **changes), model)


def reference_optimizer(config, model, optimizer_cls_and_kwargs=None):
    trainer = SimpleNamespace(
        model=model,
        optimizer=None,
        args=reference_arguments(config),
        optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        get_decay_parameter_names=lambda model: Trainer.get_decay_parameter_names(None, model),
        get_optimizer_cls_and_kwargs=Trainer.get_optimizer_cls_and_kwargs,
    )
    return Trainer.create_optimizer(trainer)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def same_bits(left, right):
    """Tell if two nests of tensors and values have the same bits; parameters count as the same
    object only.
    """
    if isinstance(left, nn.Parameter) or isinstance(right, nn.Parameter):
        return left is right
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        both = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
        return both and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_bits(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return (
            isinstance(right, list) and len(left) == len(right) and all(map(same_bits, left, right))
        )
    return left == right  # the reference has 1 for True
