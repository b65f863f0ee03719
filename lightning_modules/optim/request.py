"""What a builder is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ..common.suggestions import OptimizerNames
from .arguments import OptimizerArguments

if TYPE_CHECKING:
    from .description import OptimizerDescription

__all__ = ["Builder", "ClassAndKwargs", "OptimizerRequest"]

ClassAndKwargs = tuple[Any, dict[str, Any]]
"""The class of an optimizer, and its arguments beside the learning rate. Where these hold "params", "model" or
"optimizer_dict", that takes the place of the usual parameter groups."""


@dataclass(frozen=True, kw_only=True)
class OptimizerRequest:
    """An optimizer that somebody asked for by name."""

    config: OptimizerDescription
    """Its name and its numbers."""
    arguments: OptimizerArguments
    """Its own arguments; a builder takes what it knows out of them."""
    model: nn.Module | None
    """The model, for those that look at its modules."""

    @property
    def name(self) -> OptimizerNames:
        """Which optimizer."""
        return OptimizerNames(self.config.name)

    @property
    def adam(self) -> dict[str, Any]:
        """The numbers of Adam as torch calls them, which others took over."""
        return {"betas": (self.config.beta1, self.config.beta2), "eps": self.config.epsilon}

    def require_model(self) -> nn.Module:
        """The model.

        Raises:
            ValueError: when there is none.
        """
        if self.model is None:
            raise ValueError(
                f"optim={self.name.value!r} looks at the modules of the model, but was given none: pass `model` too."
            )
        return self.model


Builder = Callable[[OptimizerRequest], ClassAndKwargs]
