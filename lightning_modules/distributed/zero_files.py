"""Find and read DeepSpeed's files in a checkpoint, without DeepSpeed and without unrestricted
unpickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..common.local_paths import StrPath
from ..common.torch_files import describe_value, load_torch, require_known_objects

_STATES = "global_step"
"""Prefix of DeepSpeed's folder in a checkpoint, before the step."""

WHOLE_MODEL_NAME = "mp_rank_00_model_states.pt"


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
    found = [path for path in folder.glob(f"{_STATES}*") if path.is_dir()]
    if not found:
        return None
    named = folder / "latest"
    tag = (
        named.read_text(encoding="utf-8").strip()
        if named.is_file()
        else max(found, key=_step_of).name
    )
    if tag not in {path.name for path in found}:
        raise ValueError(
            f"{named} names {tag[:100]!r}, which is no folder of DeepSpeed's states in {folder}."
        )
    parts = len(list((folder / tag).glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
    if not parts:
        return SavedStates(tag, (0,), None)
    whole = (folder / tag / WHOLE_MODEL_NAME).is_file()
    return SavedStates(tag, (1, 2) if whole else (3,), parts)


def saved_schedule(folder: StrPath) -> dict[str, Any] | None:
    """Return the state of a schedule that DeepSpeed stepped itself; None without one.

    Raises:
        ValueError: the file is damaged, or holds what DeepSpeed does not write.
    """
    saved = saved_states(folder)
    files = sorted(Path(folder, saved.tag).glob("*model_states.pt")) if saved is not None else []
    state = load_file(files[0]).get("lr_scheduler") if files else None
    return dict(state) if isinstance(state, Mapping) else None


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix(_STATES)
    return int(digits) if digits.isdigit() else -1


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
    """Read a file of DeepSpeed, with a `StandIn` for each object that is no tensor or plain value.

    Raises:
        ValueError: it is damaged, or holds what DeepSpeed does not write.
    """
    require_known_objects(path, _STAND_INS)
    content = load_torch(path, mmap=True, stand_ins=_STAND_INS)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} is not what DeepSpeed writes, but {describe_value(content)}.")
    return content
