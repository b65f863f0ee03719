"""Adafactor: Adam with factored second moments.

It stores one number for each row and column instead of one for each weight. Shazeer and Stern,
"Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (arXiv:1804.04235): Algorithm 4 is
for matrices, Algorithm 5 for vectors. The order of the floating point operations, and the names in
the state, are those of `transformers.optimization` (5.3.0), so that weights and saved states agree
to the last bit.
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
    """Adafactor optimizer, which stores second moments as means of rows and columns.

    Works like `transformers.Adafactor`, but half-precision weights keep a float32 state in
    checkpoints. Shazeer and Stern (arXiv:1804.04235).

    Per step, with gradient `G`, weights `X` and step `t` (from 1): `V` becomes
    `b V + (1 - b) (G^2 + eps[0])` with `b = 1 - t^decay_rate`, kept as the means of its rows and
    columns where `X` has two or more dimensions; the update is `U = G / sqrt(V)`, scaled down to a
    root mean square of at most `clip_threshold`; and `X` becomes `X - a U`. The step size `a` is
    `lr`, or with `relative_step` the time-dependent `min(1e-2, 1 / sqrt(t))`, and with
    `scale_parameter` it is multiplied by `max(eps[1], RMS(X))`.

    Args:
        params: parameters or parameter groups.
        lr: learning rate. None if `relative_step` sets it.
        eps: constant added to the squared gradient, and minimum scale of a parameter.
        clip_threshold: maximum root mean square of an update, before the step size is applied.
        decay_rate: exponent of the decay of the second moment. It is negative.
        beta1: decay of the mean of updates, which needs as much memory as the weights. None
            disables it.
        weight_decay: weight decay, multiplied by the step size.
        scale_parameter: scale steps by the root mean square of the weights.
        relative_step: compute the learning rate from the number of steps.
        warmup_init: start with a learning rate of `1e-6 t`. Requires `relative_step`.

    Raises:
        ValueError: `lr`, `relative_step` and `warmup_init` cannot be combined.
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
                "warmup_init=True needs relative_step=True. Set that too, or remove warmup_init."
            )
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: recomputes the loss and the gradients.

        Returns:
            The return value of `closure`.

        Raises:
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = _to_float32(parameter.grad)
                    _step_parameter(parameter, gradient, self.state[parameter], group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state in float32. torch would convert it to the dtype of the weights.

        Args:
            state_dict: the result of `state_dict`.
        """
        super().load_state_dict(state_dict)
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"], strict=True):
            indices = saved_group["params"]
            for parameter, index in zip(group["params"], indices, strict=True):
                if parameter.dtype not in _HALF:
                    continue
                for name, saved in state_dict["state"].get(index, {}).items():
                    if isinstance(saved, Tensor):
                        self.state[parameter][name] = saved.to(parameter.device, copy=True)

    @staticmethod
    def _get_lr(param_group: dict[str, Any], param_state: dict[str, Any]) -> float | Tensor:
        """Return the step size of a parameter from `step` and `RMS` in its state.

        The result is a float or a scalar tensor.
        """
        step_size = param_group["lr"]
        if param_group["relative_step"]:
            largest = 1e-2
            if param_group["warmup_init"]:
                largest = 1e-6 * param_state["step"]
            step_size = min(largest, 1.0 / math.sqrt(param_state["step"]))
        scale = 1.0
        if param_group["scale_parameter"]:
            scale = max(param_group["eps"][1], param_state["RMS"])
        return scale * step_size


def _step_parameter(
    parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    """Take the step of one parameter in at least float32."""
    if gradient.is_sparse:
        raise RuntimeError(
            "Adafactor does not support sparse gradients. Make the embedding with sparse=False."
        )
    beta1 = group["beta1"]
    _prepare_state(state, gradient, with_mean=beta1 is not None)
    weights = _to_float32(parameter)
    state["step"] += 1
    state["RMS"] = _rms(weights)
    step_size = Adafactor._get_lr(group, state)

    # Divide the gradient by the root of the second moment, and clip it.
    decay = 1.0 - math.pow(state["step"], group["decay_rate"])
    update = _normalize(gradient, state, decay, group["eps"][0])
    excess = (_rms(update) / group["clip_threshold"]).clamp_(min=1.0)
    update.div_(excess).mul_(step_size)

    # Apply the mean of updates, the weight decay and the step.
    if beta1 is not None:
        update = state["exp_avg"].mul_(beta1).add_(update, alpha=1 - beta1)
    if group["weight_decay"] != 0:
        weights.add_(weights, alpha=-group["weight_decay"] * step_size)
    weights.sub_(update)
    if weights is not parameter:
        parameter.copy_(weights)


def _prepare_state(state: dict[str, Any], gradient: Tensor, with_mean: bool) -> None:
    """Create the state of a parameter at its first step.

    At later steps, the state is moved to the device and dtype of the gradient.
    """
    shape = gradient.shape
    shapes: dict[str, torch.Size] = {}
    if with_mean:
        shapes["exp_avg"] = shape

    # For a matrix or a stack of matrices, store only the means of rows and columns.
    if gradient.dim() >= 2:
        shapes["exp_avg_sq_row"] = shape[:-1]
        shapes["exp_avg_sq_col"] = shape[:-2] + shape[-1:]
    else:
        shapes["exp_avg_sq"] = shape

    # At later steps the state follows device and dtype of the gradient.
    if state:
        for name in shapes:
            state[name] = state[name].to(gradient)
        return
    state["step"] = 0
    for name, entry_shape in shapes.items():
        state[name] = gradient.new_zeros(entry_shape)
    state["RMS"] = 0


def _normalize(gradient: Tensor, state: dict[str, Any], decay: float, epsilon: float) -> Tensor:
    """Update the second moment with the gradient, and return the gradient divided by its root."""
    square = gradient**2 + epsilon
    if "exp_avg_sq" in state:
        return _update_mean(state["exp_avg_sq"], square, decay).rsqrt().mul_(gradient)

    rows = _update_mean(state["exp_avg_sq_row"], square.mean(dim=-1), decay)
    columns = _update_mean(state["exp_avg_sq_col"], square.mean(dim=-2), decay)
    row_factors = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    column_factors = columns.unsqueeze(-2).rsqrt()
    return torch.mul(row_factors, column_factors).mul_(gradient)


def _update_mean(mean: Tensor, value: Tensor, decay: float) -> Tensor:
    """Update an exponential moving average in place."""
    return mean.mul_(decay).add_(value, alpha=1.0 - decay)


def _rms(tensor: Tensor) -> Tensor:
    return tensor.norm(2) / tensor.numel() ** 0.5


def _to_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32. Other dtypes are returned unchanged."""
    if tensor.dtype in _HALF:
        return tensor.float()
    return tensor


class AdafactorSchedule(LambdaLR):
    """Schedule that reports the learning rates which an Adafactor with `relative_step` sets itself.

    Works like `transformers.optimization.AdafactorSchedule`. It does not change the learning rate.

    Args:
        optimizer: an `Adafactor`, or another optimizer with a method `_get_lr`.
        initial_lr: rate shown before the first step.
    """

    def __init__(self, optimizer: Optimizer, initial_lr: float = 0.0) -> None:
        # `LambdaLR` begins with this rate; the optimizer's own may be None.
        for group in optimizer.param_groups:
            group["initial_lr"] = initial_lr
        super().__init__(optimizer, lambda _: initial_lr)
        for group in optimizer.param_groups:
            del group["initial_lr"]

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the step size of each group's first parameter.

        Before its first step, and while it has no gradient, this is the initial learning rate.
        """
        optimizer: Any = self.optimizer
        rates: list[Any] = []
        for group, initial_lr in zip(optimizer.param_groups, self.base_lrs, strict=True):
            parameter = group["params"][0]
            rate = initial_lr
            if parameter.grad is not None and parameter in optimizer.state:
                rate = optimizer._get_lr(group, optimizer.state[parameter])
            rates.append(rate)
        return rates


def get_adafactor_schedule(optimizer: Optimizer, initial_lr: float = 0.0) -> AdafactorSchedule:
    """Create a schedule that reports the learning rates of an Adafactor with `relative_step`.

    Works like `transformers.optimization.get_adafactor_schedule`.

    Args:
        optimizer: an `Adafactor`.
        initial_lr: rate shown before the first step.

    Returns:
        A schedule that does not change the learning rate.
    """
    return AdafactorSchedule(optimizer, initial_lr)
