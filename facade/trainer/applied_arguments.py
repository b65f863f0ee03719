"""Apply the arguments that scripts and libraries change between two runs."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..arguments import TrainingArguments
from ..arguments.reading import read_fields
from ..arguments.rules import report
from ..strategies.plan import stop_if_asked_to
from .construction import preload_lightning
from .planning import plan_of

if TYPE_CHECKING:
    from .. import Trainer

_ROOT = __name__.partition(".")[0]

_DERIVED_FROM = (
    "per_device_train_batch_size",
    "auto_find_batch_size",
    "label_names",
    "label_smoothing_factor",
    "neftune_noise_alpha",
)
"""Arguments from which the Trainer derives attributes that callers may also set directly."""


class AppliedArguments:
    """Check the arguments of a Trainer before each run, and find those that have changed.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._checked: dict[str, Any] | None = None
        """The arguments at the last successful check; None before the first one."""
        self._derived_from: dict[str, Any]
        """The arguments from which the attributes of the Trainer were derived."""
        self._remember()

    def apply(self) -> None:
        """Check the arguments again, and apply changes made since the construction.

        Called at the start of a run. In a dry run it prints the plan and exits.

        Raises:
            TypeError, ValueError, NotImplementedError: See `report`.
        """
        trainer = self.trainer
        preload_lightning()
        self._check()

        plan = plan_of(trainer)
        plan.strategy.check(trainer.args, trainer.model)
        trainer._lightrainer.plan = plan

        changed = {
            name
            for name, value in self._derived_from.items()
            if getattr(trainer.args, name) != value
        }
        trainer._lightrainer.model_setup.update(changed)
        if changed:
            self._remember()
        stop_if_asked_to(plan, is_main_process=trainer.args.process_index == 0)

    def _check(self) -> None:
        """Check the rules between arguments again if any argument has changed."""
        args = self.trainer.args
        # A library may have replaced the arguments by an object of another class.
        if not isinstance(args, TrainingArguments):
            return
        values = copy.deepcopy(_checked_fields(args))
        if values != self._checked:
            report(args, *read_fields(args))
            self._checked = values

    def _remember(self) -> None:
        """Record that the attributes of the Trainer were derived from the current arguments."""
        args = self.trainer.args
        # Copy the values, because a list of names may be modified in place.
        self._derived_from = {name: copy.copy(getattr(args, name)) for name in _DERIVED_FROM}


def _checked_fields(args: TrainingArguments) -> dict[str, object]:
    """Return the values of the fields that are checked, which excludes fields of subclasses."""
    package_class = next(
        cls for cls in type(args).__mro__ if cls.__module__.startswith(f"{_ROOT}.")
    )
    return {field.name: getattr(args, field.name) for field in dataclasses.fields(package_class)}
