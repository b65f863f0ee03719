"""What an optimizer requires of its parameters, and of the moment of its steps."""

from __future__ import annotations

from enum import Flag, auto


class OptimizerDemands(Flag):
    """What the step of an optimizer depends on, except single numbers of parameters."""

    WHOLE_PARAMETERS = auto()
    """Its step uses rows, columns or norms of parameters, or their order.

    With flat parts of parameters the steps are wrong, without an error.
    """
    OWN_STEPS = auto()
    """It changes parameters outside of a step, or is not tested where an engine steps."""


_WHOLE = OptimizerDemands.WHOLE_PARAMETERS
_OWN_STEPS = OptimizerDemands.OWN_STEPS

_DEMANDS_BY_PART = {
    "adafactor": _WHOLE,
    "apollo": _WHOLE | _OWN_STEPS,
    "came": _WHOLE,
    "dadapt": _WHOLE,
    "galore": _WHOLE | _OWN_STEPS,
    "grokadam": _WHOLE,
    "lamb": _WHOLE,
    "lars": _WHOLE,
    "lomo": _WHOLE | _OWN_STEPS,
    "muon": _WHOLE,
    "novograd": _WHOLE,
    "prodigy": _WHOLE,
    "schedulefree": _OWN_STEPS,
    "shampoo": _WHOLE,
    "sm3": _WHOLE,
    "soap": _WHOLE,
    "stableadam": _WHOLE,
}
"""By a part of the name of the optimizer or its class; all others have no demands."""


def optimizer_demands(name: str) -> OptimizerDemands:
    """Return the demands of an optimizer.

    Args:
        name: the name of an optimizer or its class, such as "stable_adamw", "torch.optim.Adafactor"
            or "GaLoreAdamW8bit".
    """
    plain_name = name.lower().replace("_", "")
    demands = OptimizerDemands(0)
    for part, demands_of_part in _DEMANDS_BY_PART.items():
        if part in plain_name:
            demands |= demands_of_part
    return demands
