"""The modules and parameters of a model as lists: walking a model of some hundred modules takes a millisecond."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)


class FlatModel:
    """What a training step needs of all modules and parameters of a model, without walking it each time.

    The lists are made anew after a module or parameter was registered anywhere, which is noticed until `close`, and
    when the optimizer has other parameters. What writes into `_modules` or `_parameters` itself has to call `renew`.

    Args:
        model: the model that is called; its parameters are whole in this process.
        optimizer: trains it; None where no optimizer may say that there are other parameters.
    """

    def __init__(self, model: nn.Module, optimizer: Any = None) -> None:
        self.model = model
        self.optimizer = optimizer
        self._own_zero_grad = getattr(model.zero_grad, "__func__", None) is not nn.Module.zero_grad
        self._hooks = (
            register_module_module_registration_hook(self._registered),
            register_module_parameter_registration_hook(self._registered),
        )
        self.renew()

    def renew(self) -> None:
        """Walk the model."""
        self._modules = list(self.model.modules())
        self._parameters = list(self.model.parameters())
        self._own_train = any(getattr(one.train, "__func__", None) is not nn.Module.train for one in self._modules)
        self._in_groups = self._count_groups()
        self._is_old = False

    def close(self) -> None:
        """Stop noticing registrations."""
        for hook in self._hooks:
            hook.remove()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """As `model.parameters()`."""
        if self._is_old or self._count_groups() != self._in_groups:
            self.renew()
        return self._parameters

    def train(self) -> None:
        """As `model.train()`, which is called if a module is in eval mode, or has a `train` of its own."""
        if self._is_old:
            self.renew()
        if self._own_train or False in [module.training for module in self._modules]:
            self.model.train()

    def zero_grad(self) -> None:
        """As `model.zero_grad()`."""
        if self._own_zero_grad:
            self.model.zero_grad()
            return
        for parameter in self.parameters:
            parameter.grad = None

    def _registered(self, *_: Any) -> None:
        self._is_old = True

    def _count_groups(self) -> int:
        groups = getattr(self.optimizer, "param_groups", ())
        return sum(len(group["params"]) for group in groups)
