"""What the API documents and lightrainer does not do yet: said when asked for, never ignored.

To bring an argument into effect, move its name from `NOT_YET` to `IN_EFFECT`.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from typing import Any

from ..enums import OptimizerNames
from .accelerator import AcceleratorConfig
from .coercion import FSDP_CONFIG_DEFAULTS, report_to_list
from .fields import ArgumentFields

_HUB = "nothing is uploaded to the Hub; upload output_dir with huggingface_hub after training"
_FSDP = "start the script with torchrun to train with DDP"

NOT_YET: dict[str, str] = {
    "optim_target_modules": "low-rank optimizers are not there; pass optimizer_cls_and_kwargs to the Trainer",
    "fp16": "pass bf16=True",
    "use_liger_kernel": "apply Liger's kernels to the model before it goes to the Trainer",
    "liger_kernel_config": "apply Liger's kernels to the model before it goes to the Trainer",
    "auto_find_batch_size": "lower per_device_train_batch_size and raise gradient_accumulation_steps",
    "eval_use_gather_object": "return tensors from the model",
    "enable_jit_checkpoint": "write checkpoints more often with save_steps",
    "push_to_hub": _HUB,
    "hub_private_repo": _HUB,
    "hub_model_id": _HUB,
    "hub_strategy": _HUB,
    "hub_always_push": _HUB,
    "hub_revision": _HUB,
    "parallelism_config": _FSDP,
    "fsdp": _FSDP,
    "fsdp_config": _FSDP,
    "deepspeed": _FSDP,
    "debug": "look for NaN losses with logging_nan_inf_filter=False",
}
"""Fields that change nothing yet, each with what to do instead. Set away from its default, such a field raises."""

_IN_EFFECT = """
    output_dir per_device_train_batch_size num_train_epochs max_steps
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args weight_decay
    adam_beta1 adam_beta2 adam_epsilon gradient_accumulation_steps average_tokens_across_devices max_grad_norm
    label_smoothing_factor bf16 bf16_full_eval fp16_full_eval tf32
    torch_compile torch_compile_backend torch_compile_mode
    gradient_checkpointing gradient_checkpointing_kwargs use_cache neftune_noise_alpha torch_empty_cache_steps
    logging_strategy logging_steps logging_first_step logging_nan_inf_filter logging_dir log_on_each_node log_level
    log_level_replica include_num_input_tokens_seen disable_tqdm report_to run_name
    eval_strategy eval_steps eval_delay eval_on_start eval_do_concat_batches eval_accumulation_steps
    per_device_eval_batch_size prediction_loss_only include_for_metrics batch_eval_metrics
    save_strategy save_steps save_only_model save_on_each_node save_total_limit
    load_best_model_at_end metric_for_best_model greater_is_better
    ignore_data_skip restore_callback_states_from_checkpoint resume_from_checkpoint
    full_determinism seed data_seed use_cpu accelerator_config
    dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor remove_unused_columns label_names train_sampling_strategy length_column_name
    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_backend ddp_timeout
    skip_memory_metrics do_train do_eval do_predict
"""

IN_EFFECT = frozenset(_IN_EFFECT.split())
"""Fields that do what they are documented to do (those in `PARTLY` for some values only)."""

HARMLESS = frozenset({"hub_token", "project", "trackio_space_id", "local_rank"})
"""Fields that are read only beside another one that raises already, or by nothing in the reference either."""

OPTIMIZERS_IN_EFFECT = (
    OptimizerNames.ADAMW_TORCH,
    OptimizerNames.ADAMW_TORCH_FUSED,
    OptimizerNames.SGD,
    OptimizerNames.ADAGRAD,
    OptimizerNames.RMSPROP,
)
"""Optimizers that can be built from their name."""


def _optimizer(name: Any) -> str | None:
    if name in OPTIMIZERS_IN_EFFECT:
        return None
    at_hand = ", ".join(known.value for known in OPTIMIZERS_IN_EFFECT)
    return f"optim={_plain(name)!r}: choose from {at_hand}, or pass optimizer_cls_and_kwargs to the Trainer"


def _trackers(report_to: Any) -> str | None:
    others = [name for name in report_to_list(report_to) if not _has_callback(name)]
    return f"report_to={others}: use 'tensorboard', or write a TrainerCallback" if others else None


def _has_callback(name: str) -> bool:
    from ...callbacks.reporting import reporting_callbacks

    try:
        return bool(reporting_callbacks([name]))
    except ValueError:
        return False


def _dealing_out(config: Any) -> str | None:
    if isinstance(config, type):
        return f"accelerator_config={config.__name__}, a class: pass an object, such as {config.__name__}()"
    if not isinstance(config, AcceleratorConfig):
        return None
    left = {
        "split_batches": "pass a smaller per_device_train_batch_size",
        "dispatch_batches": "let every process read its own data",
        "non_blocking": "leave it out, copies then wait for each other",
        "gradient_accumulation_kwargs": "use gradient_accumulation_steps",
        "use_configured_state": "leave it out, the state of the processes is taken from the launcher",
    }
    said = [f"{key}={getattr(config, key)!r} ({remedy})" for key, remedy in left.items() if getattr(config, key)]
    return f"accelerator_config: {', '.join(said)}" if said else None


PARTLY: dict[str, Callable[[Any], str | None]] = {
    "optim": _optimizer,
    "report_to": _trackers,
    "accelerator_config": _dealing_out,
}
"""Fields of which some values are in effect: a function that says what to do instead of the others."""


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
_DEFAULTS["fsdp_config"] = FSDP_CONFIG_DEFAULTS


def _is_set(name: str, value: Any) -> bool:
    """Whether a value differs from the default; all empty values count as one."""
    default = _DEFAULTS[name]
    return value != default and bool(value or default) and not (name == "fsdp_config" and not value)


def _environment() -> list[str]:
    """What `accelerate launch` asks for through environment variables."""
    said = []
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16"):
        said.append(f"the environment variable ACCELERATE_MIXED_PRECISION={precision!r}: set it to 'bf16' or 'no'")
    for variable in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP"):
        value = os.environ.get(variable, "false")
        if value.lower() not in ("", "0", "false", "no", "n", "f", "off"):
            said.append(f"the environment variable {variable}={value!r}: {_FSDP}")
    return said


def _plain(value: Any) -> Any:
    """Enumeration members as the text that the user wrote."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "value", value)
