"""DeepSpeed's engine around a model: its weights as whole tensors, its norms, and its states on the disk.

Nothing here imports `deepspeed` before there is an engine.
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
from ..optim.optimizer_fit import require_fitting_present_state
from .zero_files import require_plain_states, saved_states, tag_of
from .zero_states import Piece, ZeroPart, ZeroStates

StrPath = str | os.PathLike[str]


def is_engine(model: Any) -> bool:
    """Whether this is a `DeepSpeedEngine`, or one of its kinds."""
    return any(cls.__name__ == "DeepSpeedEngine" for cls in type(model).__mro__)


def trains(model: Any) -> bool:
    """Whether it is an engine that can take steps; one of an evaluation cannot."""
    return is_engine(model) and model.basic_optimizer is not None


def shards_weights(model: nn.Module) -> bool:
    """Whether each process has a part of the parameters, as in stage 3, by an engine or by `deepspeed.zero.Init`."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


def parameters_beside_embeddings(model: nn.Module) -> int | None:
    """How many numbers the model has, where its parameters are in parts and it cannot tell; None where it can."""
    if not shards_weights(model):
        return None
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters() if id(one) not in embeddings)


def clips_gradients(model: Any) -> bool:
    """Whether it is an engine that clips in its step: only there gradients of all processes come together."""
    return is_engine(model) and not isinstance(model.optimizer, torch.optim.Optimizer)


def norm_of_last_step(engine: Any) -> torch.Tensor | float:
    """The norm of the gradients before they were clipped."""
    norm = engine.get_global_grad_norm()
    return math.nan if norm is None else norm


def half_of_inputs(model: Any) -> torch.dtype | None:
    """The format that an engine has cast a model to, for inputs to have it too; None for float32."""
    if not is_engine(model):
        return None
    dtype = model.get_data_types()[0]
    return None if dtype is torch.float32 else dtype


def release(engine: Any) -> None:
    """Take the hooks of an engine from its model, so that another engine can have it."""
    engine.destroy()
    for handle in (engine.module_forward_pre_hook, engine.module_forward_post_hook):
        handle.remove()


def whole_state_dict(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """See `sharding.whole_state_dict`."""
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
    """Each whole tensor, by its name in the model, without values."""
    return without_values(_own(model).state_dict(keep_vars=True).items())


def load_whole(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Fill a model with those of the whole tensors whose names it has; those of the first process count."""
    with torch.no_grad(), _at_rest(model):
        for name, tensor in _own(model).state_dict(keep_vars=True).items():
            if name in state_dict:
                with _gathered(tensor, writes=True):
                    tensor.copy_(state_dict[name])
    optimizer: Any = getattr(model, "optimizer", None) if trains(model) else None
    if hasattr(optimizer, "_restore_from_bit16_weights"):  # it has weights of its own, in float32
        optimizer._restore_from_bit16_weights()


def _own(model: Any) -> nn.Module:
    return model.module if is_engine(model) else model


@contextlib.contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """No parameter is on its way to or from other processes meanwhile."""
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
    """Write what the training goes on from; all processes have to call it, and each writes its part.

    Args:
        engine: of the training.
        folder: the checkpoint.
        step: optimizer steps taken.
        without_frozen: leave out parameters that are not trained.
    """
    engine.save_checkpoint(str(folder), tag=tag_of(step), exclude_frozen_parameters=without_frozen)


def load_states(engine: Any, folder: StrPath, *, strict: bool = True) -> None:
    """Go on from what `save_states` wrote; the schedule is not looked for.

    Args:
        engine: a new one.
        folder: the checkpoint.
        strict: there have to be all weights.

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
    """Go on from the states of any number of processes, and of any stage of ZeRO, each process with its part of them.

    Args:
        engine: a new one, in stages 1 to 3.
        states: what was written.
        strict: there have to be all weights.

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
        if shape != states.shapes[name] or groups[name] != states.param_group_of(name):
            raise ValueError(
                f"{states.folder} does not fit: {name} has the shape {tuple(states.shapes[name])} there, in group "
                f"{states.param_group_of(name)} of the optimizer, and {tuple(shape)} in group {groups[name]} here."
            )
    others = {name: tensor.shape for name, tensor in whole_shapes(engine).items() if name not in trained}
    lacking = [name for name in others if name not in states.weights]
    if strict and lacking:
        raise ValueError(f"{states.folder} has no weights for {', '.join(lacking)}.")
    for name, shape in others.items():
        if name not in lacking and states.weights[name].shape != shape:
            raise ValueError(
                f"{states.folder} does not fit: {name} is of shape {tuple(states.weights[name].shape)} there, and "
                f"{tuple(shape)} here."
            )


def _load_part(optimizer: Any, own: dict[str, Any], part: ZeroPart, states: ZeroStates) -> None:
    """Let an optimizer load its state with the values of this process, as if as many had written it."""
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
    flat = torch.zeros(part.sizes[group], dtype=part.flats[group].dtype)
    for name, piece in mine:
        flat[piece.start : piece.start + piece.length] = states.read(name, entry, piece.offset, piece.length)
    return flat


def _restore_scaler(scaler: Any, states: ZeroStates) -> None:
    """Let what scales losses go on where it stood; another kind, which was asked for since, begins anew."""
    kind, attributes = states.scaler or ("", {})
    if type(scaler).__name__ == kind:
        plain = (bool, int, float, type(None))
        known = {name: value for name, value in attributes.items() if hasattr(scaler, name)}
        vars(scaler).update({name: value for name, value in known.items() if isinstance(value, plain)})


def choose_accelerator(device: str) -> None:
    """Tell DeepSpeed which devices to work on, before its first import: it would take GPUs where there are some.

    Args:
        device: type of the device, such as `cpu`.

    Raises:
        RuntimeError: it works on others already.
    """
    os.environ.setdefault("DS_ACCELERATOR", device)
    get_accelerator = import_module("deepspeed.accelerator").get_accelerator
    if device == "cpu":  # gloo does it: compiling this op would take a minute of the first run
        import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    chosen = get_accelerator().device_name()
    if chosen.partition(":")[0] != device:
        raise RuntimeError(
            f"deepspeed works on {chosen!r}, but the training is to run on {device!r}: it was imported, or told by "
            f"DS_ACCELERATOR, before. Set the environment variable DS_ACCELERATOR={device} for the whole script."
        )


def make_ready(device: str) -> None:
    """What has to be before DeepSpeed takes a model apart: its devices, and a process group, if only of this process.

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
