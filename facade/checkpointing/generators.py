"""Capture and restore the random number generators of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...lightning_modules.data import generators

if TYPE_CHECKING:
    from .. import Trainer


def capture_generators(trainer: Trainer) -> dict[str, Any]:
    """Return the states of all generators that training and evaluation use, as plain values.

    These are the global generators of the process, and those in attributes of the Trainer, of the
    model's modules, of the optimizer and of `compute_loss_func`.
    """
    objects = _drawing_objects(trainer)
    return generators.capture_generators(objects, distributed=trainer.args.world_size > 1)


def restore_generators(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Restore the result of `capture_generators`, or a state that transformers wrote."""
    objects = _drawing_objects(trainer)
    generators.restore_generators(state, objects, distributed=trainer.args.world_size > 1)


def _drawing_objects(trainer: Trainer) -> dict[str, object]:
    """Return the objects of the script that may draw random numbers in a step, by name."""
    objects: dict[str, object] = {
        "trainer": trainer,
        "optimizer": trainer.optimizer,
        # A Trainer with its own loop may not have called the constructor.
        "compute_loss_func": getattr(trainer, "compute_loss_func", None),
    }
    for name, module in trainer.model.named_modules(prefix="model"):
        objects[name] = module
    return objects
