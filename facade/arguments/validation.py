"""Validate training arguments, and report all errors at once.

A rule names the fields it reads, and is skipped if one of them has a wrong type, so that rules can rely on types.
"""

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from ...callbacks.loggers.availability import TRACKERS
from ...lightning_modules.common.local_paths import address_of, is_address
from ...lightning_modules.common.parameter_rules import rule_faults
from ...lightning_modules.common.schedule_curves import number_faults
from ...lightning_modules.common.suggestions import did_you_mean, optimizer_name
from ..distributed.process import state_is_configured
from . import sharding_rules  # noqa: F401 - registers its rules
from .accelerator import AcceleratorConfig
from .coercion import ENUM_FIELDS, schedule_waits_for_metric
from .enums import DebugOption, IntervalStrategy, SaveStrategy, SchedulerType
from .fields import ArgumentFields
from .hardware import supports_bf16, supports_tf32
from .result_fields import AGGREGATES, LOG_LEVELS
from .rules import choice_errors, errors, in_range, member_errors, rule
from .system_fields import DDP_BACKENDS, SAMPLING_STRATEGIES, START_METHODS
from .typecheck import wrong_types

logger = logging.getLogger(__name__)

ACCUMULATION_KEYS = ("num_steps", "adjust_scheduler", "sync_with_dataloader", "sync_each_batch")
"""Keys of `gradient_accumulation_kwargs`."""


def problems(args: ArgumentFields, names: Collection[str] | None = None) -> list[str]:
    """Return one sentence for each error in the arguments.

    Args:
        args: After `coerce`, or with fields changed since.
        names: Apply only rules about these fields; by default all.
    """
    types, values = _errors(args, names)
    return types + values


def raise_for_problems(args: ArgumentFields, names: Collection[str] | None = None) -> None:
    """Raise one error with all results of `problems`.

    Raises:
        TypeError: All errors are wrong types.
        ValueError: There are other errors.
    """
    types, values = _errors(args, names)
    found = types + values
    if found:
        text = found[0] if len(found) == 1 else "\n".join([f"{len(found)} arguments cannot be used:", *found])
        raise (ValueError if values else TypeError)(text)


def _errors(args: ArgumentFields, names: Collection[str] | None) -> tuple[list[str], list[str]]:
    """Return the errors of types, and those of values."""
    types = wrong_types(args, names)
    return [*types.values()], errors(args, names, skip=types)


def warn_of_data_settings(args: Any) -> None:
    """Warn of settings of `accelerator_config` that have no effect, or less than they could."""
    config = args.accelerator_config
    if config.non_blocking and not args.dataloader_pin_memory:
        logger.warning("accelerator_config: non_blocking=True copies at once only with dataloader_pin_memory=True.")
    for key in ("adjust_scheduler", "sync_with_dataloader"):
        if not (config.gradient_accumulation_kwargs or {}).get(key, True):
            said = (
                "accelerator_config: gradient_accumulation_kwargs: %s=False has no effect: each epoch ends with a step."
            )
            logger.warning(said, key)


_RANGES: dict[str, dict[str, Any]] = {
    "per_device_train_batch_size": {"low": 1},
    "per_device_eval_batch_size": {"low": 1},
    "learning_rate": {"low": 0, "below": math.inf},
    "weight_decay": {"low": 0, "below": math.inf},
    "adam_beta1": {"low": 0, "below": 1},
    "adam_beta2": {"low": 0, "below": 1},
    "adam_epsilon": {"low": 0},
    "gradient_accumulation_steps": {"low": 1, "remedy": " 1 means no accumulation."},
    "label_smoothing_factor": {"low": 0, "high": 1},
    "eval_accumulation_steps": {"low": 1, "remedy": " Leave it out to move predictions once, at the end."},
    "seed": {"low": 0, "high": 2**32 - 1, "remedy": " NumPy takes no other seed."},
    "dataloader_num_workers": {"low": 0, "remedy": " 0 loads data in the training process."},
    "dataloader_prefetch_factor": {"low": 1},
    "max_tokens_per_batch": {"low": 1},
    "ddp_bucket_cap_mb": {"low": 1},
    "ddp_timeout": {"low": 1, "remedy": " It is a number of seconds."},
    "generation_max_length": {"low": 1, "remedy": " Leave it out for what the model's generation config says."},
    "generation_num_beams": {"low": 1, "remedy": " 1 means no beam search."},
}
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "log_level": tuple(LOG_LEVELS),
    "log_level_replica": tuple(LOG_LEVELS),
    "include_num_input_tokens_seen": ("all", "non_padding", "no"),
    "train_sampling_strategy": tuple(SAMPLING_STRATEGIES),
    "eval_aggregate": (*AGGREGATES, None),
    "ddp_backend": (*DDP_BACKENDS, None),
    "dataloader_multiprocessing_context": (*START_METHODS, None),
}
for _name, _bounds in _RANGES.items():
    rule(_name)(in_range(_name, **_bounds))
for _name, _choices in _CHOICES.items():
    rule(_name)(lambda args, name=_name, choices=_choices: choice_errors(name, getattr(args, name), choices))
for _name, _kind in {**ENUM_FIELDS, "optim": optimizer_name}.items():
    rule(_name)(lambda args, name=_name, kind=_kind: member_errors(name, getattr(args, name), kind))


@rule("optim", "optim_args", "weight_decay")
def _optimizer_by_path(args: Any) -> Iterable[str]:
    if isinstance(args.optim, str) and "." in args.optim:
        from ...lightning_modules.optim.by_path import optimizer_by_path  # loads torch

        try:
            optimizer_by_path(args.optim, args.optim_args, {"lr": 1.0, "weight_decay": args.weight_decay}, {})
        except ValueError as error:
            yield str(error)


rule("parameter_rules")(lambda args: rule_faults(args.parameter_rules or {}))


@rule("output_dir", "save_on_each_node")
def _folder_for_results(args: Any) -> Iterable[str]:
    if is_address(args.output_dir):  # `coerce` puts a folder in its place
        yield f"output_dir={args.output_dir!r} is set too late: pass an address to TrainingArguments(output_dir=)."
    elif args.save_on_each_node and address_of(args.output_dir):
        yield "save_on_each_node: leave it out, as output_dir is an address, where all machines find all files."


@rule("lr_scheduler_kwargs")
def _numbers_of_schedule(args: Any) -> Iterable[str]:
    for fault in number_faults(args.lr_scheduler_kwargs) if isinstance(args.lr_scheduler_kwargs, dict) else []:
        yield f"lr_scheduler_kwargs: {fault}"


@rule("report_to")
def _trackers(args: Any) -> Iterable[str]:
    names = args.report_to if isinstance(args.report_to, (list, tuple)) else [args.report_to]
    choices = (*TRACKERS, "all", "none", None) if len(names) == 1 else TRACKERS
    for name in names:
        if name != "neptune":  # `support` refuses it
            yield from choice_errors("report_to", name, choices)


@rule("include_for_metrics")
def _metric_inputs(args: Any) -> Iterable[str]:
    wanted = [args.include_for_metrics] if isinstance(args.include_for_metrics, str) else args.include_for_metrics
    for name in wanted or []:
        yield from choice_errors("include_for_metrics", name, ["inputs", "loss"])


@rule("debug")
def _debug_words(args: Any) -> Iterable[str]:
    words = args.debug if isinstance(args.debug, (list, tuple)) else str(args.debug or "").split()
    for word in words:
        yield from member_errors("debug", word, DebugOption)


@rule("num_train_epochs", "max_steps")
def _length_of_run(args: Any) -> Iterable[str]:
    epochs, steps = args.num_train_epochs, args.max_steps
    if steps <= 0 and not 0 <= epochs < math.inf:
        yield f"num_train_epochs={epochs!r} must be at least 0 and finite, or max_steps={steps} above 0."


@rule("warmup_steps")
def _warmup(args: Any) -> Iterable[str]:
    steps = args.warmup_steps
    if steps is not None and steps < 0:
        # The deprecated argument has been copied to the other one; name the one that was passed.
        name = "warmup_ratio" if args.warmup_ratio == steps else "warmup_steps"
        yield f"{name}={steps!r} must be at least 0. Pass a number of steps, or a share of all steps below 1."


@rule("torch_empty_cache_steps")
def _cache_steps(args: Any) -> Iterable[str]:
    steps = args.torch_empty_cache_steps
    if steps is not None and not (isinstance(steps, int) and steps > 0):
        yield f"torch_empty_cache_steps={steps!r} must be a whole number above 0. Leave it out to keep the cache."


def _interval(kind: str, args: Any) -> Iterable[str]:
    """Check that the steps of a "steps" strategy are a share below 1, or whole."""
    steps = getattr(args, f"{kind}_steps")
    positive = kind != "save"  # 0 and negative numbers are in use for "only at the end"
    said = f"{kind}_strategy='steps' with {kind}_steps={steps!r}: "
    if getattr(args, f"{kind}_strategy") != "steps":
        return
    if steps is None or not math.isfinite(steps):
        yield f"{said}pass a number of steps."
    elif (positive and steps <= 0) or (steps > 1 and steps != int(steps)):
        above = "; it must be above 0" if positive else ""
        yield f"{said}pass a whole number, or a share of all steps below 1{above}."


for _name in ("logging", "eval", "save"):
    rule(f"{_name}_strategy", f"{_name}_steps")(partial(_interval, _name))


@rule("load_best_model_at_end", "eval_strategy", "save_strategy", "eval_steps", "save_steps")
def _best_is_evaluated(args: Any) -> Iterable[str]:
    if not args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST:
        return
    said = "load_best_model_at_end=True needs an evaluation of each checkpoint, but"
    if args.eval_strategy != args.save_strategy:
        given = f"eval_strategy={_text(args.eval_strategy)!r} and save_strategy={_text(args.save_strategy)!r}"
        yield f"{said} {given} differ. Pass the same for both, or save_strategy='best'."
    elif args.eval_strategy == IntervalStrategy.STEPS and not _is_multiple(args.save_steps, args.eval_steps):
        given = f"save_steps={args.save_steps} is not a multiple of eval_steps={args.eval_steps}"
        yield f"{said} {given}. Make it one, with both of them steps or both of them shares."


def _is_multiple(save: float | None, evaluation: float | None) -> bool:
    if save is None or evaluation is None or evaluation <= 0 or save % evaluation == 0:
        return True  # missing and negative numbers are reported by another rule
    # Shares are compared in millionths: 0.3 % 0.1 is not 0.
    return save < 1 and evaluation < 1 and (save * 1_000_000) % (evaluation * 1_000_000) == 0


@rule("save_strategy", "load_best_model_at_end", "metric_for_best_model")
def _best_by_metric(args: Any) -> Iterable[str]:
    saves_best = args.save_strategy == SaveStrategy.BEST
    if args.metric_for_best_model is None and (saves_best or args.load_best_model_at_end):
        wanted = "save_strategy='best'" if saves_best else "load_best_model_at_end=True"
        yield f"{wanted} needs metric_for_best_model, such as 'loss', to know which checkpoint is best."


@rule("lr_scheduler_type", "eval_strategy")
def _schedule_is_evaluated(args: Any) -> Iterable[str]:
    if schedule_waits_for_metric(args) and args.eval_strategy == IntervalStrategy.NO:
        schedule = SchedulerType(args.lr_scheduler_type).value
        yield f"lr_scheduler_type={schedule!r} needs evaluations, but eval_strategy='no'. Pass eval_strategy='steps'."


@rule("bf16", "bf16_full_eval", "use_cpu")
def _bf16_device(args: Any) -> Iterable[str]:
    if (args.bf16 or args.bf16_full_eval) and not args.use_cpu and not supports_bf16():
        name = "bf16" if args.bf16 else "bf16_full_eval"
        yield f"{name}=True, but no GPU here computes in bfloat16. Pass use_cpu=True to compute in it on the CPU."


@rule("tf32")
def _tf32_device(args: Any) -> Iterable[str]:
    if args.tf32 and not supports_tf32():
        yield "tf32=True, but no GPU here has TF32 (NVIDIA Ampere or newer does). Leave tf32 out."


_EXCLUSIVE: list[dict[str, Any]] = [
    {"fp16": True, "bf16": True},
    {"fp16_full_eval": True, "bf16_full_eval": True},
    {"ddp_static_graph": True, "auto_find_batch_size": True},  # DDP records the graph in a step that all ranks survive
    {"sortish_sampler": True, "train_sampling_strategy": "sequential"},
    {"auto_find_batch_size": True, "train_sampling_strategy": "token_budget"},
]


def _excluded(pair: dict[str, Any], args: Any) -> Iterable[str]:
    if all(getattr(args, name) == value for name, value in pair.items()):
        yield f"{' and '.join(f'{name}={value!r}' for name, value in pair.items())} exclude each other. Keep one."


for _pair in _EXCLUSIVE:
    rule(*_pair)(partial(_excluded, _pair))


def _needs_workers(name: str, args: Any) -> Iterable[str]:
    value = getattr(args, name)
    if value not in (None, False) and args.dataloader_num_workers == 0:
        yield f"{name}={value!r} needs workers, but dataloader_num_workers=0: pass dataloader_num_workers above 0."


for _name in ("dataloader_prefetch_factor", "dataloader_persistent_workers", "dataloader_multiprocessing_context"):
    rule("dataloader_num_workers", _name)(partial(_needs_workers, _name))


@rule("train_sampling_strategy", "accelerator_config")
def _uneven_is_split(args: Any) -> Iterable[str]:
    order = args.train_sampling_strategy
    if order in ("batch_rebalance", "token_budget") and getattr(args.accelerator_config, "split_batches", False):
        uneven, even = f"train_sampling_strategy={order!r}", "split_batches=True in accelerator_config"
        yield f"{uneven} makes batches of different sizes, {even} equal ones. Leave one of them out."


@rule("train_sampling_strategy", "max_tokens_per_batch")
def _budget_is_given(args: Any) -> Iterable[str]:
    order, most = args.train_sampling_strategy, args.max_tokens_per_batch
    if (order == "token_budget") != (most is not None):
        given = f"train_sampling_strategy={order!r} with max_tokens_per_batch={most}"
        yield f"{given}: 'token_budget' and a number of tokens need each other. Pass both or neither."


@rule("accelerator_config")
def _splitting_batches(args: Any) -> Iterable[str]:
    config = args.accelerator_config
    if not isinstance(config, AcceleratorConfig):
        return
    for item in fields(config):
        value = getattr(config, item.name)
        if item.type in (bool, bool | None) and not isinstance(value, (bool, type(None))):
            yield f"accelerator_config: {item.name}={value!r} must be True or False."
    if config.use_configured_state and not state_is_configured():
        needed = "Make an accelerate.PartialState() or a process group before the arguments, or leave it out."
        yield f"accelerator_config: use_configured_state=True, but no state is configured yet. {needed}"


@rule("accelerator_config", "gradient_accumulation_steps")
def _accumulating(args: Any) -> Iterable[str]:
    given = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None)
    name, known = "accelerator_config: gradient_accumulation_kwargs", ", ".join(ACCUMULATION_KEYS)
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield f"{name}={given!r} must be a dict with keys of {known}."
        return
    for key, value in given.items():
        if key not in ACCUMULATION_KEYS:
            yield f"{name}: {key!r} is not a known key.{did_you_mean(key, ACCUMULATION_KEYS)} Known: {known}."
        elif key != "num_steps" and not isinstance(value, bool):
            yield f"{name}: {key}={value!r} must be True or False."
    steps, other = given.get("num_steps"), args.gradient_accumulation_steps
    if steps is not None and (type(steps) is not int or steps < 1):
        yield f"{name}: num_steps={steps!r} must be a whole number of at least 1."
    elif steps not in (None, other):
        yield f"{name}: num_steps={steps}, but gradient_accumulation_steps={other}. Give the one or the other."


_LAYER_SETTINGS = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")


@rule(*_LAYER_SETTINGS)
def _checkpointed_layers(args: Any) -> Iterable[str]:
    given = {str(getattr(args, name)): (name, getattr(args, name) or {}) for name in reversed(_LAYER_SETTINGS)}
    for name, settings in given.values():  # both names may hold the same settings
        every, offload = settings.get("every_n_layers", 1), settings.get("offload", False)
        if type(every) is not int or every < 1:
            yield f"{name}: every_n_layers={every!r} must be a whole number of at least 1."
        if not isinstance(offload, bool):
            yield f"{name}: offload={offload!r} must be True or False."


def _text(value: Any) -> Any:
    return getattr(value, "value", value)
