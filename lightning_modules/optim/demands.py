"""What optimizers demand of the parameters that they step, and of when they do it."""

from __future__ import annotations

from enum import Flag, auto


class OptimizerDemands(Flag):
    """What the step of an optimizer depends on, beyond single numbers of parameters and
    gradients.
    """

    WHOLE_PARAMETERS = auto()
    """Rows, columns or norms of parameters, or their order: with flat parts its steps are
    others, without an error.
    """
    OWN_STEPS = auto()
    """It changes parameters at other times than in a step, or has not been tried where an engine
    steps.
    """


_WHOLE = OptimizerDemands.WHOLE_PARAMETERS
_OWN_STEPS = OptimizerDemands.OWN_STEPS

_DEMANDS = {
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
"""By a part of the name of the optimizer or its class; all others demand nothing."""


def optimizer_demands(name: str) -> OptimizerDemands:
    """Return what an optimizer demands.

    Args:
        name: of an optimizer or its class, such as "stable_adamw", "torch.optim.Adafactor" or
            "GaLoreAdamW8bit".
    """
    letters = name.lower().replace("_", "")
    demands = OptimizerDemands(0)
    for part, demanded in _DEMANDS.items():
        if part in letters:
            demands |= demanded
    return demands
