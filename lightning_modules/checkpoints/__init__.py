"""Write folders `checkpoint-N` atomically and read them without unpickling arbitrary objects.

Here: the format, usable from any training loop: weights, states, integrity, crash-safe writing, selection and rotation
of folders; `FolderCheckpointIO` is for Lightning. Not here: when a checkpoint is written
(`facade/checkpointing`). Imports all rooms but `training` and `tasks`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..common.process_identity import owner_token
from ..common.torch_files import load_torch, save_torch
from .adapters import is_peft_model, saved_weights
from .disk import MARGIN, DiskErrorConsensus, DiskFullError, bytes_of, free_space, require_space, sync_tree
from .folders import (
    CheckpointNotFoundError,
    OtherDisk,
    get_last_checkpoint,
    last_intact_checkpoint,
    list_checkpoints,
    rotate_checkpoints,
    sort_checkpoints,
)
from .forms import has_optimizer_parts
from .hashed_files import WrittenFiles
from .manifest import write_manifest
from .owners import FolderInUseError, exclusive
from .staging import abort, begin, commit, discard, final_path, remove_leftovers, staged_folder, staging_path
from .verify import problems, require_intact
from .weights import load_weights, read_weights, save_weights
from .writing import BackgroundWriter, CheckpointFiles, warn_if_disk_full

if TYPE_CHECKING:
    from .folder_checkpoint import FolderCheckpoint
    from .folder_io import FolderCheckpointIO
    from .sharded_files import load_optimizer_parts, save_model_parts, save_optimizer_parts, whole_states_by_name

__all__ = [
    "MARGIN",
    "BackgroundWriter",
    "CheckpointFiles",
    "CheckpointNotFoundError",
    "DiskErrorConsensus",
    "DiskFullError",
    "FolderCheckpoint",
    "FolderCheckpointIO",
    "FolderInUseError",
    "OtherDisk",
    "WrittenFiles",
    "abort",
    "begin",
    "bytes_of",
    "commit",
    "discard",
    "exclusive",
    "final_path",
    "free_space",
    "get_last_checkpoint",
    "has_optimizer_parts",
    "is_peft_model",
    "last_intact_checkpoint",
    "list_checkpoints",
    "load_optimizer_parts",
    "load_torch",
    "load_weights",
    "owner_token",
    "problems",
    "read_weights",
    "remove_leftovers",
    "require_intact",
    "require_space",
    "rotate_checkpoints",
    "save_model_parts",
    "save_optimizer_parts",
    "save_torch",
    "save_weights",
    "saved_weights",
    "sort_checkpoints",
    "staged_folder",
    "staging_path",
    "sync_tree",
    "warn_if_disk_full",
    "whole_states_by_name",
    "write_manifest",
]


_LAZY = {
    "FolderCheckpoint": "folder_checkpoint",
    "FolderCheckpointIO": "folder_io",
    **dict.fromkeys(
        ("load_optimizer_parts", "save_model_parts", "save_optimizer_parts", "whole_states_by_name"), "sharded_files"
    ),
}
"""Modules of names that need Lightning or distributed checkpoints of torch."""


def __getattr__(name: str) -> Any:
    """Import a name lazily."""
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
