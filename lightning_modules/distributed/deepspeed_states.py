"""Save and load training states with DeepSpeed's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..common.local_paths import StrPath
from ..optim.optimizer_fit import require_fitting_loaded_state
from .deepspeed_weights import full_shapes, load_full, pause_parameter_gathering
from .zero_files import require_plain_states, saved_states, states_folder_name
from .zero_partition import MASTER_WEIGHTS, ZeroPartition
from .zero_states import ZeroStates


def save_states(engine: Any, folder: StrPath, step: int, *, without_frozen: bool = False) -> None:
    """Write this rank's shard of the training state. Must be called on all ranks.

    Args:
        engine: the engine of the training.
        folder: the folder of the checkpoint.
        step: number of optimizer steps taken.
        without_frozen: exclude frozen parameters.
    """
    engine.save_checkpoint(
        str(folder), tag=states_folder_name(step), exclude_frozen_parameters=without_frozen
    )


def load_states(engine: Any, folder: StrPath, *, strict: bool = True) -> None:
    """Load the states that `save_states` wrote, except that of the schedule.

    Args:
        engine: an engine that has not trained yet.
        folder: the folder of the checkpoint.
        strict: require all weights.

    Raises:
        ValueError: DeepSpeed does not find its files, or they contain unexpected objects.
    """
    saved = saved_states(folder)
    loaded = None
    if saved is not None:
        require_plain_states(Path(folder, saved.tag))
        loaded, _ = engine.load_checkpoint(
            str(folder), tag=saved.tag, load_module_strict=strict, load_lr_scheduler_states=False
        )
    if loaded is None:
        raise ValueError(f"DeepSpeed found no training state in {folder}.")
    require_fitting_loaded_state(engine.basic_optimizer, folder)


def load_full_states(engine: Any, states: ZeroStates, *, strict: bool = True) -> None:
    """Load states that may have been saved with another world size or ZeRO stage.

    Args:
        engine: an engine in ZeRO stage 1 to 3 that has not trained yet.
        states: the saved states.
        strict: require all weights.

    Raises:
        ValueError: the states belong to another model or optimizer. Nothing has been loaded.
    """
    optimizer = engine.optimizer
    rank = dist.get_rank(group=optimizer.dp_process_group)
    world_size = dist.get_world_size(group=optimizer.dp_process_group)

    # Shapes of the trained parameters in each flat tensor, by name.
    shapes_by_group: list[dict[str, torch.Size]] = engine._get_zero_param_shapes()
    optimizer_state = optimizer.state_dict()
    part = ZeroPartition(optimizer_state, shapes_by_group, rank, world_size)
    _require_same_trained_parameters(shapes_by_group, part, states)
    _require_same_other_weights(engine, states, strict)
    optimizer_state[part.states_key] = _optimizer_state_of_this_rank(part, shapes_by_group, states)

    load_full(engine, states.weights)
    with pause_parameter_gathering(engine), torch.no_grad():
        # A piece is the slice of a parameter that this rank owns.
        for name, piece in part.pieces.items():
            master_weights = states.read(name, MASTER_WEIGHTS, piece.offset, piece.length)
            part.values(piece, MASTER_WEIGHTS).copy_(master_weights)
        _restore_scaler(part.scaler, states)

        # DeepSpeed expects a list with the states of all ranks, and selects that of this rank.
        optimizer.load_state_dict(
            [optimizer_state] * world_size, load_optimizer_states=True, load_from_fp32_weights=True
        )

    for name, value in states.counters.items():
        setattr(engine, name, value)
    require_fitting_loaded_state(engine.basic_optimizer, states.folder)


def _optimizer_state_of_this_rank(
    part: ZeroPartition, shapes_by_group: list[dict[str, torch.Size]], states: ZeroStates
) -> dict[str, object]:
    """Return the state that this rank would have saved with the present world size.

    The engine can only load states of the present world size.
    """
    state_of_flat_tensors: dict[int, dict[str, object]] = {}
    for group, shapes in enumerate(shapes_by_group):
        state = _state_of_group(part, group, list(shapes), states)
        if state:
            state_of_flat_tensors[group] = state

    param_groups: list[dict[str, object]] = []
    for saved, present in zip(states.param_groups, part.param_groups, strict=True):
        param_groups.append({**saved, "params": present["params"]})
    return {"state": state_of_flat_tensors, "param_groups": param_groups}


def _state_of_group(
    part: ZeroPartition, group: int, names: list[str], states: ZeroStates
) -> dict[str, object]:
    """Return the optimizer state of this rank's slice of a flat tensor."""
    # A flat tensor has a single optimizer state, so all its parameters must be at the same step.
    state = states.scalars(names[0])
    entries = states.entries(names[0])
    for name in names:
        if states.scalars(name) != state or states.entries(name) != entries:
            raise ValueError(
                f"{states.folder}: the parameters of group {group} have different optimizer states "
                "or steps."
            )

    for entry in entries:
        # Padding stays 0.
        flat = torch.zeros(part.sizes[group], dtype=part.flats[group].dtype, device="cpu")
        for name in names:
            piece = part.pieces.get(name)
            if piece is not None:
                values = states.read(name, entry, piece.offset, piece.length)
                flat[piece.start : piece.start + piece.length] = values
        state[entry] = flat
    return state


def _require_same_trained_parameters(
    shapes_by_group: list[dict[str, torch.Size]], part: ZeroPartition, states: ZeroStates
) -> None:
    """Check that the saved parameters are those that the model trains, in the same groups."""
    in_model: dict[str, tuple[torch.Size, int]] = {}
    for group, shapes in enumerate(shapes_by_group):
        for name, shape in shapes.items():
            in_model[name] = (shape, part.param_group_of[group])
    in_checkpoint: dict[str, tuple[torch.Size, int]] = {}
    for name, shape in states.shapes.items():
        in_checkpoint[name] = (shape, states.param_group_of(name))

    for name in sorted(in_model.keys() | in_checkpoint.keys()):
        if name not in in_checkpoint:
            raise ValueError(
                f"{states.folder} does not fit: {name} is trained in the model, but not in the "
                "checkpoint."
            )
        if name not in in_model:
            raise ValueError(
                f"{states.folder} does not fit: {name} is trained in the checkpoint, but not in "
                "the model."
            )
        if in_model[name] != in_checkpoint[name]:
            saved_shape, saved_group = in_checkpoint[name]
            shape, group = in_model[name]
            raise ValueError(
                f"{states.folder} does not fit: {name} has shape {tuple(saved_shape)} in "
                f"parameter group {saved_group} there, {tuple(shape)} in group {group} here."
            )


def _require_same_other_weights(engine: Any, states: ZeroStates, strict: bool) -> None:
    """Check the shapes of saved buffers and frozen parameters; `strict` requires all of them."""
    for name, tensor in full_shapes(engine).items():
        if name in states.shapes:
            continue
        if name not in states.weights:
            if strict:
                raise ValueError(f"{states.folder} has no weights for {name}.")
            continue
        saved_shape = tuple(states.weights[name].shape)
        shape = tuple(tensor.shape)
        if saved_shape != shape:
            raise ValueError(
                f"{states.folder} does not fit: {name} has shape {saved_shape} there, {shape} here."
            )


def _restore_scaler(scaler: object, states: ZeroStates) -> None:
    """Restore the loss scaler if its class is the same; otherwise it starts from scratch."""
    saved = states.scaler
    if saved is None or saved.class_name != type(scaler).__name__:
        return
    for name, value in saved.attributes.items():
        if hasattr(scaler, name) and isinstance(value, (bool, int, float, type(None))):
            setattr(scaler, name, value)
