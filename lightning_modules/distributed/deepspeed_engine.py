"""Access to DeepSpeed's engine: whole weights, gradient norms, and saved states.

`deepspeed` is not imported before there is an engine.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..common.dtensor import meta_tensors
from ..common.local_paths import StrPath
from ..optim.optimizer_fit import require_fitting_loaded_state
from .zero_files import require_plain_states, saved_states, states_folder_name
from .zero_part import ZeroPart
from .zero_states import ZeroStates


def is_engine(model: nn.Module) -> bool:
    """Return whether a model is a `DeepSpeedEngine` or of a subclass."""
    # By the name, so that deepspeed is not imported.
    return any(cls.__name__ == "DeepSpeedEngine" for cls in type(model).__mro__)


def trains(model: nn.Module) -> bool:
    """Return whether a model is an engine with an optimizer; one for evaluation has none."""
    return is_engine(model) and model.basic_optimizer is not None


def shards_weights(model: nn.Module) -> bool:
    """Return whether parameters are sharded, by an engine in stage 3 or `deepspeed.zero.Init`."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


def parameters_beside_embeddings(model: nn.Module) -> int | None:
    """Return the number of parameters of a sharded model without its embeddings.

    None for models that DeepSpeed does not shard.
    """
    if not shards_weights(model):
        return None
    embeddings: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings.add(id(module.weight))
    count = 0
    for parameter in model.parameters():
        if id(parameter) not in embeddings:
            # The size of the whole parameter, of which this process has a part.
            count += getattr(parameter, "ds_numel", parameter.numel())
    return count


def clips_gradients(model: nn.Module) -> bool:
    """Return whether a model is an engine that clips in its step, after reducing gradients."""
    return is_engine(model) and not isinstance(model.optimizer, torch.optim.Optimizer)


def last_grad_norm(engine: Any) -> torch.Tensor | float:
    """Return the norm of the gradients before clipping; NaN where DeepSpeed has none."""
    norm = engine.get_global_grad_norm()
    if norm is None:
        return math.nan
    return norm


def input_dtype(model: Any) -> torch.dtype | None:
    """Return the half-precision dtype of an engine's model, for its inputs; None for float32."""
    if not is_engine(model):
        return None
    dtype = model.get_data_types()[0]
    if dtype is torch.float32:
        return None
    return dtype


def release(engine: Any) -> None:
    """Remove the hooks of an engine from its model, so that another engine can use it."""
    engine.destroy()
    for handle in (engine.module_forward_pre_hook, engine.module_forward_post_hook):
        handle.remove()


def whole_state_dict(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """Return the whole weights, as `sharding.whole_state_dict` does."""
    gathered: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    with _at_rest(model):
        for name, tensor in _module_of(model).state_dict(keep_vars=True).items():
            # Tied weights are gathered once, and stay tied.
            if id(tensor) not in gathered:
                with _gathered(tensor):
                    whole = tensor
                    if keep:
                        whole = tensor.detach().to("cpu", copy=True)
                gathered[id(tensor)] = whole
            state[name] = gathered[id(tensor)]
    if not keep:
        return {}
    return state


def whole_shapes(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return each whole tensor by name, without values."""
    return meta_tensors(_module_of(model).state_dict(keep_vars=True).items())


def load_whole(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Load the whole tensors that a model has into it; the values of rank 0 are used."""
    with torch.no_grad(), _at_rest(model):
        for name, tensor in _module_of(model).state_dict(keep_vars=True).items():
            if name in state_dict:
                with _gathered(tensor, writes=True):
                    tensor.copy_(state_dict[name])

    # Update the optimizer's copies in float32.
    optimizer: Any = None
    if trains(model):
        optimizer = getattr(model, "optimizer", None)
    if hasattr(optimizer, "refresh_fp32_params"):
        optimizer.refresh_fp32_params()


def _module_of(model: Any) -> nn.Module:
    """Return the module of an engine; another model unchanged."""
    if is_engine(model):
        return model.module
    return model


@contextlib.contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Wait until no parameter is being gathered or released, and prevent that in the block."""
    optimizer: Any = None
    if is_engine(model):
        optimizer = getattr(model, "optimizer", None)
    if not hasattr(optimizer, "checkpoint_event_prologue"):
        yield
        return
    optimizer.checkpoint_event_prologue()
    try:
        yield
    finally:
        optimizer.checkpoint_event_epilogue()


def _gathered(
    tensor: torch.Tensor, *, writes: bool = False
) -> contextlib.AbstractContextManager[object]:
    """Gather a sharded parameter in the block; with `writes`, rank 0's changes are distributed."""
    if not hasattr(tensor, "ds_id"):
        return contextlib.nullcontext()
    modifier_rank = 0 if writes else None
    zero = import_module("deepspeed").zero
    return zero.GatheredParameters([tensor], modifier_rank=modifier_rank)


def save_states(engine: Any, folder: StrPath, step: int, *, without_frozen: bool = False) -> None:
    """Write this process's shard of the training state; collective.

    Args:
        engine: the engine of the training.
        folder: the folder of the checkpoint.
        step: optimizer steps taken.
        without_frozen: leave out parameters that are not trained.
    """
    engine.save_checkpoint(
        str(folder), tag=states_folder_name(step), exclude_frozen_parameters=without_frozen
    )


def load_states(engine: Any, folder: StrPath, *, strict: bool = True) -> None:
    """Load the states that `save_states` wrote, except the schedule.

    Args:
        engine: a new one.
        folder: the folder of the checkpoint.
        strict: require all weights.

    Raises:
        ValueError: DeepSpeed does not find its files, or they hold objects that do not belong
            there.
    """
    saved = saved_states(folder)
    loaded = None
    if saved is not None:
        require_plain_states(Path(folder, saved.tag))
        loaded, _ = engine.load_checkpoint(
            str(folder), tag=saved.tag, load_module_strict=strict, load_lr_scheduler_states=False
        )
    if loaded is None:
        raise ValueError(f"DeepSpeed does not find the states of a training in {folder}.")
    require_fitting_loaded_state(engine.basic_optimizer, folder)


def load_whole_states(engine: Any, states: ZeroStates, *, strict: bool = True) -> None:
    """Load states that another number of processes, or another stage of ZeRO, may have written.

    Args:
        engine: a new one, in stages 1 to 3.
        states: the saved states.
        strict: require all weights.

    Raises:
        ValueError: they belong to another model or optimizer. Nothing has been loaded.
    """
    optimizer = engine.optimizer
    rank = dist.get_rank(group=optimizer.dp_process_group)
    ranks = dist.get_world_size(group=optimizer.dp_process_group)
    groups = engine._get_zero_param_shapes()
    content = optimizer.state_dict()
    part = ZeroPart(content, groups, rank, ranks)
    _require_same_model(engine, groups, part, states, strict)

    # Build the state that this process would have written, had the checkpoint been written with the
    # present number of processes: the engine can load no other.
    base = {"state": {}, "param_groups": []}
    for group, shapes in enumerate(groups):
        state = _state_of_group(part, group, list(shapes), states)
        if state:
            base["state"][group] = state
    for saved, present in zip(states.param_groups, part.param_groups, strict=True):
        base["param_groups"].append({**saved, "params": present["params"]})
    content[part.states_key] = base

    # The entry None is the optimizer's copy of the weights. A piece is the slice of a parameter
    # that this process has. DeepSpeed takes a list with a state for each rank, and picks its own.
    load_whole(engine, states.weights)
    with _at_rest(engine), torch.no_grad():
        for name, piece in part.pieces.items():
            part.values(piece, None).copy_(states.read(name, None, piece.offset, piece.length))
        _restore_scaler(part.scaler, states)
        optimizer.load_state_dict(
            [content] * ranks, load_optimizer_states=True, load_from_fp32_weights=True
        )

    for name, value in states.counters.items():
        setattr(engine, name, value)
    require_fitting_loaded_state(engine.basic_optimizer, states.folder)


def _state_of_group(
    part: ZeroPart, group: int, names: list[str], states: ZeroStates
) -> dict[str, object]:
    """Return the optimizer state of a flat tensor, for the slice that this process has."""
    # A flat tensor has a single state, so all parameters in it must have been at the same step.
    state = states.numbers(names[0])
    entries = states.entries(names[0])
    for name in names:
        if states.numbers(name) != state or states.entries(name) != entries:
            raise ValueError(
                f"{states.folder}: the states of group {group} are those of different steps."
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


def _require_same_model(
    engine: Any,
    groups: list[dict[str, torch.Size]],
    part: ZeroPart,
    states: ZeroStates,
    strict: bool,
) -> None:
    """Check that model and optimizer have the parameters of the saved ones."""
    # Trained parameters, with their group in the optimizer.
    in_model: dict[str, tuple[torch.Size, int]] = {}
    for group, group_shapes in enumerate(groups):
        for name, shape in group_shapes.items():
            in_model[name] = (shape, part.param_group_of[group])
    in_checkpoint: dict[str, tuple[torch.Size, int]] = {}
    for name, shape in states.shapes.items():
        in_checkpoint[name] = (shape, states.param_group_of(name))

    for name in sorted(in_model.keys() | in_checkpoint.keys()):
        if name not in in_checkpoint:
            raise ValueError(
                f"{states.folder} does not fit: {name} is trained in the model, and not in the "
                "checkpoint."
            )
        if name not in in_model:
            raise ValueError(
                f"{states.folder} does not fit: {name} is trained in the checkpoint, and not in "
                "the model."
            )
        if in_model[name] != in_checkpoint[name]:
            raise ValueError(
                f"{states.folder} does not fit: {name} has shape and group {in_checkpoint[name]} "
                f"there, {in_model[name]} here."
            )

    # Buffers and frozen parameters.
    for name, tensor in whole_shapes(engine).items():
        if name in in_model:
            continue
        if name not in states.weights:
            if strict:
                raise ValueError(f"{states.folder} has no weights for {name}.")
        elif states.weights[name].shape != tensor.shape:
            shapes = f"{tuple(states.weights[name].shape)} there, {tuple(tensor.shape)} here"
            raise ValueError(f"{states.folder} does not fit: {name} is {shapes}.")


def _restore_scaler(scaler: object, states: ZeroStates) -> None:
    """Restore the loss scaler if it is of the same class; another one starts from scratch."""
    if states.scaler is None or states.scaler[0] != type(scaler).__name__:
        return
    for name, value in states.scaler[1].items():
        if hasattr(scaler, name) and isinstance(value, (bool, int, float, type(None))):
            setattr(scaler, name, value)


def choose_accelerator(device: str) -> None:
    """Choose DeepSpeed's devices before its first import.

    By default it uses GPUs if the machine has any.

    Args:
        device: type of the device, such as `cpu`.

    Raises:
        RuntimeError: it uses other devices already.
    """
    os.environ.setdefault("DS_ACCELERATOR", device)
    get_accelerator = import_module("deepspeed.accelerator").get_accelerator
    if device == "cpu":
        # Do not compile this operation, which takes a minute: gloo replaces it.
        import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    chosen = get_accelerator().device_name()
    if chosen.partition(":")[0] != device:
        raise RuntimeError(
            f"deepspeed works on {chosen!r}, not {device!r}: set DS_ACCELERATOR={device} at the "
            "start."
        )


def make_ready(device: str) -> None:
    """Prepare for DeepSpeed: choose its devices, and make a process group for a single process.

    Args:
        device: type of the device, such as `cpu`.
    """
    choose_accelerator(device)
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return
    # DeepSpeed reads this variable.
    os.environ.setdefault("LOCAL_RANK", "0")
    backend = "nccl" if device == "cuda" else "gloo"
    # torch does not declare the stores.
    stores: Any = dist
    dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        # Engines that are garbage still hold the group.
        gc.collect()
        dist.destroy_process_group()
