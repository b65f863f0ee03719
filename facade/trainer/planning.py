"""Translate the arguments and the model of a Trainer into the plan of a run."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING

from torch import nn

from ...lightning_modules.models.pretrained import is_pretrained
from ..arguments import TrainingArguments
from ..arguments.derived import checkpointing
from ..strategies.plan import RunPlan, translate
from ..strategies.strategy import Row
from .optimization import describe_groups

if TYPE_CHECKING:
    from .. import Trainer

_CHECKPOINTING = ("is_activation_checkpointing", "is_gradient_checkpointing")
"""Attributes of `transformers` models that tell whether activation checkpointing is enabled, in
newer and older versions.
"""


def plan_of(trainer: Trainer) -> RunPlan:
    """Translate the current arguments of a Trainer into a plan whose strategy is bound to it."""
    args = trainer.args
    model = trainer.model

    # As in the reference, DDP does not look for unused parameters in a pretrained model with
    # activation checkpointing, because the two are incompatible.
    finds_unused = True
    if args.world_size > 1 and is_pretrained(model):
        finds_unused = not _checkpoints_activations(args, model)

    steps = None
    if trainer._lightrainer.fitting is not None:
        steps = trainer._lightrainer.fitting.length.max_steps
    plan = translate(args, find_unused_parameters=finds_unused, model=model, steps=steps)
    plan.strategy.bind(trainer)

    # The Trainer holds the plan, so a strong reference to the Trainer would create a cycle. The
    # plan may outlive the Trainer.
    reference = weakref.ref(trainer)

    def rows_of_training() -> list[Row]:
        rows = list(plan.rows_of_training())
        trainer_of_plan = reference()
        if trainer_of_plan is not None:
            rows += describe_groups(trainer_of_plan)
        return rows

    return dataclasses.replace(plan, rows_of_training=rows_of_training)


def _checkpoints_activations(args: TrainingArguments, model: nn.Module) -> bool:
    """Return whether the arguments request activation checkpointing, or a script has enabled it."""
    is_requested, _ = checkpointing(args)
    if is_requested:
        return True

    # If a model has both attributes, only the first one is read.
    for name in _CHECKPOINTING:
        if hasattr(model, name):
            return getattr(model, name)
    return False
