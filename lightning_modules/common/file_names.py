"""File names of `transformers.trainer` and `transformers.utils`, in one place.

Names and values are the same, so that both libraries find each other's files. Only the plain names
are here; numbered ones (shards, one random state per process) are made by `rng_state_name` and by
`huggingface_hub`.
"""

from __future__ import annotations

PREFIX_CHECKPOINT_DIR = "checkpoint"
"""Prefix of checkpoint folders, such as `checkpoint-12` after optimizer step 12."""

SAFE_WEIGHTS_NAME = "model.safetensors"
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
WEIGHTS_NAME = "pytorch_model.bin"
WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"
ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_SAFE_WEIGHTS_NAME = "adapter_model.safetensors"
ADAPTER_WEIGHTS_NAME = "adapter_model.bin"
CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"

OPTIMIZER_NAME = "optimizer.pt"
MODEL_PARTS_NAME = "pytorch_model_fsdp_0"
"""Folder into which each process writes its shard of the weights."""
OPTIMIZER_PARTS_NAME = "optimizer_0"
OPTIMIZER_NAME_BIN = "optimizer.bin"
"""As `optimizer.pt`, but by the names of parameters, as `accelerate` reads it under FSDP."""
TRAINED_WEIGHTS_NAME = "pytorch_model_fsdp.bin"
"""Trained weights by name, from which `accelerate` resumes an adapted model under version 2 of
FSDP.
"""
SCHEDULER_NAME = "scheduler.pt"
SCALER_NAME = "scaler.pt"
TRAINER_STATE_NAME = "trainer_state.json"
TRAINING_ARGS_NAME = "training_args.bin"


def rng_state_name(rank: int | None = None) -> str:
    """As the random-state file of a checkpoint: `rng_state.pth`, or `rng_state_3.pth` for process 3
    of several.

    Args:
        rank: the global rank in a run of several processes; None in a run of one.
    """
    if rank is None:
        return "rng_state.pth"
    return f"rng_state_{rank}.pth"


def data_state_name(rank: int | str) -> str:
    """Return the file of the data position of process `rank`, or a pattern of such files.

    The reference has no such file.
    """
    return f"data_state_{rank}.pth"
