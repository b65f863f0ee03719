"""Reconcile `gradient_checkpointing` and `activation_checkpointing`, two names of one setting."""

import copy
import logging
from typing import Any

logger = logging.getLogger(__name__)

_NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}


def agree(args: Any) -> None:
    """Set both names to the value of the newer one, or of the older one if the newer is not given.

    Args:
        args: Changed in place. Keeps the result, so that `checkpointing` detects later changes.
    """
    if args.gradient_checkpointing and args.activation_checkpointing is not None and not args.activation_checkpointing:
        logger.warning("activation_checkpointing=False overrules its older name: gradient_checkpointing is turned off.")
    for new, old in _NAMES.items():
        said, before = getattr(args, new), getattr(args, old)
        if said is None:
            setattr(args, new, before)
        elif said or before:  # None for the older name is as good as False
            setattr(args, old, said)
    if args.activation_checkpointing is None:
        args.activation_checkpointing = False
    args._checkpointing = (args.activation_checkpointing, copy.copy(args.activation_checkpointing_kwargs))


def checkpointing(args: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether activations are recomputed in the backward pass, and the settings.

    Args:
        args: Training arguments. If only one of the names was changed since `agree`, that change counts.
    """
    agreed = getattr(args, "_checkpointing", None) or (False, None)
    on, settings = (
        _later(getattr(args, new, None), getattr(args, old, None), before)
        for (new, old), before in zip(_NAMES.items(), agreed, strict=True)
    )
    return bool(on), dict(settings or {})


def _later(new: Any, old: Any, before: Any) -> Any:
    return new if (new or None) != (before or None) else old
