"""Stand-ins for the optimizer and the schedule of a run whose layers have one each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class LayerWiseDummyOptimizer(Optimizer):
    """As `transformers.trainer_pt_utils.LayerWiseDummyOptimizer`: does nothing; those of the layers do.

    Args:
        optimizer_dict: the optimizer of each parameter.
        **kwargs: `lr`, the learning rate that its own group shows.
    """

    def __init__(self, optimizer_dict: Mapping[Any, Optimizer] | None = None, **kwargs: Any) -> None:
        self.optimizer_dict = optimizer_dict
        super().__init__([torch.randn(1, 1)], {"lr": kwargs.get("lr", 1e-3)})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do nothing."""


class LayerWiseDummyScheduler(LRScheduler):
    """As `transformers.trainer_pt_utils.LayerWiseDummyScheduler`: shows the rates of the layers.

    Args:
        *args: not used.
        **kwargs: `lr`, shown where there are no layers, and what `LayerWiseDummyOptimizer` takes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.default_lr = kwargs["lr"]
        super().__init__(LayerWiseDummyOptimizer(**kwargs), -1)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rate of each group of each optimizer."""
        optimizer: Any = self.optimizer
        inner = optimizer.optimizer_dict
        if inner is None:
            return [self.default_lr]
        groups = chain.from_iterable(one.param_groups for one in inner.values())
        return [group["lr"] for group in groups]

    def _get_closed_form_lr(self) -> list[Any]:
        return self.base_lrs
