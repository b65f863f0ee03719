"""Callbacks of Lightning that do not resume exactly, and from which checkpoints; a warning names
them on loading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..common.libraries import is_instance
from ..internals.loop_states import LoopPosition

_log = logging.getLogger(__name__)

Applies = Callable[[Any, LoopPosition, bool], bool]
"""Of the callback, the position of the checkpoint, and whether it is inside of a validation."""


@dataclass(frozen=True, kw_only=True)
class UpstreamFault:
    """A callback of Lightning that resumes with other numbers.

    Attributes:
        callback: name of the class.
        applies: whether a checkpoint at a position is concerned.
        effect: what differs then, and what to do.
    """

    callback: str
    applies: Applies
    effect: str


def _inside_epoch(callback: Any, loop_position: LoopPosition, in_validation: bool) -> bool:
    return loop_position.done > 0 and not loop_position.at_end


def _inside_validation(callback: Any, loop_position: LoopPosition, in_validation: bool) -> bool:
    return in_validation


def _after_unfreezing(callback: Any, loop_position: LoopPosition, in_validation: bool) -> bool:
    return (loop_position.epoch, loop_position.done) > (callback.unfreeze_backbone_at_epoch, 0)


def _after_an_epoch(callback: Any, loop_position: LoopPosition, in_validation: bool) -> bool:
    return loop_position.epoch + loop_position.at_end > 0


UPSTREAM_FAULTS = (
    UpstreamFault(
        callback="StochasticWeightAveraging",
        applies=_inside_epoch,
        effect="its schedule starts with the next epoch only. Resume from the end of an epoch.",
    ),
    UpstreamFault(
        callback="WeightAveraging",
        applies=_inside_validation,
        effect=(
            "the averaged weights are taken for those that are trained. Resume from a checkpoint "
            "outside of it."
        ),
    ),
    UpstreamFault(
        callback="BackboneFinetuning",
        applies=_after_unfreezing,
        effect="the backbone stays frozen. Set requires_grad of its parameters in on_train_start.",
    ),
    UpstreamFault(
        callback="ModelPruning",
        applies=_after_an_epoch,
        effect=(
            "weights that were pruned are trained again. Prune after the training, or do not "
            "resume."
        ),
    ),
)


def warn_of_upstream_faults(
    callbacks: Iterable[Any], loop_position: LoopPosition, in_validation: bool
) -> None:
    """Warn of callbacks of Lightning with which the training is not that of an uninterrupted one.

    Args:
        callbacks: those of the trainer.
        loop_position: where the checkpoint was written.
        in_validation: inside of a validation.
    """
    for callback in callbacks:
        for fault in UPSTREAM_FAULTS:
            is_concerned = is_instance(callback, "lightning.pytorch.callbacks", fault.callback)
            if is_concerned and fault.applies(callback, loop_position, in_validation):
                _log.warning(
                    "Lightning's %s does not resume exactly from this checkpoint: %s",
                    fault.callback,
                    fault.effect,
                )
