"""Requirements of optimizers that matter for sharding and external engines."""

from __future__ import annotations

from enum import Flag, auto


class OptimizerRequirements(Flag):
    """Requirements of an optimizer whose step is not purely elementwise."""

    FULL_PARAMETERS = auto()
    """The step uses rows, columns or norms of parameters, or their order.

    With flattened shards of parameters, the steps are silently wrong.
    """
    OWN_STEPS = auto()
    """It changes parameters outside of a step, or is not tested with an engine that takes the step.
    """


_FULL = OptimizerRequirements.FULL_PARAMETERS
_OWN_STEPS = OptimizerRequirements.OWN_STEPS

_REQUIREMENTS_BY_PART = {
    "adafactor": _FULL,
    "apollo": _FULL | _OWN_STEPS,
    "came": _FULL,
    "dadapt": _FULL,
    "galore": _FULL | _OWN_STEPS,
    "grokadam": _FULL,
    "lamb": _FULL,
    "lars": _FULL,
    "lomo": _FULL | _OWN_STEPS,
    "muon": _FULL,
    "novograd": _FULL,
    "prodigy": _FULL,
    "schedulefree": _OWN_STEPS,
    "shampoo": _FULL,
    "sm3": _FULL,
    "soap": _FULL,
    "stableadam": _FULL,
}
"""Requirements by part of the optimizer's name or class name. Others have none."""


def optimizer_requirements(name: str) -> OptimizerRequirements:
    """Return the requirements of an optimizer.

    Args:
        name: the name of an optimizer or its class, such as "stable_adamw", "torch.optim.Adafactor"
            or "GaLoreAdamW8bit".
    """
    plain_name = name.lower().replace("_", "")
    requirements = OptimizerRequirements(0)
    for part, requirements_of_part in _REQUIREMENTS_BY_PART.items():
        if part in plain_name:
            requirements |= requirements_of_part
    return requirements
