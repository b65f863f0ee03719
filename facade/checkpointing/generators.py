"""The random generators of a training: those of the process, and those of the script's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.safe_serialization import from_plain, to_plain
from ...lightning_modules.common.seeding import capture_rng_state, restore_rng_state
from ...lightning_modules.data.stateful_parts import generator_states, restore_generators

if TYPE_CHECKING:
    from .. import Trainer

_OWN = "own"
"""Under this name are the states of generators in attributes; transformers ignores it."""


def capture_generators(trainer: Trainer) -> dict[str, Any]:
    """Return the states of all generators that steps and evaluations draw from, in plain values.

    These are the generators of the process and those in attributes of the Trainer, of the modules
    of its model, of its optimizer and of `compute_loss_func`.
    """
    state = capture_rng_state(trainer.args.world_size > 1)
    own = generator_states(_drawing_objects(trainer))
    if own:
        state[_OWN] = to_plain(own)
    return state


def restore_all_generators(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Restore the result of `capture_generators`, or what transformers writes."""
    restore_rng_state(state, trainer.args.world_size > 1)
    own: list[dict[str, Any]] = from_plain(state.get(_OWN, []))
    restore_generators(own, _drawing_objects(trainer))


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
