"""What `trainer_state.json` says of a training that Lightning ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..common.safe_serialization import from_plain
from ..internals.loop_states import IN_WINDOWS

_SWITCHES = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


def trainer_state(checkpoint: Mapping[str, Any], states: Mapping[int, Any], **known: Any) -> dict[str, Any]:
    """The documented entries as far as Lightning knows them.

    The intervals of logging, evaluating and saving are left out: those of the arguments then count where lightrainer's
    Trainer goes on, and the default ones where the reference does.

    Args:
        checkpoint: as Lightning makes it.
        states: by rank, `data` is where the process stands in its data, or None.
        known: further entries.
    """
    written = (states.get(0) or {}).get("data")
    data: dict[str, Any] | None = None if written is None else from_plain(written)
    if data is not None:
        known["train_batch_size"] = data["layout"]["batch_size"]
    return {
        "epoch": _epochs(checkpoint, data, known.pop("batches_in_epoch", None)),
        "global_step": checkpoint["global_step"],
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": [],
        # The reference asks for this entry when it saves the next time.
        "stateful_callbacks": {"TrainerControl": {"args": dict.fromkeys(_SWITCHES, False), "attributes": {}}},
        **known,
    }


def _epochs(checkpoint: Mapping[str, Any], data: Mapping[str, Any] | None, batches_in_epoch: float | None) -> float:
    """Epochs done, with the part of the present one."""
    fit = checkpoint["loops"]["fit_loop"]
    epochs, batches = fit["epoch_progress"]["current"], fit["epoch_loop.batch_progress"]
    epoch = epochs["processed"]
    over = epochs["ready"] <= epoch and batches["is_last_batch"]
    done = 0 if over else batches["current"]["processed"]
    if done == 0:
        return float(epoch)
    if batches["is_last_batch"]:
        return epoch + 1.0
    if batches_in_epoch is None and data is not None:
        batches_in_epoch = data["windows"] * (1 if checkpoint.get(IN_WINDOWS) else data["layout"]["accumulation"])
    if batches_in_epoch is None:
        raise ValueError(
            f"the checkpoint lies {done} batches inside of epoch {epoch}, but does not say how many an epoch has: "
            "pass their number, or take a checkpoint from the end of an epoch"
        )
    return epoch + done / batches_in_epoch
