"""Find and read DeepSpeed's files in a checkpoint safely, without importing DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..common.local_paths import StrPath
from ..common.torch_files import describe_value, load_torch, require_known_objects

_STATES = "global_step"
"""Prefix of the name of DeepSpeed's folder in a checkpoint, before the step."""

FULL_MODEL_NAME = "mp_rank_00_model_states.pt"


class SavedStates(NamedTuple):
    """Description of DeepSpeed's folder in a checkpoint."""

    tag: str
    """Name of the folder."""
    stages: tuple[int, ...]
    """ZeRO stages that may have written it, and in which DeepSpeed can load it."""
    processes: int | None
    """World size of the run that wrote it; None if any can load it."""


def states_folder_name(step: int) -> str:
    """Return the name of DeepSpeed's folder in a checkpoint."""
    return f"{_STATES}{step}"


def saved_states(folder: StrPath) -> SavedStates | None:
    """Describe DeepSpeed's files in a checkpoint from their names; None if there are none."""
    folder = Path(folder)
    candidates = [path for path in folder.glob(f"{_STATES}*") if path.is_dir()]
    if not candidates:
        return None

    # Use the folder named in the file `latest`, or else the newest.
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

    # Stages 1 to 3 write optimizer states for each rank. Stage 3 writes no full model.
    parts = len(list((folder / tag).glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
    if parts == 0:
        return SavedStates(tag, (0,), None)
    if (folder / tag / FULL_MODEL_NAME).is_file():
        return SavedStates(tag, (1, 2), parts)
    return SavedStates(tag, (3,), parts)


def saved_schedule(folder: StrPath) -> dict[str, object] | None:
    """Return the state of a schedule that DeepSpeed stepped; None without one.

    Raises:
        ValueError: the file is damaged, or contains objects that DeepSpeed does not write.
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
    """Check that files which DeepSpeed will unpickle contain only known objects.

    Raises:
        ValueError: a file contains other objects.
    """
    for file in sorted(folder.glob("*.pt")):
        require_known_objects(file, _STAND_INS)


class StandIn:
    """Stand-in for a DeepSpeed object, with its attributes."""


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
"""Stand-ins for the classes that DeepSpeed writes besides tensors and plain values."""


def load_file(path: Path) -> Mapping[str, Any]:
    """Read a DeepSpeed file, with stand-ins for objects other than tensors and plain values.

    Raises:
        ValueError: it is damaged, or contains objects that DeepSpeed does not write.
    """
    require_known_objects(path, _STAND_INS)
    content = load_torch(path, mmap=True, stand_ins=_STAND_INS)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} is not a DeepSpeed file: it holds {describe_value(content)}.")
    return content
