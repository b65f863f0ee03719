"""Restore the training arguments that a Trainer had before a search."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import Trainer


class OriginalArguments:
    """The training arguments before a search.

    Each trial starts with these arguments, and they are restored after the last one.

    Args:
        trainer: the Trainer, before the search.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._args = trainer.args
        self._values = _copy_containers(vars(trainer.args))

    def restore(self) -> None:
        """Restore all values in place, in the same object."""
        current_values = vars(self._args)
        current_values.clear()
        current_values.update(_copy_containers(self._values))
        self._trainer.args = self._args
        self._trainer._train_batch_size = self._args.train_batch_size
        recreate_accelerator(self._trainer)


def _copy_containers(values: dict[str, Any]) -> dict[str, object]:
    """Return a copy of values, with copies of the containers that a trial could change in place."""
    copied = dict(values)
    for name, value in values.items():
        if isinstance(value, (dict, list)):
            copied[name] = copy.deepcopy(value)
    return copied


def recreate_accelerator(trainer: Trainer) -> None:
    """Create an accelerator for the current arguments, and keep the user's `gather_function`."""
    gather_function = trainer.gather_function
    is_default = gather_function == trainer.accelerator.gather_for_metrics
    trainer.create_accelerator_and_postprocess()
    if not is_default:
        trainer.gather_function = gather_function
