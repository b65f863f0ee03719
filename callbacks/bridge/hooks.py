"""Table of the Lightning hooks in which each event fires, under the facade and in a plain `lightning.Trainer`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """The hooks in which an event fires, the usual one first."""

    facade: tuple[str, ...] = ()
    """Hooks of the LightningModule behind `lightrainer.Trainer`; none where the Trainer itself fires the event."""
    plain: tuple[str, ...] = ()
    """Hooks of `LightningBridge`; none where a plain Lightning Trainer has no such event."""
    note: str = ""
    """Remark for the table."""


HOOKS: dict[str, Carrier] = {
    "on_init_end": Carrier(plain=("setup",), note="facade: when the Trainer is constructed; plain: at the first run"),
    "on_train_begin": Carrier(facade=("on_train_start",), plain=("on_train_start",)),
    "on_epoch_begin": Carrier(
        facade=("on_train_epoch_start",),
        plain=("on_train_epoch_start", "on_train_batch_start"),
        note="plain: at the first batch where a training goes on in mid-epoch",
    ),
    "on_step_begin": Carrier(
        facade=("on_train_batch_start",),
        plain=("on_train_batch_start",),
        note="plain: of the first micro-batch of a step",
    ),
    "on_substep_end": Carrier(
        facade=("training_step",),
        plain=("on_train_batch_end",),
        note="after a micro-batch without an optimizer step",
    ),
    "on_pre_optimizer_step": Carrier(
        facade=("training_step",),
        plain=("configure_gradient_clipping", "on_before_optimizer_step", "on_train_batch_end"),
        note="plain: after the module's clipping; under manual optimization before the step of each optimizer",
    ),
    "on_optimizer_step": Carrier(
        facade=("training_step",),
        plain=("Optimizer.register_step_post_hook", "on_train_batch_end"),
        note="plain: of each optimizer; at the end of the batch where the scaler skipped the step",
    ),
    "on_step_end": Carrier(facade=("on_train_batch_end",), plain=("on_train_batch_end",)),
    "on_log": Carrier(
        facade=("on_train_batch_end", "on_train_epoch_end", "on_train_end"),
        plain=("on_train_batch_end", "on_validation_end", "on_train_epoch_end", "on_train_end"),
        note="where the control asks for it, with the metrics of each evaluation, and at the end",
    ),
    "on_prediction_step": Carrier(
        facade=("validation_step", "test_step"),
        plain=("on_validation_batch_end", "on_test_batch_end", "on_predict_batch_end"),
    ),
    "on_evaluate": Carrier(
        facade=("on_train_batch_end", "on_train_epoch_end", "on_train_start"),
        plain=("on_validation_end",),
        note="facade: after Lightning's evaluation loop, with all metrics",
    ),
    "on_predict": Carrier(
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
    "on_push_begin": Carrier(note="facade: where the Trainer uploads; Lightning does not"),
}
"""The carriers of every event."""


def hook_table() -> str:
    """The table as Markdown, as it stands in the documentation."""
    rows = ["| event | under `lightrainer.Trainer` | in a plain `lightning.Trainer` | |", "|---|---|---|---|"]
    for event, carrier in HOOKS.items():
        facade, plain = (", ".join(f"`{hook}`" for hook in hooks) or "-" for hooks in (carrier.facade, carrier.plain))
        rows.append(f"| `{event}` | {facade} | {plain} | {carrier.note} |")
    return "\n".join(rows)
