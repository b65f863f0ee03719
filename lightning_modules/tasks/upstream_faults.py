"""Callbacks of Lightning that do not resume exactly, and from which checkpoints.

A warning names them when such a checkpoint is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..common.libraries import is_instance
from ..internals.lightning_import import Callback
from ..internals.loop_states import LoopPosition

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import BackboneFinetuning

_log = logging.getLogger(__name__)

Condition = Callable[[Any, LoopPosition, bool], bool]
"""Called with the callback, the position of the checkpoint, and whether it is in a validation."""


@dataclass(frozen=True, kw_only=True)
class UpstreamFault:
    """A callback of Lightning that resumes with other numbers.

    Attributes:
        callback: name of the class.
        applies: returns whether a checkpoint is affected.
        effect: what differs, and what to do.
    """

    callback: str
    applies: Condition
    effect: str


def _is_inside_epoch(callback: Callback, loop_position: LoopPosition, in_validation: bool) -> bool:
    return loop_position.done > 0 and not loop_position.at_end


def _is_inside_validation(
    callback: Callback, loop_position: LoopPosition, in_validation: bool
) -> bool:
    return in_validation


def _is_after_unfreezing(
    callback: BackboneFinetuning, loop_position: LoopPosition, in_validation: bool
) -> bool:
    return (loop_position.epoch, loop_position.done) > (callback.unfreeze_backbone_at_epoch, 0)


def _is_after_first_epoch(
    callback: Callback, loop_position: LoopPosition, in_validation: bool
) -> bool:
    return loop_position.epoch > 0 or loop_position.at_end


UPSTREAM_FAULTS = (
    UpstreamFault(
        callback="StochasticWeightAveraging",
        applies=_is_inside_epoch,
        effect="its schedule starts with the next epoch only. Resume from the end of an epoch.",
    ),
    UpstreamFault(
        callback="WeightAveraging",
        applies=_is_inside_validation,
        effect=(
            "the checkpoint was written inside a validation, and the training would continue with "
            "the averaged weights. Resume from a checkpoint outside of a validation."
        ),
    ),
    UpstreamFault(
        callback="BackboneFinetuning",
        applies=_is_after_unfreezing,
        effect="the backbone stays frozen. Set requires_grad of its parameters in on_train_start.",
    ),
    UpstreamFault(
        callback="ModelPruning",
        applies=_is_after_first_epoch,
        effect=("pruned weights are trained again. Prune after the training, or do not resume."),
    ),
)


def warn_of_upstream_faults(
    callbacks: Iterable[Callback], loop_position: LoopPosition, in_validation: bool
) -> None:
    """Warn of callbacks of Lightning that make a resumed training differ from an uninterrupted one.

    Args:
        callbacks: those of the trainer.
        loop_position: where the checkpoint was written.
        in_validation: whether it was written inside a validation.
    """
    for callback in callbacks:
        for fault in UPSTREAM_FAULTS:
            has_fault = is_instance(callback, "lightning.pytorch.callbacks", fault.callback)
            if has_fault and fault.applies(callback, loop_position, in_validation):
                _log.warning(
                    "Lightning's %s does not resume exactly from this checkpoint: %s",
                    fault.callback,
                    fault.effect,
                )
