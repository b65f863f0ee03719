"""As the folder `checkpoint-N` of `transformers.Trainer`, but never half written and never blindly unpickled.

The format on its own, without a trainer: names of the files, weights, tensors, integrity, crash-safe writing, and the
choice and deletion of folders. Usable from any training loop.
"""

from .folders import (
    get_last_checkpoint,
    last_intact_checkpoint,
    list_checkpoints,
    rotate_checkpoints,
    sort_checkpoints,
)
from .forms import LoadReport
from .names import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    PREFIX_CHECKPOINT_DIR,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    rng_state_name,
)
from .owners import owner_token
from .staging import abort, begin, commit, discard, remove_leftovers, staged_folder, staging_path
from .tensors import load_torch, save_torch
from .verify import problems, require_intact
from .weights import load_weights, save_weights

__all__ = [
    "ADAPTER_CONFIG_NAME",
    "ADAPTER_SAFE_WEIGHTS_NAME",
    "ADAPTER_WEIGHTS_NAME",
    "CONFIG_NAME",
    "GENERATION_CONFIG_NAME",
    "OPTIMIZER_NAME",
    "OPTIMIZER_NAME_BIN",
    "PREFIX_CHECKPOINT_DIR",
    "SAFE_WEIGHTS_INDEX_NAME",
    "SAFE_WEIGHTS_NAME",
    "SCALER_NAME",
    "SCHEDULER_NAME",
    "TRAINER_STATE_NAME",
    "TRAINING_ARGS_NAME",
    "WEIGHTS_INDEX_NAME",
    "WEIGHTS_NAME",
    "LoadReport",
    "abort",
    "begin",
    "commit",
    "discard",
    "get_last_checkpoint",
    "last_intact_checkpoint",
    "list_checkpoints",
    "load_torch",
    "load_weights",
    "owner_token",
    "problems",
    "remove_leftovers",
    "require_intact",
    "rng_state_name",
    "rotate_checkpoints",
    "save_torch",
    "save_weights",
    "sort_checkpoints",
    "staged_folder",
    "staging_path",
]
