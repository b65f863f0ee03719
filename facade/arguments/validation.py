"""Validate training arguments, and report all errors at once.

A rule names the fields it reads, and is skipped if one of them has a wrong type, so that rules can rely on types.
"""

import math
from collections.abc import Collection
from typing import Any

from ...callbacks.loggers import TRACKERS
from ...lightning_modules.common.local_paths import remote_fault
from ...lightning_modules.common.schedule_curves import number_faults
from .coercion import ENUM_FIELDS, schedule_waits_for_metric
from .enums import DebugOption, IntervalStrategy, SaveStrategy, SchedulerType
from .fields import ArgumentFields
from .hardware import supports_bf16, supports_tf32
from .result_fields import LOG_LEVELS
from .rules import Member, OneOf, Range, RuleBook, add_data_rules, not_a_choice, not_a_member
from .sharding_rules import add_sharding_rules
from .system_fields import DDP_BACKENDS, SAMPLING_STRATEGIES
from .typecheck import wrong_types

INTEGRATIONS = tuple(sorted([*TRACKERS, "neptune"]))
"""All trackers named by the API."""


def problems(args: ArgumentFields, names: Collection[str] | None = None) -> list[str]:
    """Return one sentence for each error in the arguments.

    Args:
        args: After `coerce`, or with fields changed since.
        names: Apply only rules about these fields; by default all.
    """
    types = wrong_types(args, names)
    return [*types.values(), *wrong_values(args, names, skip=types)]


def raise_for_problems(args: ArgumentFields, names: Collection[str] | None = None) -> None:
    """Raise one error with all results of `problems`.

    Raises:
        TypeError: All errors are wrong types.
        ValueError: There are other errors.
    """
    types = wrong_types(args, names)
    values = wrong_values(args, names, skip=types)
    found = [*types.values(), *values]
    if found:
        text = found[0] if len(found) == 1 else "\n".join([f"{len(found)} arguments cannot be used:", *found])
        raise (ValueError if values else TypeError)(text)


_BOOK = RuleBook()
_rule = _BOOK.add


def wrong_values(args: ArgumentFields, names: Collection[str] | None = None, skip: Collection[str] = ()) -> list[str]:
    """Return the errors of the rules about ranges, names and combinations of fields.

    Args:
        args: After `coerce`, or with fields changed since.
        names: Apply only rules that read no other fields.
        skip: Apply no rule that reads one of these fields.
    """
    return _BOOK.apply(args, names, skip)


for _range in (
    Range("per_device_train_batch_size", 1),
    Range("per_device_eval_batch_size", 1),
    Range("learning_rate", 0, below=math.inf),
    Range("weight_decay", 0, below=math.inf),
    Range("adam_beta1", 0, below=1),
    Range("adam_beta2", 0, below=1),
    Range("adam_epsilon", 0),
    Range("gradient_accumulation_steps", 1, remedy=" 1 means no accumulation."),
    Range("label_smoothing_factor", 0, 1),
    Range("eval_accumulation_steps", 1, remedy=" Leave it out to move predictions once, at the end."),
    Range("seed", 0, 2**32 - 1, remedy=" NumPy takes no other seed."),
    Range("dataloader_num_workers", 0, remedy=" 0 loads data in the training process."),
    Range("ddp_bucket_cap_mb", 1),
    Range("ddp_timeout", 1, remedy=" It is a number of seconds."),
    Range("generation_max_length", 1, remedy=" Leave it out for what the model's generation config says."),
    Range("generation_num_beams", 1, remedy=" 1 means no beam search."),
):
    _rule(_range.name)(_range)


for _one_of in (
    OneOf("log_level", tuple(LOG_LEVELS)),
    OneOf("log_level_replica", tuple(LOG_LEVELS)),
    OneOf("include_num_input_tokens_seen", ("all", "non_padding", "no")),
    OneOf("train_sampling_strategy", tuple(SAMPLING_STRATEGIES)),
    OneOf("ddp_backend", (*DDP_BACKENDS, None)),
):
    _rule(_one_of.name)(_one_of)

for _name, _kind in ENUM_FIELDS.items():
    _rule(_name)(Member(_name, _kind))


@_rule("output_dir")
def _folder_for_results(args: Any) -> str | None:
    return remote_fault(args.output_dir, "output_dir")


@_rule("lr_scheduler_kwargs")
def _numbers_of_schedule(args: Any) -> list[str]:
    given = args.lr_scheduler_kwargs
    return [f"lr_scheduler_kwargs: {said}" for said in number_faults(given)] if isinstance(given, dict) else []


@_rule("report_to")
def _trackers(args: Any) -> list[str]:
    names = args.report_to if isinstance(args.report_to, (list, tuple)) else [args.report_to]
    lone = [*INTEGRATIONS, "all", "none", None]
    return [
        said for name in names if (said := not_a_choice("report_to", name, lone if len(names) == 1 else INTEGRATIONS))
    ]


@_rule("include_for_metrics")
def _metric_inputs(args: Any) -> list[str]:
    wanted = [args.include_for_metrics] if isinstance(args.include_for_metrics, str) else args.include_for_metrics
    return [said for name in wanted or [] if (said := not_a_choice("include_for_metrics", name, ["inputs", "loss"]))]


@_rule("debug")
def _debug_words(args: Any) -> list[str]:
    words = args.debug if isinstance(args.debug, (list, tuple)) else str(args.debug or "").split()
    return [said for word in words if (said := not_a_member("debug", word, DebugOption))]


@_rule("num_train_epochs", "max_steps")
def _length_of_run(args: Any) -> str | None:
    if args.max_steps > 0 or 0 <= args.num_train_epochs < math.inf:
        return None
    return (
        f"num_train_epochs={args.num_train_epochs!r} must be at least 0 and finite, or max_steps={args.max_steps} "
        "above 0."
    )


@_rule("warmup_steps")
def _warmup(args: Any) -> str | None:
    steps = args.warmup_steps
    if steps is None or steps >= 0:
        return None
    # The deprecated argument has been copied to the other one; name the one that was passed.
    name = "warmup_ratio" if args.warmup_ratio == steps else "warmup_steps"
    return f"{name}={steps!r} must be at least 0. Pass a number of steps, or a share of all steps below 1."


@_rule("torch_empty_cache_steps")
def _cache_steps(args: Any) -> str | None:
    steps = args.torch_empty_cache_steps
    if steps is None or (isinstance(steps, int) and steps > 0):
        return None
    return f"torch_empty_cache_steps={steps!r} must be a whole number above 0. Leave it out to never empty the cache."


def _interval(args: Any, kind: str, positive: bool = True) -> str | None:
    """Check that the steps of a "steps" strategy are a share below 1, or whole."""
    steps = getattr(args, f"{kind}_steps")
    if getattr(args, f"{kind}_strategy") != "steps":
        return None
    said = f"{kind}_strategy='steps' with {kind}_steps={steps!r}: "
    if steps is None or not math.isfinite(steps):
        return f"{said}pass a number of steps."
    if (positive and steps <= 0) or (steps > 1 and steps != int(steps)):
        return (
            f"{said}pass a whole number, or a share of all steps below 1{'; it must be above 0' if positive else ''}."
        )
    return None


@_rule("logging_strategy", "logging_steps")
def _logging_interval(args: Any) -> str | None:
    return _interval(args, "logging")


@_rule("eval_strategy", "eval_steps")
def _eval_interval(args: Any) -> str | None:
    return _interval(args, "eval")


@_rule("save_strategy", "save_steps")
def _save_interval(args: Any) -> str | None:
    # 0 and negative numbers are in use for "only at the end".
    return _interval(args, "save", positive=False)


@_rule("load_best_model_at_end", "eval_strategy", "save_strategy", "eval_steps", "save_steps")
def _best_is_evaluated(args: Any) -> str | None:
    if not args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST:
        return None
    if args.eval_strategy != args.save_strategy:
        return (
            "load_best_model_at_end=True needs each checkpoint to have been evaluated, but "
            f"eval_strategy={_text(args.eval_strategy)!r} and save_strategy={_text(args.save_strategy)!r} differ. "
            "Pass the same for both, or save_strategy='best'."
        )
    if args.eval_strategy == IntervalStrategy.STEPS and not _is_multiple(args.save_steps, args.eval_steps):
        return (
            "load_best_model_at_end=True needs each checkpoint to have been evaluated, but "
            f"save_steps={args.save_steps} is not a multiple of eval_steps={args.eval_steps}. Make it one, with both "
            "of them steps or both of them shares."
        )
    return None


def _is_multiple(save: float | None, evaluation: float | None) -> bool:
    if save is None or evaluation is None or evaluation <= 0:
        return True  # reported by another rule
    if save % evaluation == 0:
        return True
    shares = (save < 1, evaluation < 1)
    # Shares are compared in millionths: 0.3 % 0.1 is not 0.
    return all(shares) and (save * 1_000_000) % (evaluation * 1_000_000) == 0


@_rule("save_strategy", "metric_for_best_model")
def _best_by_what(args: Any) -> str | None:
    if args.save_strategy != SaveStrategy.BEST or args.metric_for_best_model is not None:
        return None
    return "save_strategy='best' needs metric_for_best_model, such as 'loss', to know which checkpoint is best."


@_rule("lr_scheduler_type", "eval_strategy")
def _schedule_is_evaluated(args: Any) -> str | None:
    if not schedule_waits_for_metric(args) or args.eval_strategy != IntervalStrategy.NO:
        return None
    name = SchedulerType(args.lr_scheduler_type).value
    return (
        f"lr_scheduler_type={name!r} sets the learning rate by an evaluated metric, but eval_strategy='no'. "
        "Pass eval_strategy='steps' or 'epoch'."
    )


@_rule("bf16", "bf16_full_eval", "use_cpu")
def _bf16_device(args: Any) -> str | None:
    if not (args.bf16 or args.bf16_full_eval) or args.use_cpu or supports_bf16():
        return None
    name = "bf16" if args.bf16 else "bf16_full_eval"
    return (
        f"{name}=True, but no GPU here computes in bfloat16 (NVIDIA Ampere or newer does). "
        "Pass use_cpu=True to train in bfloat16 on the CPU."
    )


@_rule("fp16", "bf16")
def _one_precision(args: Any) -> str | None:
    return "fp16=True and bf16=True exclude each other. Keep one." if args.fp16 and args.bf16 else None


@_rule("fp16_full_eval", "bf16_full_eval")
def _one_eval_precision(args: Any) -> str | None:
    both = args.fp16_full_eval and args.bf16_full_eval
    return "fp16_full_eval=True and bf16_full_eval=True exclude each other. Keep one." if both else None


@_rule("tf32")
def _tf32_device(args: Any) -> str | None:
    if not args.tf32 or supports_tf32():
        return None
    return "tf32=True, but no GPU here has TF32 (NVIDIA Ampere or newer does). Leave tf32 out."


@_rule("dataloader_num_workers", "dataloader_prefetch_factor")
def _prefetching(args: Any) -> str | None:
    factor = args.dataloader_prefetch_factor
    if factor is None or (args.dataloader_num_workers != 0 and factor >= 1):
        return None
    if args.dataloader_num_workers == 0:
        return (
            f"dataloader_prefetch_factor={factor} needs worker processes, but dataloader_num_workers=0. "
            "Leave it out, or pass dataloader_num_workers above 0."
        )
    return f"dataloader_prefetch_factor={factor} must be at least 1."


@_rule("dataloader_num_workers", "dataloader_persistent_workers")
def _persistence(args: Any) -> str | None:
    if args.dataloader_num_workers != 0 or not args.dataloader_persistent_workers:
        return None
    return (
        "dataloader_persistent_workers=True needs worker processes, but dataloader_num_workers=0. "
        "Leave it out, or pass dataloader_num_workers above 0."
    )


@_rule("train_sampling_strategy", "accelerator_config")
def _rebalanced_is_split(args: Any) -> str | None:
    if args.train_sampling_strategy != "batch_rebalance" or not getattr(args.accelerator_config, "split_batches", None):
        return None
    return (
        "train_sampling_strategy='batch_rebalance' makes batches of different sizes for each process, and "
        "split_batches=True in accelerator_config would split each batch evenly. Leave one of them out."
    )


@_rule("sortish_sampler", "train_sampling_strategy")
def _one_order(args: Any) -> str | None:
    if not args.sortish_sampler or args.train_sampling_strategy != "sequential":
        return None
    return (
        "sortish_sampler=True puts samples of similar length together, train_sampling_strategy='sequential' keeps the "
        "order of the data. Leave one of them out."
    )


add_sharding_rules(_BOOK)
add_data_rules(_BOOK)


def _text(value: Any) -> Any:
    return getattr(value, "value", value)
