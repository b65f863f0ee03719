"""Adafactor: Adam with factored second moments, one number per row and column instead of one per
weight.

After Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost"
(arXiv:1804.04235), whose Algorithm 4 is for matrices and Algorithm 5 for vectors. The order of the
floating point operations, and the names in the state, are those of `transformers.optimization`
(5.3.0), so that weights and saved states agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

_HALF = (torch.float16, torch.bfloat16)


class Adafactor(Optimizer):
    """As `transformers.Adafactor`, but checkpoints keep the float32 state of half-precision
    weights.

    Per step, with gradient `G`, weights `X` and step `t` (from 1): `V` becomes
    `b V + (1 - b) (G^2 + eps[0])` with `b = 1 - t^decay_rate`, kept as the means of its rows and
    columns where `X` has two or more dimensions; the update is `U = G / sqrt(V)`, scaled down to a
    root mean square of at most `clip_threshold`; and `X` becomes `X - a U`. The step size `a` is
    `lr`, or with `relative_step` the time-dependent `min(1e-2, 1 / sqrt(t))`, and with
    `scale_parameter` it is multiplied by `max(eps[1], RMS(X))`.

    Args:
        params: parameters, or groups of them.
        lr: learning rate; None where `relative_step` sets it.
        eps: added to the squared gradient, and the least scale of a parameter.
        clip_threshold: the largest root mean square of an update, before the step size.
        decay_rate: exponent of the decay of the second moment; negative.
        beta1: decay of a mean of updates, which costs as much memory as the weights; None for no
            mean.
        weight_decay: part of the weights, times the step size, that goes away in each step.
        scale_parameter: make steps proportional to the size of the weights.
        relative_step: let the learning rate follow from the step.
        warmup_init: begin with a learning rate of `1e-6 t`; only with `relative_step`.

    Raises:
        ValueError: when `lr`, `relative_step` and `warmup_init` do not go together.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        if lr is not None and relative_step:
            raise ValueError(
                f"{lr=} has no effect with relative_step=True. Set lr=None, or relative_step=False."
            )
        if warmup_init and not relative_step:
            raise ValueError(
                "warmup_init=True needs relative_step=True. Set that too, or leave warmup_init out."
            )
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
        }
        defaults |= {
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
        }
        defaults |= {"warmup_init": warmup_init}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: computes the loss and the gradients again.

        Returns:
            What `closure` returned.

        Raises:
            RuntimeError: when a gradient is sparse.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update(parameter, _float32(parameter.grad), self.state[parameter], group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.load_state_dict`, but the state stays float32 where the
        weights are not.
        """
        super().load_state_dict(state_dict)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, saved in state_dict["state"].get(number, {}).items():
                if isinstance(saved, Tensor) and parameter.dtype in _HALF:
                    self.state[parameter][name] = saved.to(parameter.device, copy=True)

    @staticmethod
    def _get_lr(param_group: dict[str, Any], param_state: dict[str, Any]) -> Any:
        """Return a parameter's step size, by `step` and `RMS` in its state: a float, or a tensor
        of no dimensions.
        """
        size = param_group["lr"]
        if param_group["relative_step"]:
            most = 1e-6 * param_state["step"] if param_group["warmup_init"] else 1e-2
            size = min(most, 1.0 / math.sqrt(param_state["step"]))
        scale = (
            max(param_group["eps"][1], param_state["RMS"])
            if param_group["scale_parameter"]
            else 1.0
        )
        return scale * size


def _update(
    parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    """Take the step of one parameter; its gradient, and all that follows from it, is float32 or
    finer.
    """
    if gradient.is_sparse:
        raise RuntimeError(
            "Adafactor cannot work with sparse gradients. Make the embedding with sparse=False."
        )
    _make_ready(state, gradient, with_mean=group["beta1"] is not None)
    weights = _float32(parameter)
    state["step"] += 1
    state["RMS"] = _rms(weights)
    step_size = Adafactor._get_lr(group, state)
    change = _normalised(
        gradient, state, 1.0 - math.pow(state["step"], group["decay_rate"]), group["eps"][0]
    )
    change.div_((_rms(change) / group["clip_threshold"]).clamp_(min=1.0)).mul_(step_size)
    if group["beta1"] is not None:
        change = state["exp_avg"].mul_(group["beta1"]).add_(change, alpha=1 - group["beta1"])
    if group["weight_decay"] != 0:
        weights.add_(weights, alpha=-group["weight_decay"] * step_size)
    weights.sub_(change)
    if weights is not parameter:
        parameter.copy_(weights)


def _make_ready(state: dict[str, Any], gradient: Tensor, with_mean: bool) -> None:
    """Make the state of a parameter at its first step; later bring it to the device and type of the
    gradient.

    A matrix, or a stack of them, has the mean of each row and each column.
    """
    matrix = gradient.dim() >= 2
    shape = gradient.shape
    shapes = {"exp_avg": shape} if with_mean else {}
    if matrix:
        shapes |= {"exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": shape[:-2] + shape[-1:]}
    else:
        shapes["exp_avg_sq"] = shape
    if state:
        state.update({name: state[name].to(gradient) for name in shapes})
    else:
        state.update(
            {
                "step": 0,
                **{name: gradient.new_zeros(shape) for name, shape in shapes.items()},
                "RMS": 0,
            }
        )


def _normalised(gradient: Tensor, state: dict[str, Any], decay: float, epsilon: float) -> Tensor:
    """Update the second moment with the gradient, and return the gradient over its root."""
    square = gradient**2 + epsilon
    if "exp_avg_sq" in state:
        return _mean_with(state["exp_avg_sq"], square, decay).rsqrt().mul_(gradient)
    rows = _mean_with(state["exp_avg_sq_row"], square.mean(dim=-1), decay)
    columns = _mean_with(state["exp_avg_sq_col"], square.mean(dim=-2), decay)
    rows = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return torch.mul(rows, columns.unsqueeze(-2).rsqrt()).mul_(gradient)


def _mean_with(mean: Tensor, value: Tensor, decay: float) -> Tensor:
    return mean.mul_(decay).add_(value, alpha=1.0 - decay)


def _rms(tensor: Tensor) -> Tensor:
    return tensor.norm(2) / tensor.numel() ** 0.5


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALF else tensor


class AdafactorSchedule(LambdaLR):
    """As `transformers.AdafactorSchedule`: shows the learning rates that an Adafactor with
    `relative_step` sets itself.

    Args:
        optimizer: an `Adafactor`, or another with its `_get_lr`.
        initial_lr: rate shown before the first step.
    """

    def __init__(self, optimizer: Any, initial_lr: float = 0.0) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = initial_lr
        super().__init__(optimizer, lambda _: initial_lr)
        for group in optimizer.param_groups:
            del group["initial_lr"]

    def get_lr(self) -> list[Any]:
        """Return each group's step size, that of its first parameter; without a gradient, the
        initial one.
        """
        pairs = zip(self.optimizer.param_groups, self.base_lrs, strict=True)
        return [self._shown(group, first) for group, first in pairs]

    def _shown(self, group: dict[str, Any], otherwise: Any) -> Any:
        optimizer: Any = self.optimizer
        parameter = group["params"][0]
        stepped = parameter.grad is not None and parameter in optimizer.state
        return optimizer._get_lr(group, optimizer.state[parameter]) if stepped else otherwise


def get_adafactor_schedule(optimizer: Any, initial_lr: float = 0.0) -> AdafactorSchedule:
    """As `transformers.optimization.get_adafactor_schedule`: the `AdafactorSchedule` of an
    optimizer.

    Args:
        optimizer: an `Adafactor`.
        initial_lr: rate shown before the first step.
    """
    return AdafactorSchedule(optimizer, initial_lr)
