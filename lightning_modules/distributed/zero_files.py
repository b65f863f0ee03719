"""Find and read DeepSpeed's files in a checkpoint, safely and without DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..common.local_paths import StrPath
from ..common.torch_files import describe_value, load_torch, require_known_objects

_STATES = "global_step"
"""Prefix of DeepSpeed's folder in a checkpoint, before the step."""

FULL_MODEL_NAME = "mp_rank_00_model_states.pt"


class SavedStates(NamedTuple):
    """Contents of DeepSpeed's folder in a checkpoint."""

    tag: str
    """Name of the folder."""
    stages: tuple[int, ...]
    """Stages of ZeRO that may have written it, and in which DeepSpeed itself can read it."""
    processes: int | None
    """Number of processes that wrote it; None if it does not matter."""


def states_folder_name(step: int) -> str:
    """Return the name of DeepSpeed's folder in a checkpoint."""
    return f"{_STATES}{step}"


def saved_states(folder: StrPath) -> SavedStates | None:
    """Describe DeepSpeed's files in a checkpoint by their names; None without any."""
    folder = Path(folder)
    candidates = [path for path in folder.glob(f"{_STATES}*") if path.is_dir()]
    if not candidates:
        return None

    # Use the folder that the file `latest` names, otherwise the newest.
    latest_file = folder / "latest"
    if latest_file.is_file():
        tag = latest_file.read_text(encoding="utf-8").strip()
    else:
        tag = max(candidates, key=_step_of).name
    if tag not in [path.name for path in candidates]:
        raise ValueError(
            f"{latest_file} names {tag[:100]!r}, which is not a folder with DeepSpeed's states in "
            f"{folder}."
        )

    # Stages 1 to 3 write states for each process; stage 3 writes no whole model.
    parts = len(list((folder / tag).glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
    if parts == 0:
        return SavedStates(tag, (0,), None)
    if (folder / tag / FULL_MODEL_NAME).is_file():
        return SavedStates(tag, (1, 2), parts)
    return SavedStates(tag, (3,), parts)


def saved_schedule(folder: StrPath) -> dict[str, object] | None:
    """Return the state of a schedule that DeepSpeed stepped itself; None without one.

    Raises:
        ValueError: the file is damaged, or holds objects that DeepSpeed does not write.
    """
    saved = saved_states(folder)
    if saved is None:
        return None
    files = sorted(Path(folder, saved.tag).glob("*model_states.pt"))
    if not files:
        return None
    state = load_file(files[0]).get("lr_scheduler")
    if not isinstance(state, Mapping):
        return None
    return dict(state)


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix(_STATES)
    if not digits.isdigit():
        return -1
    return int(digits)


def require_plain_states(folder: Path) -> None:
    """Check that files that DeepSpeed is about to unpickle hold only objects that it writes.

    Raises:
        ValueError: one does not.
    """
    for file in sorted(folder.glob("*.pt")):
        require_known_objects(file, _STAND_INS)


class StandIn:
    """Stand-in for an object of DeepSpeed, with its attributes."""


class DynamicLossScaler(StandIn):
    """Stand-in for DeepSpeed's."""


class LossScaler(StandIn):
    """Stand-in for DeepSpeed's."""


_STAND_INS: dict[str, Any] = {
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": DynamicLossScaler,
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": LossScaler,
    "deepspeed.runtime.fp16.loss_scaler.LossScaleProfile": str,
    "deepspeed.runtime.zero.config.ZeroStageEnum": int,
    "deepspeed.utils.tensor_fragment.fragment_address": StandIn,
}
"""Classes that DeepSpeed writes besides tensors and plain values, and their stand-ins."""


def load_file(path: Path) -> Mapping[str, Any]:
    """Read a file of DeepSpeed, with a `StandIn` for each object besides tensors and plain values.

    Raises:
        ValueError: it is damaged, or holds objects that DeepSpeed does not write.
    """
    require_known_objects(path, _STAND_INS)
    content = load_torch(path, mmap=True, stand_ins=_STAND_INS)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} is not what DeepSpeed writes, but {describe_value(content)}.")
    return content
