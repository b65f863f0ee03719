"""Remove the loss scale of float16 from gradients before they are read."""

import contextlib
from typing import Any


def unscale_gradients(precision: Any, optimizer: Any) -> None:
    """Divide the gradients by the loss scale, if the optimizer would do so in its step.

    Fused optimizers would, after hooks have read the gradients, and after clipping.

    Args:
        precision: the precision plugin of a Lightning Trainer.
        optimizer: a fused optimizer, or another one.
    """
    scaler = getattr(precision, "scaler", None)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return
    # Raises an error if the gradients are divided already.
    with contextlib.suppress(RuntimeError):
        scaler.unscale_(optimizer)
