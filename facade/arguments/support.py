"""What the API documents and lightrainer does not do yet: said when asked for, never ignored.

To bring an argument into effect, move its name from `NOT_YET` to `IN_EFFECT`.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from typing import Any

from ..distributed.xla_device import xla_is_chosen
from .coercion import report_to_list
from .enums import DebugOption
from .exports import is_ours
from .fields import ArgumentFields

_LAUNCH = "start the script with torchrun, and pass fsdp=... or deepspeed=... to TrainingArguments"

NOT_YET: dict[str, str] = {}
"""Fields that change nothing yet, each with what to do instead. Set away from its default, such a field raises."""

_IN_EFFECT = """
    output_dir per_device_train_batch_size auto_find_batch_size num_train_epochs max_steps
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args optim_target_modules
    weight_decay adam_beta1 adam_beta2 adam_epsilon gradient_accumulation_steps average_tokens_across_devices
    max_grad_norm label_smoothing_factor bf16 fp16 bf16_full_eval fp16_full_eval tf32
    torch_compile torch_compile_backend torch_compile_mode
    gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs
    use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps
    logging_strategy logging_steps logging_first_step logging_nan_inf_filter logging_dir log_on_each_node log_level
    log_level_replica include_num_input_tokens_seen disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id
    eval_strategy eval_steps eval_delay eval_on_start eval_do_concat_batches eval_use_gather_object
    eval_accumulation_steps per_device_eval_batch_size prediction_loss_only include_for_metrics batch_eval_metrics
    save_strategy save_steps save_only_model save_on_each_node save_total_limit enable_jit_checkpoint
    push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    load_best_model_at_end metric_for_best_model greater_is_better
    ignore_data_skip restore_callback_states_from_checkpoint resume_from_checkpoint
    full_determinism seed data_seed use_cpu accelerator_config
    dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names
    train_sampling_strategy length_column_name
    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout
    fsdp fsdp_config deepspeed parallelism_config
    debug skip_memory_metrics do_train do_eval do_predict
"""

IN_EFFECT = frozenset(_IN_EFFECT.split())
"""Fields that do what they are documented to do (those in `PARTLY` for some values only)."""

HARMLESS = frozenset({"local_rank"})
"""Fields that nothing reads in the reference either."""


def _trackers(report_to: Any) -> str | None:
    """Not there: 'neptune'."""
    if "neptune" not in report_to_list(report_to):
        return None
    return (
        "report_to=['neptune']: the reference has deprecated it and does not document it; use another tracker, or its "
        "client in a TrainerCallback of your own"
    )


def _dealing_out(config: Any) -> str | None:
    """Not possible: a class in place of an object."""
    if isinstance(config, type):
        return f"accelerator_config={config.__name__}, a class: pass an object, such as {config.__name__}()"
    return None


def _watching(debug: Any) -> str | None:
    """Not there: 'tpu_metrics_debug' without torch_xla."""
    if DebugOption.TPU_METRICS_DEBUG not in (debug or ()) or xla_is_chosen():
        return None
    return (
        "debug='tpu_metrics_debug': it prints what torch_xla counts on a TPU, and here is no TPU, or no torch_xla; "
        "leave it out, 'underflow_overflow' works everywhere"
    )


def _groups(config: Any) -> str | None:
    """Not there: sp_size above 1, and tp_size together with dp_replicate_size."""
    if getattr(config, "sp_enabled", False):
        return (
            f"parallelism_config: sp_size={config.sp_size}: Lightning's DeepSpeedStrategy does not split sequences; "
            f"split them with cp_size={config.sp_size}"
        )
    if getattr(config, "tp_enabled", False) and config.dp_replicate_enabled:
        return (
            f"parallelism_config: dp_replicate_size={config.dp_replicate_size} with tp_size={config.tp_size}: "
            "Lightning's ModelParallelStrategy has two dimensions; set dp_replicate_size to 1 and raise dp_shard_size"
        )
    return None


PARTLY: dict[str, Callable[[Any], str | None]] = {
    "debug": _watching,
    "report_to": _trackers,
    "accelerator_config": _dealing_out,
    "parallelism_config": _groups,
}
"""Fields of which some values are in effect: a function that says what to do instead of the others.

The first line of its docstring is the remark in `docs/reference/arguments.md`.
"""


def unsupported(args: ArgumentFields, names: Collection[str] | None = None) -> list[str]:
    """Say which arguments ask for what is not there yet, each with its value and with what to do instead.

    Args:
        args: After `coerce`, or with fields changed since.
        names: Look only at these fields; by default at all, and at the environment of the launcher too.
    """
    said = [
        f"{name}={_plain(getattr(args, name))!r}: {instead}"
        for name, instead in NOT_YET.items()
        if (names is None or name in names) and _is_set(name, getattr(args, name))
    ]
    for name, judge in PARTLY.items():
        if names is None or name in names:
            said += filter(None, [judge(getattr(args, name))])
    return said + (_environment() if names is None else [])


def raise_for_unsupported(args: ArgumentFields, names: Collection[str] | None = None) -> None:
    """Raise one error with all that `unsupported` finds.

    Raises:
        NotImplementedError: Names each argument, its value, and what to do instead.
    """
    said = unsupported(args, names)
    if said:
        raise NotImplementedError("\n".join(["lightrainer does not do this yet:", *said]))


_DEFAULTS = {item.name: None if item.default is MISSING else item.default for item in fields(ArgumentFields)}


def _is_set(name: str, value: Any) -> bool:
    """Whether a value differs from the default; all empty values count as one."""
    default = _DEFAULTS[name]
    return value != default and bool(value or default)


def _environment() -> list[str]:
    """What `accelerate launch` asks for through environment variables."""
    said = []
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16", "fp16"):
        said.append(
            f"the environment variable ACCELERATE_MIXED_PRECISION={precision!r}: set it to 'bf16', 'fp16' or 'no'"
        )
    for variable in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP"):
        value = os.environ.get(variable, "false")
        if not is_ours(variable) and value.lower() not in ("", "0", "false", "no", "n", "f", "off"):
            said.append(f"the environment variable {variable}={value!r}: {_LAUNCH}")
    return said


def _plain(value: Any) -> Any:
    """Enumeration members as the text that the user wrote."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "value", value)
