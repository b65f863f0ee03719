"""File names of `transformers.trainer` and `transformers.utils`, in one place.

Names and values are the same, so that both libraries find each other's files. Numbered names
(shards, RNG states of ranks) are built by `huggingface_hub` and `rng_state_name`.
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
"""Folder to which each rank writes its shards of the weights."""
OPTIMIZER_PARTS_NAME = "optimizer_0"
OPTIMIZER_NAME_BIN = "optimizer.bin"
"""As `optimizer.pt`, but with the names of parameters, as `accelerate` reads it with FSDP."""
TRAINED_WEIGHTS_NAME = "pytorch_model_fsdp.bin"
"""Trained weights by name, from which `accelerate` resumes a PEFT model with FSDP2.
"""
SCHEDULER_NAME = "scheduler.pt"
SCALER_NAME = "scaler.pt"
TRAINER_STATE_NAME = "trainer_state.json"
TRAINING_ARGS_NAME = "training_args.bin"
INCOMPLETE_NAME = "checkpoint-is-incomplete.txt"
"""Marks the folder of a checkpoint that a `CheckpointManager` is writing."""


def rng_state_name(rank: int | None = None) -> str:
    """Return the name of a checkpoint's RNG state file: `rng_state.pth`, or `rng_state_3.pth` for
    rank 3.

    Args:
        rank: the global rank. None for a run with a single process.
    """
    if rank is None:
        return "rng_state.pth"
    return f"rng_state_{rank}.pth"


def data_state_name(rank: int | str) -> str:
    """Return the name of the file with the data position of a rank, or a pattern of such files.

    The reference has no such file.
    """
    return f"data_state_{rank}.pth"
