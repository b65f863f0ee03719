"""Training arguments for a smaller batch on each device."""

import copy
from typing import Any


def effective_batch(args: Any) -> int:
    """Samples of one process that go into one optimizer step."""
    return args.train_batch_size * args.gradient_accumulation_steps


def fitted(args: Any, batch_size: int) -> Any:
    """A copy of the arguments with another batch of each device, and the effective batch as near as can be.

    Args:
        args: Training arguments; they are not changed.
        batch_size: Samples of one process in one forward pass.
    """
    copied = copy.copy(args)
    copied.per_device_train_batch_size = batch_size
    copied.gradient_accumulation_steps = max(1, round(effective_batch(args) / batch_size))
    return copied
