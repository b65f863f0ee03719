"""The random generators of a training: those of the process, and those of the script's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...lightning_modules.data import generators

if TYPE_CHECKING:
    from .. import Trainer


def capture_generators(trainer: Trainer) -> dict[str, Any]:
    """Return the states of all generators that steps and evaluations draw from, in plain values.

    These are the generators of the process and those in attributes of the Trainer, of the modules
    of its model, of its optimizer and of `compute_loss_func`.
    """
    objects = _drawing_objects(trainer)
    return generators.capture_generators(objects, distributed=trainer.args.world_size > 1)


def restore_generators(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Restore the result of `capture_generators`, or what transformers writes."""
    objects = _drawing_objects(trainer)
    generators.restore_generators(state, objects, distributed=trainer.args.world_size > 1)


def _drawing_objects(trainer: Trainer) -> dict[str, object]:
    """Return the objects of the script that may draw in a step, by name."""
    objects: dict[str, object] = {
        "trainer": trainer,
        "optimizer": trainer.optimizer,
        # A Trainer with its own loop may have left out the constructor.
        "compute_loss_func": getattr(trainer, "compute_loss_func", None),
    }
    for name, module in trainer.model.named_modules(prefix="model"):
        objects[name] = module
    return objects
