"""Convert a Lightning checkpoint, which is one dict, to the files of a folder, and back.

Entries without a documented file (loops, callbacks, additional optimizers, weights outside of the
model) are in `lightning_state.pt`, which the reference ignores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..common.file_names import (
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
    data_state_name,
    rng_state_name,
)
from ..common.safe_serialization import from_plain, plain_entries
from ..common.torch_files import load_torch, pack, save_torch, unpack
from ..internals.loop_states import (
    IN_WINDOWS,
    PROCESS_STATES,
    loop_position_of,
    loops_at,
    place_from_state,
)
from .weight_formats import first_existing_file

if TYPE_CHECKING:
    import torch

LIGHTNING_STATE_NAME = "lightning_state.pt"
"""Exists only in folders written by Lightning or converted from its files."""

PRECISION = "MixedPrecision"
"""Key of the precision plugin's state, with the loss scaler, in Lightning's checkpoints.

It is the class name of the plugin.
"""


def write_states(
    checkpoint: Mapping[str, Any],
    folder: Path,
    other_weights: Mapping[str, object],
    **state_entries: Any,
) -> None:
    """Write everything except the model's weights.

    Args:
        checkpoint: a Lightning checkpoint. Its `state_dict` is ignored.
        folder: an unfinished folder.
        other_weights: weights of the module that are not the model's.
        state_entries: entries of `trainer_state.json` that the checkpoint does not contain.
    """
    other_entries: dict[str, Any] = {**checkpoint, "state_dict": dict(other_weights)}
    optimizers: list[dict[str, Any]] = list(other_entries.pop("optimizer_states", []))
    schedulers: list[dict[str, Any]] = list(other_entries.pop("lr_schedulers", []))
    packed_states: dict[int, torch.Tensor] = other_entries.pop(PROCESS_STATES, {})
    states = {rank: unpack(packed) for rank, packed in packed_states.items()}

    # Loop states that count windows of the Trainer API would be wrong for another module, whose
    # loops count batches. The position is in the other files of the folder.
    if other_entries.pop(IN_WINDOWS, False):
        del other_entries["loops"]

    # The first optimizer with its schedule.
    if optimizers:
        save_torch(optimizers[0], folder / OPTIMIZER_NAME)
        if schedulers:
            schedule = schedulers[0]
        else:
            schedule = _constant_schedule(optimizers[0], checkpoint["global_step"])
        save_torch(schedule, folder / SCHEDULER_NAME)
        other_entries["optimizer_states"] = optimizers[1:]
        other_entries["lr_schedulers"] = schedulers[1:]
    if "scale" in other_entries.get(PRECISION, {}):
        save_torch(other_entries.pop(PRECISION), folder / SCALER_NAME)

    # Random generators and position in the data of each process.
    for rank, state in states.items():
        rank_in_name = rank if len(states) > 1 else None
        save_torch(state["rng"], folder / rng_state_name(rank_in_name))
        if state["data"] is not None:
            save_torch(state["data"], folder / data_state_name(rank))

    save_torch(_plain_only(other_entries), folder / LIGHTNING_STATE_NAME)
    content = trainer_state(checkpoint, states, **state_entries)
    text = json.dumps(content, indent=2, sort_keys=True)
    (folder / TRAINER_STATE_NAME).write_text(f"{text}\n", encoding="utf-8")


def read_states(folder: Path, *, accumulation: int | None = None) -> dict[str, Any]:
    """Read everything except the model's weights as a Lightning checkpoint.

    Weights outside of the model are in `state_dict`.

    Args:
        folder: a checkpoint of any library.
        accumulation: batches per optimizer step, for checkpoints that do not record it.

    Raises:
        ValueError: a file is damaged, or holds objects other than tensors and plain values.
    """
    state: dict[str, Any] = json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    process_states = _read_process_states(folder)
    checkpoint: dict[str, Any] = {
        "pytorch-lightning_version": version("lightning"),
        "state_dict": {},
        "optimizer_states": [],
        "lr_schedulers": [],
    }
    if (folder / LIGHTNING_STATE_NAME).is_file():
        checkpoint |= from_plain(load_torch(folder / LIGHTNING_STATE_NAME))
    if "loops" not in checkpoint:
        position = _position_of_rank_0(process_states)
        checkpoint |= _loop_entries(state, position, accumulation or 1)

    # The first optimizer with its schedule.
    optimizer_file = first_existing_file(folder, (OPTIMIZER_NAME, OPTIMIZER_NAME_BIN))
    if optimizer_file is not None:
        checkpoint["optimizer_states"].insert(0, load_torch(optimizer_file))
        checkpoint["lr_schedulers"].insert(0, load_torch(folder / SCHEDULER_NAME))
    else:
        # If these entries are missing, Lightning raises that the checkpoint has weights only.
        del checkpoint["optimizer_states"]
        del checkpoint["lr_schedulers"]
    if (folder / SCALER_NAME).is_file():
        checkpoint[PRECISION] = load_torch(folder / SCALER_NAME)
    checkpoint[PROCESS_STATES] = {rank: pack(state) for rank, state in process_states.items()}
    return checkpoint


def _read_process_states(folder: Path) -> dict[int, dict[str, object]]:
    """Read the states of all ranks: `rng`, and `data` (None if it was not saved)."""
    states: dict[int, dict[str, Any]] = {}
    for path in folder.glob("rng_state*.pth"):
        match = re.fullmatch(r"rng_state(?:_([0-9]+))?\.pth", path.name)
        if match is None:
            continue
        rank = int(match[1] or 0)
        states[rank] = {"rng": load_torch(path), "data": None}
        data_file = folder / data_state_name(rank)
        if data_file.is_file():
            states[rank]["data"] = load_torch(data_file)
    return states


def _position_of_rank_0(
    process_states: Mapping[int, Mapping[str, object]],
) -> dict[str, Any] | None:
    """Return the position of rank 0 in the data, counted in windows; None if it was not saved."""
    position = process_states.get(0, {}).get("data")
    if position is None:
        return None
    return from_plain(position)


def _loop_entries(
    state: Mapping[str, Any], position: Mapping[str, Any] | None, accumulation: int
) -> dict[str, Any]:
    """Return the entries that let Lightning's loops resume at a position of the Trainer API.

    Args:
        state: the contents of `trainer_state.json`.
        position: the position in the data.
        accumulation: batches per optimizer step, if there is no position.
    """
    steps = int(state["global_step"])
    # Checkpoints of transformers have no position in the data. Compute it from the step.
    if position is None:
        epoch, batches_done = place_from_state(state, accumulation=accumulation)
        all_batches = steps * accumulation
    else:
        batches_in_window = position["layout"]["accumulation"]

        # At the end of an epoch, Lightning's loops are at the start of the next one.
        if position["done"] >= position["windows"]:
            epoch = position["epoch"] + 1
            batches_done = 0
        else:
            epoch = position["epoch"]
            batches_done = position["done"] * batches_in_window
        all_batches = epoch * position["windows"] * batches_in_window + batches_done

    all_batches = max(all_batches, batches_done)
    loops = loops_at(epoch=epoch, done=batches_done, steps=steps, batches=all_batches)
    return {"epoch": epoch, "global_step": steps, "loops": loops}


def _plain_only(values: Mapping[str, object]) -> object:
    """Convert a checkpoint to plain values, without values that could not be loaded again.

    Warns of each of them, including those within callbacks and hyperparameters.
    """
    entries: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("callbacks", "hyper_parameters") and isinstance(value, Mapping):
            entries[name] = _plain_only(cast("Mapping[str, Any]", value))
        else:
            entries |= plain_entries({name: value})
    # Encode the mapping as `to_plain` does. Its entries are plain already.
    items = [[name, entry] for name, entry in entries.items()]
    return {"kind": "mapping", "class": None, "items": items}


def _constant_schedule(optimizer: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return the state of a constant schedule.

    Without a schedule the Trainer API would not restore the optimizer either.
    """
    base_rates: list[float] = []
    last_rates: list[float] = []
    for group in optimizer["param_groups"]:
        base_rates.append(group.get("initial_lr", group["lr"]))
        last_rates.append(group["lr"])

    # The entries of a `LambdaLR`.
    return {
        "base_lrs": base_rates,
        "last_epoch": steps,
        "_step_count": steps + 1,
        "_get_lr_called_within_step": False,
        "_last_lr": last_rates,
        "lr_lambdas": [None] * len(last_rates),
    }


_CONTROL_FLAGS = (
    "should_training_stop",
    "should_epoch_stop",
    "should_save",
    "should_evaluate",
    "should_log",
)


def trainer_state(
    checkpoint: Mapping[str, Any],
    states: Mapping[int, Mapping[str, object]],
    *,
    batches_in_epoch: float | None = None,
    **entries: Any,
) -> dict[str, Any]:
    """Return the entries of `trainer_state.json` that a Lightning checkpoint contains.

    The logging, evaluation and save intervals are omitted, so lightrainer's Trainer uses those of
    its arguments, and the reference its defaults.

    Args:
        checkpoint: a Lightning checkpoint.
        states: states by rank, whose `data` is the position in the data or None.
        batches_in_epoch: batches per epoch, to compute `epoch`. None uses the saved position.
        entries: additional entries.
    """
    position = _position_of_rank_0(states)
    if position is not None:
        entries["train_batch_size"] = position["layout"]["batch_size"]
    return {
        "epoch": _epochs(checkpoint, position, batches_in_epoch),
        "global_step": checkpoint["global_step"],
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": [],
        # The reference reads this entry at its next save.
        "stateful_callbacks": {
            "TrainerControl": {"args": dict.fromkeys(_CONTROL_FLAGS, False), "attributes": {}}
        },
        **entries,
    }


def _epochs(
    checkpoint: Mapping[str, Any],
    position: Mapping[str, Any] | None,
    batches_in_epoch: float | None,
) -> float:
    """Return the number of completed epochs, including the fraction of the current one."""
    loop_position = loop_position_of(checkpoint["loops"]["fit_loop"])
    if loop_position.at_end:
        return loop_position.epoch + 1.0
    if loop_position.done == 0:
        return float(loop_position.epoch)

    # Lightning's loops count windows or batches.
    if batches_in_epoch is None and position is not None:
        batches_in_epoch = position["windows"]
        if not checkpoint.get(IN_WINDOWS):
            batches_in_epoch *= position["layout"]["accumulation"]
    if batches_in_epoch is None:
        raise ValueError(
            f"the checkpoint is {loop_position.done} batches into epoch {loop_position.epoch}: "
            "pass the number of batches per epoch"
        )
    return loop_position.epoch + loop_position.done / batches_in_epoch
