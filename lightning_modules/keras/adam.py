"""The Adam of Keras, with torch's kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.optim.adamw import adamw

_List = list[torch.Tensor]
_Tensors = tuple[_List, _List, _List, _List, _List, _List]
"""Parameters, gradients, first and second moments, greatest second ones, numbers of steps: what
torch's AdamW takes.
"""


class KerasAdam(torch.optim.AdamW):
    """As `keras.optimizers.Adam`, and with `weight_decay` as the `AdamWeightDecay` of transformers
    4.

    Keras adds epsilon to the root of the second moment before its bias is corrected, torch after
    that: with `eps / sqrt(1 - beta2 ** step)` torch gives Keras's numbers (Kingma and Ba, "Adam",
    the end of section 2). Steps are those of the optimizer, and a parameter without a gradient has
    one of zeros: its moments go on.

    Args:
        params: parameters, or groups of them.
        lr: the learning rate.
        betas: of the two moments.
        eps: where Keras has it.
        weight_decay: decoupled, times the learning rate.
        exact_powers: have the powers of the betas exact, as `AdamWeightDecay`. Keras has them in
            float32: its first steps are up to 1e-5 of themselves larger or smaller.
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
        self._step_supports_amp_scaling = False  # a step of infinite gradients is not counted
        for group in self.param_groups:
            group.update(keras_eps=eps, steps=0, exact_powers=exact_powers)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps"] += 1
            tensors: _Tensors = ([], [], [], [], [], [])
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._init_group(group, *tensors)
            adamw(*tensors, fused=True, amsgrad=False, maximize=False, **self._settings(group))
        return loss

    @staticmethod
    def _settings(group: dict[str, Any]) -> dict[str, Any]:
        """Return what torch's AdamW has to be told for the numbers of Keras."""
        (beta1, beta2), steps, rate = group["betas"], group["steps"], group["lr"]
        if not group["exact_powers"]:
            rounded = _correction(np.float32(beta1), np.float32(beta2), np.float32(steps))
            rate *= float(rounded) / _correction(beta1, beta2, steps)
        eps = group["keras_eps"] / math.sqrt(1 - beta2**steps)
        return {
            "lr": rate,
            "beta1": beta1,
            "beta2": beta2,
            "eps": eps,
            "weight_decay": group["weight_decay"],
        }


def _correction(beta1: Any, beta2: Any, steps: Any) -> Any:
    """Return what the step size is multiplied by for the bias of the moments, in the precision
    of what is given.
    """
    one = type(beta1)(1)
    return np.sqrt(one - beta2**steps) / (one - beta1**steps)
