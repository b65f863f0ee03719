"""TrainerCallbacks in a plain `lightning.Trainer(callbacks=[...])`, without the facade.

This module has the table of the hooks in which events fire; `adapter` has the `LightningBridge`.
"""

from __future__ import annotations

from typing import NamedTuple


class Carrier(NamedTuple):
    """The Lightning hooks in which an event fires, the usual one first."""

    facade: tuple[str, ...]
    """Hooks of the LightningModule behind `lightrainer.Trainer`; empty if the Trainer itself fires
    the event.
    """
    plain: tuple[str, ...]
    """Hooks of `LightningBridge`; empty if a plain Lightning Trainer has no such event."""
    note: str = ""
    """Remark for the table in the documentation."""


HOOKS: dict[str, Carrier] = {
    "on_init_end": Carrier(
        facade=(),
        plain=("setup",),
        note="facade: when the Trainer is constructed; plain: at the first run",
    ),
    "on_train_begin": Carrier(facade=("on_train_start",), plain=("on_train_start",)),
    "on_epoch_begin": Carrier(
        facade=("on_train_epoch_start",),
        plain=("on_train_epoch_start", "on_train_batch_start"),
        note="plain: at the first batch where a training resumes in mid-epoch",
    ),
    "on_step_begin": Carrier(
        facade=("on_train_batch_start",),
        plain=("on_train_batch_start",),
        note="plain: of the first micro-batch",
    ),
    "on_substep_end": Carrier(
        facade=("training_step",),
        plain=("on_train_batch_end",),
        note="after a micro-batch without an optimizer step",
    ),
    "on_pre_optimizer_step": Carrier(
        facade=("training_step",),
        plain=(
            "configure_gradient_clipping",
            "on_before_optimizer_step",
            "on_train_batch_end",
        ),
        note=(
            "plain: after the module's clipping; under manual optimization before the step of each "
            "optimizer"
        ),
    ),
    "on_optimizer_step": Carrier(
        facade=("training_step",),
        plain=("Optimizer.register_step_post_hook", "on_train_batch_end"),
        note="plain: of each optimizer; at the end of the batch where the scaler skipped the step",
    ),
    "on_step_end": Carrier(facade=("on_train_batch_end",), plain=("on_train_batch_end",)),
    "on_log": Carrier(
        facade=("on_train_batch_end", "on_train_epoch_end", "on_train_end"),
        plain=(
            "on_train_batch_end",
            "on_validation_end",
            "on_train_epoch_end",
            "on_train_end",
        ),
        note="where the control asks for it, with the metrics of each evaluation, and at the end",
    ),
    "on_prediction_step": Carrier(
        facade=("validation_step", "test_step"),
        plain=("on_validation_batch_end", "on_test_batch_end", "on_predict_batch_end"),
    ),
    "on_evaluate": Carrier(
        facade=("on_train_batch_end", "on_train_epoch_end", "on_train_start"),
        plain=("on_validation_end",),
        note="facade: after Lightning's loop, with all metrics",
    ),
    "on_predict": Carrier(
        facade=(),
        plain=("on_test_end", "on_predict_end"),
        note="facade: after Lightning's test loop, when `predict` has its metrics",
    ),
    "on_save": Carrier(
        facade=("on_train_batch_end", "on_train_epoch_end"),
        plain=(
            "on_train_batch_end",
            "on_validation_end",
            "on_train_epoch_end",
            "on_train_batch_start",
            "on_train_epoch_start",
            "on_train_end",
            "on_validation_start",
            "teardown",
        ),
        note="plain: at the next hook, where it was a ModelCheckpoint that saved",
    ),
    "on_epoch_end": Carrier(facade=("on_train_epoch_end",), plain=("on_train_epoch_end",)),
    "on_train_end": Carrier(facade=("on_train_end",), plain=("on_train_end",)),
    "on_push_begin": Carrier(
        facade=(), plain=(), note="facade: where the Trainer uploads; Lightning does not"
    ),
}
"""The hooks of every event."""
