"""The plain values that describe an optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.suggestions import OptimizerNames
from .targets import TargetModules


@dataclass(frozen=True, kw_only=True)
class OptimizerDescription:
    """The fields of `OptimizerConfig`."""

    name: str | OptimizerNames = OptimizerNames.ADAMW_TORCH_FUSED
    """Which optimizer, an `OptimizerNames` or its value."""
    learning_rate: float = 5e-5
    """The full learning rate, from which a schedule starts."""
    weight_decay: float = 0.0
    """Decay of the parameters that `decay_parameter_names` names; the others have none."""
    beta1: float = 0.9
    """Adam's decay of the mean of the gradients."""
    beta2: float = 0.999
    """Adam's decay of the mean of the squared gradients."""
    epsilon: float = 1e-8
    """What Adam adds to the root in its denominator."""
    args: str | None = None
    """The optimizer's own arguments, as "momentum=0.9,nesterov=true"; a decay among them is overruled by the field."""
    target_modules: TargetModules | None = None
    """Linear layers that GaLore and APOLLO work on: "all-linear", a regular expression, or a list of parts of names."""
    warmup_steps: float | None = None
    """Steps of the warm-up that `schedule_free_adamw` and `schedule_free_sgd` do by themselves; for no others."""

    def __post_init__(self) -> None:
        OptimizerNames(self.name)
