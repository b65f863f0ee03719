"""One optimizer, described in plain values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from .build import build_optimizer, optimizer_class_and_kwargs
from .description import OptimizerDescription
from .groups import parameter_groups

__all__ = ["OptimizerConfig"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(OptimizerDescription):
    """As the `optim*`, `learning_rate`, `weight_decay` and `adam_*` of `TrainingArguments`, for one optimizer.

    In a LightningModule: `configure_optimizers` returns `config.build(self)`.
    """

    def build(self, model: nn.Module, decay_names: Collection[str] | None = None) -> Optimizer:
        """The optimizer over the trainable parameters of a model.

        Args:
            model: its parameters with `requires_grad` are trained.
            decay_names: parameters that decay, by default `decay_parameter_names(model)`.

        Raises:
            MissingLibraryError: an ImportError; the optimizer is one of a library that is not installed.
        """
        optimizer_class, kwargs = optimizer_class_and_kwargs(self, model)
        groups = parameter_groups(model, self.weight_decay, decay_names)
        return build_optimizer(optimizer_class, kwargs, model, groups)
