"""Names of files and folders, and the callbacks that every Trainer begins with."""

import re

from ...callbacks import DefaultFlowCallback, default_progress_callback
from ...lightning_modules.common.file_names import (
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
)

__all__ = [
    "ADAPTER_CONFIG_NAME",
    "ADAPTER_SAFE_WEIGHTS_NAME",
    "ADAPTER_WEIGHTS_NAME",
    "CONFIG_NAME",
    "DEFAULT_CALLBACKS",
    "DEFAULT_PROGRESS_CALLBACK",
    "FSDP_MODEL_NAME",
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
]

FSDP_MODEL_NAME = "pytorch_model_fsdp"
"""As `transformers.trainer.FSDP_MODEL_NAME`: file name of a sharded model's weights."""

DEFAULT_CALLBACKS = [DefaultFlowCallback]
"""As `transformers.trainer.DEFAULT_CALLBACKS`; changing it has no effect."""

DEFAULT_PROGRESS_CALLBACK = default_progress_callback()
"""As `transformers.trainer.DEFAULT_PROGRESS_CALLBACK`; changing it has no effect."""

_re_checkpoint = re.compile(rf"^{PREFIX_CHECKPOINT_DIR}-(\d+)$")
