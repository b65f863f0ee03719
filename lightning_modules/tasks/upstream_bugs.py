"""Warn about Lightning callbacks that do not resume exactly from certain checkpoints.

The warning is logged when such a checkpoint is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..common.libraries import is_instance
from ..internals.lightning_import import Callback
from ..internals.loop_states import LoopPosition

_log = logging.getLogger(__name__)


def warn_of_upstream_bugs(
    callbacks: Iterable[Callback], loop_position: LoopPosition, in_validation: bool
) -> None:
    """Warn about Lightning callbacks after which a resumed training differs from an uninterrupted
    one.

    Args:
        callbacks: those of the trainer.
        loop_position: where the checkpoint was written.
        in_validation: whether it was written inside a validation.
    """
    epoch_and_batch = (loop_position.epoch, loop_position.done)
    is_inside_epoch = loop_position.done > 0 and not loop_position.at_end
    is_after_first_epoch = loop_position.epoch > 0 or loop_position.at_end

    # The difference and a remedy, by the class of the callback.
    effects: dict[str, str] = {}
    if is_inside_epoch:
        effects["StochasticWeightAveraging"] = (
            "its schedule starts with the next epoch only. Resume from the end of an epoch."
        )
    if in_validation:
        effects["WeightAveraging"] = (
            "the checkpoint was written inside a validation, and the training would continue with "
            "the averaged weights. Resume from a checkpoint outside of a validation."
        )
    if is_after_first_epoch:
        effects["ModelPruning"] = (
            "pruned weights are trained again. Prune after the training, or do not resume."
        )

    for callback in callbacks:
        unfreezing_epoch: int | None = getattr(callback, "unfreeze_backbone_at_epoch", None)
        if unfreezing_epoch is not None and epoch_and_batch > (unfreezing_epoch, 0):
            effects["BackboneFinetuning"] = (
                "the backbone stays frozen. Set requires_grad of its parameters in on_train_start."
            )
        for class_name, effect in effects.items():
            if is_instance(callback, "lightning.pytorch.callbacks", class_name):
                _log.warning(
                    "Lightning's %s does not resume exactly from this checkpoint: %s",
                    class_name,
                    effect,
                )
