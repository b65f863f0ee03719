"""TrainerCallbacks in a plain `lightning.Trainer(callbacks=[...])`, without the facade.

Here is the table of the hooks that carry the events; `adapter` has the `LightningBridge`.
"""

from __future__ import annotations

from typing import NamedTuple


class Carrier(NamedTuple):
    """The Lightning hooks in which an event fires, the usual one first."""

    facade: tuple[str, ...]
    """Hooks of the LightningModule behind `lightrainer.Trainer`; none where the Trainer itself
    fires the event.
    """
    plain: tuple[str, ...]
    """Hooks of `LightningBridge`; none where a plain Lightning Trainer has no such event."""
    note: str
    """Remark for the table."""


def _carrier(facade: str, plain: str, note: str = "") -> Carrier:
    return Carrier(tuple(facade.split()), tuple(plain.split()), note)


_AFTER_CLIPPING = (
    "plain: after the module's clipping; under manual optimization before the step of each "
    "optimizer"
)
_STEPPED = "plain: of each optimizer; at the end of the batch where the scaler skipped the step"
_LOGGED = "where the control asks for it, with the metrics of each evaluation, and at the end"
_END_OF_BATCH = "on_train_batch_end on_train_epoch_end"
_ENDS = f"{_END_OF_BATCH} on_train_end"

HOOKS: dict[str, Carrier] = {
    "on_init_end": _carrier(
        "", "setup", "facade: when the Trainer is constructed; plain: at the first run"
    ),
    "on_train_begin": _carrier("on_train_start", "on_train_start"),
    "on_epoch_begin": _carrier(
        "on_train_epoch_start",
        "on_train_epoch_start on_train_batch_start",
        "plain: at the first batch where a training goes on in mid-epoch",
    ),
    "on_step_begin": _carrier(
        "on_train_batch_start", "on_train_batch_start", "plain: of the first micro-batch"
    ),
    "on_substep_end": _carrier(
        "training_step", "on_train_batch_end", "after a micro-batch without an optimizer step"
    ),
    "on_pre_optimizer_step": _carrier(
        "training_step",
        "configure_gradient_clipping on_before_optimizer_step on_train_batch_end",
        _AFTER_CLIPPING,
    ),
    "on_optimizer_step": _carrier(
        "training_step", "Optimizer.register_step_post_hook on_train_batch_end", _STEPPED
    ),
    "on_step_end": _carrier("on_train_batch_end", "on_train_batch_end"),
    "on_log": _carrier(
        _ENDS, "on_train_batch_end on_validation_end on_train_epoch_end on_train_end", _LOGGED
    ),
    "on_prediction_step": _carrier(
        "validation_step test_step",
        "on_validation_batch_end on_test_batch_end on_predict_batch_end",
    ),
    "on_evaluate": _carrier(
        f"{_END_OF_BATCH} on_train_start",
        "on_validation_end",
        "facade: after Lightning's loop, with all metrics",
    ),
    "on_predict": _carrier(
        "",
        "on_test_end on_predict_end",
        "facade: after Lightning's test loop, when `predict` has its metrics",
    ),
    "on_save": _carrier(
        _END_OF_BATCH,
        "on_train_batch_end on_validation_end on_train_epoch_end on_train_batch_start "
        "on_train_epoch_start on_train_end on_validation_start teardown",
        "plain: at the next hook, where it was a ModelCheckpoint that saved",
    ),
    "on_epoch_end": _carrier("on_train_epoch_end", "on_train_epoch_end"),
    "on_train_end": _carrier("on_train_end", "on_train_end"),
    "on_push_begin": _carrier("", "", "facade: where the Trainer uploads; Lightning does not"),
}
"""The carriers of every event."""
