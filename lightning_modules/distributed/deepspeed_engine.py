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
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ..common.dtensor import without_values
from ..common.torch_files import require_known_objects
from ..optim.optimizer_fit import require_fitting_present_state

StrPath = str | os.PathLike[str]

_STATES = "global_step"
"""DeepSpeed's folder in a checkpoint begins so; the step follows."""

_IN_STATES = {
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaleProfile",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
}
"""What DeepSpeed writes besides tensors and plain values."""


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


class SavedStates(NamedTuple):
    """What lies in the folder that DeepSpeed made in a checkpoint."""

    tag: str
    """Name of the folder."""
    stages: tuple[int, ...]
    """The stages of ZeRO that can read it."""
    processes: int | None
    """How many wrote it; None where their number does not matter."""


def save_states(engine: Any, folder: StrPath, step: int, *, without_frozen: bool = False) -> None:
    """Write what the training goes on from; all processes have to call it, and each writes its part.

    Args:
        engine: of the training.
        folder: the checkpoint.
        step: optimizer steps taken.
        without_frozen: leave out parameters that are not trained.
    """
    engine.save_checkpoint(str(folder), tag=f"{_STATES}{step}", exclude_frozen_parameters=without_frozen)


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
        for file in sorted((Path(folder) / saved.tag).glob("*.pt")):  # which DeepSpeed unpickles in full
            require_known_objects(file, _IN_STATES)
        loaded, _ = engine.load_checkpoint(
            str(folder), tag=saved.tag, load_module_strict=strict, load_lr_scheduler_states=False
        )
    if loaded is None:
        raise ValueError(f"DeepSpeed finds no states of a training in {folder}.")
    require_fitting_present_state(engine.basic_optimizer, folder)


def saved_states(folder: StrPath) -> SavedStates | None:
    """Look at what DeepSpeed wrote into a checkpoint, by the names of its files; None where there is nothing."""
    folder = Path(folder)
    found = [path for path in folder.glob(f"{_STATES}*") if path.is_dir()]
    if not found:
        return None
    named = folder / "latest"
    tag = named.read_text(encoding="utf-8").strip() if named.is_file() else max(found, key=_step_of).name
    if tag not in {path.name for path in found}:
        raise ValueError(f"{named} names {tag[:100]!r}, which is no folder of DeepSpeed's states in {folder}.")
    parts = len(list((folder / tag).glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
    if not parts:
        return SavedStates(tag, (0,), None)
    whole = (folder / tag / "mp_rank_00_model_states.pt").is_file()
    return SavedStates(tag, (1, 2) if whole else (3,), parts)


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix(_STATES)
    return int(digits) if digits.isdigit() else -1


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
