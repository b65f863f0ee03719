"""The arguments that shape what comes out of a training, for its model card."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from ..arguments.parallelism import data_ranks

_WHERE_NOT_USUAL = (
    *("lr_scheduler_kwargs", "optim_args", "optim_target_modules", "weight_decay", "max_grad_norm"),
    *("label_smoothing_factor", "neftune_noise_alpha", "full_determinism", "data_seed", "train_sampling_strategy"),
    *("dataloader_drop_last", "gradient_checkpointing", "use_liger_kernel", "torch_compile", "auto_find_batch_size"),
)


def settings_of(args: Any) -> dict[str, str]:
    """Names and values: always those that everybody asks for, the others where they are not the usual ones.

    Args:
        args: `TrainingArguments`.
    """
    total = args.train_batch_size * args.gradient_accumulation_steps * data_ranks(args)
    steps = {"max_steps": args.max_steps} if args.max_steps > 0 else {"num_train_epochs": args.num_train_epochs}
    found: dict[str, Any] = {
        "learning_rate": args.learning_rate,
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "processes": args.world_size,
        "total batch size": total,
        "per_device_eval_batch_size": args.per_device_eval_batch_size,
        "seed": args.seed,
        "optim": _optimizer(args),
        "lr_scheduler_type": args.lr_scheduler_type,
        "warmup_steps": args.warmup_steps,
        **steps,
        "precision": {"no": "float32", "bf16": "mixed, bfloat16", "fp16": "mixed, float16"}[args.mixed_precision],
        "sharding": _sharding(args),
    }
    usual = {item.name: item.default for item in fields(args) if item.default is not MISSING}
    found |= {name: getattr(args, name) for name in _WHERE_NOT_USUAL if getattr(args, name) != usual.get(name)}
    return {name: str(getattr(value, "value", value)) for name, value in found.items() if value not in (None, "")}


def _optimizer(args: Any) -> str:
    name = str(getattr(args.optim, "value", args.optim))
    if "adam" not in name:
        return name
    return f"{name}, betas {args.adam_beta1:g} and {args.adam_beta2:g}, epsilon {args.adam_epsilon:g}"


def _sharding(args: Any) -> str | None:
    if args.deepspeed:
        return "DeepSpeed"
    return "FSDP" if args.fsdp else None
