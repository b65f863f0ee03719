"""How many steps and epochs a Lightning training does, and has done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def planned_steps(trainer: Trainer) -> int:
    """Return the optimizer steps of the whole training; 0 if unknown."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        steps = trainer.estimated_stepping_batches
    except MisconfigurationException:  # the accumulation changes between epochs
        steps = trainer.max_steps
    return int(steps) if 0 < steps < math.inf else 0


def planned_epochs(trainer: Trainer, max_steps: int) -> int:
    """Return the number of passes over the data; 0 if unknown.

    The last one may be partial.
    """
    batches = trainer.num_training_batches
    if max_steps and 0 < batches < math.inf:
        steps_in_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
        return math.ceil(max_steps / steps_in_epoch)
    return max(trainer.max_epochs or 0, 0)


def epochs_done(trainer: Trainer, batches_done: int, max_steps: int) -> float:
    """Return the epochs that are done, with the fraction of the current one.

    Of a stream, whose length is unknown, the whole training is one epoch.

    Args:
        trainer: Lightning's Trainer.
        batches_done: batches of the current epoch that are done.
        max_steps: steps of the whole training.
    """
    batches = trainer.num_training_batches
    if not 0 < batches < math.inf:
        batches = max_steps * trainer.accumulate_grad_batches
    fraction = batches_done / batches if batches else 0.0
    return trainer.current_epoch + fraction


def is_last_step(trainer: Trainer) -> bool:
    """Return whether Lightning itself ends the training after this step."""
    has_reached_max_steps = 0 < trainer.max_steps <= trainer.global_step
    if has_reached_max_steps:
        return True
    if trainer.max_epochs is None:
        return False
    is_last_epoch = 0 < trainer.max_epochs <= trainer.current_epoch + 1
    return is_last_epoch and trainer.is_last_batch
