"""Unsupported members of `accelerate.Accelerator`, with the reason and the alternative."""

from __future__ import annotations

import logging
from types import FunctionType

from ...lightning_modules.common.libraries import loaded

__all__ = ["REFUSED", "refusal", "warn_of_replaced_methods"]

logger = logging.getLogger(__name__)

_USE_CHECKPOINTS = (
    "use save_strategy and resume_from_checkpoint. In a custom loop, write each state_dict() with "
    "accelerator.save"
)
_USE_REPORT_TO = "report_to selects the trackers. Call trainer.log, or use a callback with on_log"
_CONVERT_TO_FLOAT8 = (
    "convert the model with torchao.float8.convert_to_float8_training before you pass it"
)
_COMPUTE_THE_RANK = "compute it from process_index and the sizes in parallelism_config"
_COMPARE_THE_RANK = "compare accelerator.process_index in the function"
_SHARE_A_TENSOR = "set a tensor, and share it with accelerator.reduce(tensor, 'sum')"
_USE_OUTPUT_DIR = (
    "checkpoints are numbered by their step. Set output_dir and save_total_limit in "
    "TrainingArguments"
)

REFUSED: dict[str, str] = {
    "save_state": _USE_CHECKPOINTS,
    "load_state": _USE_CHECKPOINTS,
    "register_for_checkpointing": "use a callback with state_dict and load_state_dict",
    "register_save_state_pre_hook": (
        "save_state is not supported. Override Trainer._save, or use a callback with on_save"
    ),
    "register_load_state_pre_hook": (
        "load_state is not supported. Override Trainer._load_from_checkpoint"
    ),
    "project_configuration": _USE_OUTPUT_DIR,
    "save_iteration": _USE_OUTPUT_DIR,
    "init_trackers": _USE_REPORT_TO,
    "log": _USE_REPORT_TO,
    "get_tracker": (
        "report_to selects the trackers. Their callbacks are in trainer.callback_handler.callbacks"
    ),
    "ddp_handler": (
        "set ddp_find_unused_parameters, ddp_bucket_cap_mb and the other ddp arguments in "
        "TrainingArguments"
    ),
    "scaler_handler": "fp16 in TrainingArguments scales losses with trainer.accelerator.scaler",
    "init_handler": "set ddp_backend and ddp_timeout in TrainingArguments",
    "autocast_handler": "pass the handler to accelerator.autocast",
    "profile": "use torch.profiler.profile, or ProfilerCallback in a training",
    "profile_handler": "use torch.profiler.profile, or ProfilerCallback in a training",
    "join_uneven_inputs": "use torch.distributed.algorithms.join.Join([model])",
    "on_last_process": _COMPARE_THE_RANK,
    "on_process": _COMPARE_THE_RANK,
    "on_local_process": _COMPARE_THE_RANK,
    "set_trigger": _SHARE_A_TENSOR,
    "check_trigger": _SHARE_A_TENSOR,
    "flag_tensor": _SHARE_A_TENSOR,
    "rng_types": "set accelerator_config={'use_seedable_sampler': ...} in TrainingArguments",
    "fp8_recipe_handler": _CONVERT_TO_FLOAT8,
    "ao_recipe_handler": _CONVERT_TO_FLOAT8,
    "te_recipe_handler": _CONVERT_TO_FLOAT8,
    "msamp_recipe_handler": _CONVERT_TO_FLOAT8,
    "deepspeed_engine_wrapped": "in a training with DeepSpeed, use trainer.model_wrapped",
    "deepspeed_ulysses_dl_adapter": (
        "sequences are split in each batch, not by the loader. Set sp_size in parallelism_config"
    ),
    "tensor_parallel_rank": _COMPUTE_THE_RANK,
    "data_parallel_rank": _COMPUTE_THE_RANK,
    "data_parallel_shard_rank": _COMPUTE_THE_RANK,
    "pipeline_parallel_rank": "pipeline parallelism is not supported, as in transformers",
    "context_parallel_rank": (
        "transformers does not have it either. Compute process_index // tp_size % cp_size"
    ),
}
"""Reasons by member. `hasattr` is False for these members, and they cannot be set."""

_UNKNOWN = (
    "it has the members of accelerate.Accelerator that Trainers and libraries use. "
    "docs/user/accelerator.md lists them"
)


def refusal(name: str) -> AttributeError:
    """Return the error for an unsupported member."""
    reason = REFUSED.get(name, _UNKNOWN)
    return AttributeError(f"trainer.accelerator has no attribute {name!r}: {reason}.")


def warn_of_replaced_methods() -> None:
    """Warn of methods that a script has replaced in `accelerate.Accelerator`: none is called."""
    library = loaded("accelerate.accelerator")
    if library is None:
        return
    for name, method in vars(library.Accelerator).items():
        if not isinstance(method, FunctionType):
            continue
        # The module whose code runs, also where it has copied the name of the original.
        module = str(method.__globals__.get("__name__"))
        if module.partition(".")[0] not in ("accelerate", "contextlib"):
            logger.warning(
                "%s has replaced accelerate.Accelerator.%s, which is not called here. Replace the "
                "method of trainer.accelerator.",
                module,
                name,
            )
