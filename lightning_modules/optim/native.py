"""Optimizers of torch, and Adafactor, which is ours."""

from __future__ import annotations

import torch

from .adafactor import Adafactor
from .arguments import flag
from .request import ClassAndKwargs, OptimizerRequest


def adamw(request: OptimizerRequest) -> ClassAndKwargs:
    """`adamw_torch`."""
    return torch.optim.AdamW, request.adam


def adamw_fused(request: OptimizerRequest) -> ClassAndKwargs:
    """`adamw_torch_fused`."""
    return torch.optim.AdamW, {**request.adam, "fused": True}


def sgd(request: OptimizerRequest) -> ClassAndKwargs:
    """`sgd`."""
    take = request.arguments.given
    return torch.optim.SGD, take(float, "momentum", "dampening", "weight_decay") | take(flag, "nesterov")


def adagrad(request: OptimizerRequest) -> ClassAndKwargs:
    """`adagrad`."""
    return torch.optim.Adagrad, request.arguments.given(float, "lr_decay", "weight_decay", "eps")


def rmsprop(request: OptimizerRequest) -> ClassAndKwargs:
    """`rmsprop`."""
    take = request.arguments.given
    return torch.optim.RMSprop, take(float, "momentum", "alpha", "eps", "weight_decay") | take(flag, "centered")


def adafactor(request: OptimizerRequest) -> ClassAndKwargs:
    """`adafactor`: with the learning rate of the arguments and their schedule, not with its own."""
    return Adafactor, {"scale_parameter": False, "relative_step": False}
