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

from ..common.dtensor import without_values
from ..common.local_paths import StrPath
from ..optim.optimizer_fit import require_fitting_present_state
from .zero_files import require_plain_states, saved_states, tag_of
from .zero_states import Piece, ZeroPart, ZeroStates


def is_engine(model: Any) -> bool:
    """Return whether a model is a `DeepSpeedEngine` or of a subclass."""
    return any(cls.__name__ == "DeepSpeedEngine" for cls in type(model).__mro__)


def trains(model: Any) -> bool:
    """Return whether a model is an engine with an optimizer; one for evaluation has none."""
    return is_engine(model) and model.basic_optimizer is not None


def shards_weights(model: nn.Module) -> bool:
    """Return whether parameters are sharded as in stage 3, by an engine or by `deepspeed.zero.Init`."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


def parameters_beside_embeddings(model: nn.Module) -> int | None:
    """Return the number of parameters of a sharded model without its embeddings; None for other models."""
    if not shards_weights(model):
        return None
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters() if id(one) not in embeddings)


def clips_gradients(model: Any) -> bool:
    """Return whether a model is an engine that clips in its step, where it reduces the gradients."""
    return is_engine(model) and not isinstance(model.optimizer, torch.optim.Optimizer)


def norm_of_last_step(engine: Any) -> torch.Tensor | float:
    """Return the norm of the gradients before clipping."""
    norm = engine.get_global_grad_norm()
    return math.nan if norm is None else norm


def half_of_inputs(model: Any) -> torch.dtype | None:
    """Return the half-precision dtype of an engine's model, for its inputs; None for float32."""
    if not is_engine(model):
        return None
    dtype = model.get_data_types()[0]
    return None if dtype is torch.float32 else dtype


def release(engine: Any) -> None:
    """Remove the hooks of an engine from its model, so that another engine can use it."""
    engine.destroy()
    for handle in (engine.module_forward_pre_hook, engine.module_forward_post_hook):
        handle.remove()


def whole_state_dict(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """As `sharding.whole_state_dict`."""
    gathered: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    with _at_rest(model):
        for name, tensor in _own(model).state_dict(keep_vars=True).items():
            if id(tensor) not in gathered:  # tied weights stay tied
                with _gathered(tensor):
                    gathered[id(tensor)] = tensor.detach().to("cpu", copy=True) if keep else tensor
            state[name] = gathered[id(tensor)]
    return state if keep else {}


def whole_shapes(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return each whole tensor by name, without values."""
    return without_values(_own(model).state_dict(keep_vars=True).items())


def load_whole(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Load whole tensors into a model, those that it has; rank 0's values are used."""
    with torch.no_grad(), _at_rest(model):
        for name, tensor in _own(model).state_dict(keep_vars=True).items():
            if name in state_dict:
                with _gathered(tensor, writes=True):
                    tensor.copy_(state_dict[name])
    optimizer: Any = getattr(model, "optimizer", None) if trains(model) else None
    if hasattr(optimizer, "refresh_fp32_params"):  # its float32 master weights
        optimizer.refresh_fp32_params()


def _own(model: Any) -> nn.Module:
    return model.module if is_engine(model) else model


@contextlib.contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Wait until no parameter is being gathered or released, and keep it so in the block."""
    optimizer: Any = getattr(model, "optimizer", None) if is_engine(model) else None
    if not hasattr(optimizer, "checkpoint_event_prologue"):
        yield
        return
    optimizer.checkpoint_event_prologue()
    try:
        yield
    finally:
        optimizer.checkpoint_event_epilogue()


def _gathered(tensor: Any, *, writes: bool = False) -> contextlib.AbstractContextManager[Any]:
    if not hasattr(tensor, "ds_id"):
        return contextlib.nullcontext()
    return import_module("deepspeed").zero.GatheredParameters([tensor], modifier_rank=0 if writes else None)


def save_states(engine: Any, folder: StrPath, step: int, *, without_frozen: bool = False) -> None:
    """Write this process's shard of the training state; collective.

    Args:
        engine: of the training.
        folder: the checkpoint.
        step: optimizer steps taken.
        without_frozen: leave out parameters that are not trained.
    """
    engine.save_checkpoint(str(folder), tag=tag_of(step), exclude_frozen_parameters=without_frozen)


def load_states(engine: Any, folder: StrPath, *, strict: bool = True) -> None:
    """Load what `save_states` wrote, except the schedule.

    Args:
        engine: a new one.
        folder: the checkpoint.
        strict: require all weights.

    Raises:
        ValueError: DeepSpeed does not find its files, or they hold objects that do not belong there.
    """
    saved = saved_states(folder)
    loaded = None
    if saved is not None:
        require_plain_states(Path(folder, saved.tag))
        loaded, _ = engine.load_checkpoint(
            str(folder), tag=saved.tag, load_module_strict=strict, load_lr_scheduler_states=False
        )
    if loaded is None:
        raise ValueError(f"DeepSpeed finds no states of a training in {folder}.")
    require_fitting_present_state(engine.basic_optimizer, folder)


def load_whole_states(engine: Any, states: ZeroStates, *, strict: bool = True) -> None:
    """Load this process's shard of states that any number of processes wrote in any stage of ZeRO.

    Args:
        engine: a new one, in stages 1 to 3.
        states: the saved states.
        strict: require all weights.

    Raises:
        ValueError: they are those of another model or optimizer. Nothing has been loaded.
    """
    own = engine.optimizer.state_dict()
    part = ZeroPart(own, engine._get_zero_param_shapes())
    _require_same_model(engine, part, states, strict)
    load_whole(engine, states.weights)
    with _at_rest(engine):
        _load_part(engine.optimizer, own, part, states)
    for name, value in states.counters.items():
        setattr(engine, name, value)
    require_fitting_present_state(engine.basic_optimizer, states.folder)


def _require_same_model(engine: Any, part: ZeroPart, states: ZeroStates, strict: bool) -> None:
    trained = {name: shape for group in part.shapes for name, shape in group.items()}
    groups = {name: place for place, group in zip(part.param_group_of, part.shapes, strict=True) for name in group}
    for name in sorted(trained.keys() ^ states.shapes.keys()):
        has, lacks = ("model", "checkpoint") if name in trained else ("checkpoint", "model")
        raise ValueError(f"{states.folder} does not fit: {name} is trained in the {has}, and not in the {lacks}.")
    for name, shape in trained.items():
        there = tuple(states.shapes[name]), states.param_group_of(name)
        if (tuple(shape), groups[name]) != there:
            here = f"{tuple(shape)} in group {groups[name]} here"
            raise ValueError(f"{states.folder} does not fit: {name} is {there[0]} in group {there[1]} there, {here}.")
    others = {name: tensor.shape for name, tensor in whole_shapes(engine).items() if name not in trained}
    lacking = [name for name in others if name not in states.weights]
    if strict and lacking:
        raise ValueError(f"{states.folder} has no weights for {', '.join(lacking)}.")
    for name, shape in others.items():
        if name not in lacking and states.weights[name].shape != shape:
            shapes = f"{tuple(states.weights[name].shape)} there, {tuple(shape)} here"
            raise ValueError(f"{states.folder} does not fit: {name} is {shapes}.")


def _load_part(optimizer: Any, own: dict[str, Any], part: ZeroPart, states: ZeroStates) -> None:
    """Load this process's shard into an optimizer, as if the same number of processes had written it."""
    rank = dist.get_rank(group=optimizer.dp_process_group)
    pieces = part.pieces(dist.get_world_size(group=optimizer.dp_process_group))
    flats, entries = [], {}
    for group, shapes in enumerate(part.shapes):
        first, *others = shapes
        numbers, names = states.numbers(first), states.entries(first)
        if any((states.numbers(name), states.entries(name)) != (numbers, names) for name in others):
            raise ValueError(f"{states.folder}: the states of group {group} are those of different steps.")
        mine = [(name, piece) for name in shapes for piece in pieces[name] if piece.process == rank]
        flats.append(_filled(part, group, mine, states, None))
        state = numbers | {name: _filled(part, group, mine, states, name) for name in names}
        if state:  # some optimizers keep nothing
            entries[group] = state
    own[part.flats_key] = flats
    saved = zip(states.param_groups, part.param_groups, strict=True)
    groups = [{**options, "params": group["params"]} for options, group in saved]
    own[part.states_key] = {"state": entries, "param_groups": groups}
    _restore_scaler(own.get("loss_scaler"), states)
    optimizer.load_state_dict([own] * (rank + 1), load_optimizer_states=True, load_from_fp32_weights=True)


def _filled(
    part: ZeroPart, group: int, mine: list[tuple[str, Piece]], states: ZeroStates, entry: str | None
) -> torch.Tensor:
    flat = torch.zeros(part.sizes[group], dtype=part.flats[group].dtype, device="cpu")
    for name, piece in mine:
        flat[piece.start : piece.start + piece.length] = states.read(name, entry, piece.offset, piece.length)
    return flat


def _restore_scaler(scaler: Any, states: ZeroStates) -> None:
    """Restore the loss scaler if it is of the same class; another one starts anew."""
    kind, attributes = states.scaler or ("", {})
    if type(scaler).__name__ == kind:
        plain = (bool, int, float, type(None))
        known = {name: value for name, value in attributes.items() if hasattr(scaler, name)}
        vars(scaler).update({name: value for name, value in known.items() if isinstance(value, plain)})


def choose_accelerator(device: str) -> None:
    """Choose DeepSpeed's devices before its first import; by default it takes GPUs if there are any.

    Args:
        device: type of the device, such as `cpu`.

    Raises:
        RuntimeError: it uses others already.
    """
    os.environ.setdefault("DS_ACCELERATOR", device)
    get_accelerator = import_module("deepspeed.accelerator").get_accelerator
    if device == "cpu":  # gloo replaces this op, which takes a minute to compile
        import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    chosen = get_accelerator().device_name()
    if chosen.partition(":")[0] != device:
        raise RuntimeError(f"deepspeed works on {chosen!r}, not {device!r}: set DS_ACCELERATOR={device} at the start.")


def make_ready(device: str) -> None:
    """Prepare for DeepSpeed: choose its devices, and make a process group if this is the only process.

    Args:
        device: type of the device, such as `cpu`.
    """
    choose_accelerator(device)
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
    backend = "nccl" if device == "cuda" else "gloo"
    stores: Any = dist  # which does not declare them
    dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
