"""Unsupported members of `accelerate.Accelerator`, with the reason and the alternative."""

from __future__ import annotations

__all__ = ["REFUSED", "refusal"]

_STATES = (
    "set save_strategy and resume_from_checkpoint; in a loop of your own save state_dict()s by "
    "accelerator.save"
)
_TRACKERS = "the trackers are those of report_to. Call trainer.log, or add a callback with on_log"
_FP8 = "pass fp8=True to TrainingArguments, which is that of torchao without settings"
_GRID = "there is no parallelism_config with that dimension. Give one in the arguments"
_PROJECT = (
    "folders and numbers of checkpoints are those of the arguments: output_dir, save_total_limit"
)

REFUSED: dict[str, str] = {
    "save_state": _STATES,
    "load_state": _STATES,
    "register_for_checkpointing": "give a callback state_dict and load_state_dict",
    "register_save_state_pre_hook": (
        "there is no save_state. Override Trainer._save, or use a callback with on_save"
    ),
    "register_load_state_pre_hook": (
        "there is no load_state. Override Trainer._load_from_checkpoint"
    ),
    "project_configuration": _PROJECT,
    "save_iteration": _PROJECT,
    "init_trackers": _TRACKERS,
    "log": _TRACKERS,
    "get_tracker": (
        "the trackers are those of report_to: look for their callback in "
        "trainer.callback_handler.callbacks"
    ),
    "ddp_handler": (
        "set ddp_find_unused_parameters, ddp_bucket_cap_mb and their like in the arguments"
    ),
    "scaler_handler": (
        "Lightning's precision plugin has the scaler; its scale is trainer.accelerator.scaler"
    ),
    "init_handler": "set ddp_backend and ddp_timeout in the arguments",
    "autocast_handler": "pass it to accelerator.autocast",
    "profile_handler": "pass it to accelerator.profile",
    "rng_types": "set accelerator_config={'use_seedable_sampler': ...} in the arguments",
    "fp8_recipe_handler": _FP8,
    "ao_recipe_handler": _FP8,
    "te_recipe_handler": _FP8,
    "msamp_recipe_handler": _FP8,
    "deepspeed_engine_wrapped": "in a training with DeepSpeed the engine is trainer.model_wrapped",
    "deepspeed_ulysses_dl_adapter": (
        "a batch is split here, not a loader. Set sp_size of parallelism_config"
    ),
    "tensor_parallel_rank": _GRID,
    "data_parallel_rank": _GRID,
    "data_parallel_shard_rank": _GRID,
    "pipeline_parallel_rank": "pipelines are not supported, as in transformers",
    "context_parallel_rank": "not in transformers either. Use process_index // tp_size % cp_size",
}
"""Reasons by member. `hasattr` is False for these members, and they cannot be set."""

_UNKNOWN = "it has those members of accelerate.Accelerator that Trainers and their libraries use"


class RefusedError(RuntimeError, AttributeError):
    """A RuntimeError, as of grid ranks in the reference, that is an AttributeError for
    `hasattr`.
    """


def refusal(name: str) -> AttributeError:
    """Return the error for an unsupported member."""
    reason = REFUSED.get(name, _UNKNOWN)
    kind = RefusedError if reason is _GRID else AttributeError
    return kind(f"trainer.accelerator has no {name!r}: {reason}.")
