"""The Adam optimizer of Keras, computed with torch's kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.optim.adamw import adamw

_Tensors = tuple[
    list[torch.Tensor],
    list[torch.Tensor],
    list[torch.Tensor],
    list[torch.Tensor],
    list[torch.Tensor],
    list[torch.Tensor],
]
"""The tensor arguments of torch's function `adamw`, in order.

They are parameters, gradients, first moments, second moments, maximum second moments, and step
counts.
"""


class KerasAdam(torch.optim.AdamW):
    """Takes the steps of `keras.optimizers.Adam` with torch's fused kernel.

    With `weight_decay`, the steps are those of `AdamWeightDecay` of transformers 4.

    Keras adds epsilon to the root of the second moment before the bias correction, torch after it.
    With `eps / sqrt(1 - beta2 ** step)` torch computes the same numbers as Keras (Kingma and Ba,
    "Adam", the end of section 2). As in Keras, there is one step count for all parameters, and a
    parameter without a gradient gets a gradient of zeros, so that its moments decay.

    Args:
        params: parameters, or groups of them.
        lr: the learning rate.
        betas: the decay rates of the two moments.
        eps: Keras's epsilon.
        weight_decay: rate of the decoupled weight decay, multiplied by the learning rate.
        exact_powers: True to compute the powers of the betas exactly, as `AdamWeightDecay` does.
            Keras computes them in float32, which changes the first steps by up to 1e-5 of their
            size.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-7,
        weight_decay: float = 0.0,
        *,
        exact_powers: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        # If this were True, the loss scaler would call `step` even with infinite gradients, and
        # leave it to torch's kernel to skip them. `step` must not be called then, because it would
        # count a step.
        self._step_supports_amp_scaling = False
        for group in self.param_groups:
            group.update(keras_eps=eps, steps=0, exact_powers=exact_powers)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take an optimizer step.

        Args:
            closure: recomputes the loss, which is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            tensors: _Tensors = ([], [], [], [], [], [])
            self._init_group(group, *tensors)
            numbers = self._numbers_of_torch(group)
            adamw(*tensors, fused=True, amsgrad=False, maximize=False, **numbers)
        return loss

    @staticmethod
    def _numbers_of_torch(group: dict[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters with which torch's AdamW takes the step of Keras."""
        beta1, beta2 = group["betas"]
        steps = group["steps"]
        lr = group["lr"]
        # torch corrects the bias exactly. Scale the learning rate to match the rounding of Keras.
        if not group["exact_powers"]:
            in_float32 = _bias_correction(np.float32(beta1), np.float32(beta2), np.float32(steps))
            lr *= float(in_float32) / _bias_correction(beta1, beta2, steps)
        return {
            "lr": lr,
            "beta1": beta1,
            "beta2": beta2,
            "eps": group["keras_eps"] / math.sqrt(1 - beta2**steps),
            "weight_decay": group["weight_decay"],
        }


def _bias_correction(beta1: Any, beta2: Any, steps: Any) -> Any:
    """Return the factor that corrects the step size for the bias of the moments.

    It is computed in the precision of the arguments.
    """
    unit = type(beta1)(1)
    return np.sqrt(unit - beta2**steps) / (unit - beta1**steps)
