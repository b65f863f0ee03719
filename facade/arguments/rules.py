"""Rules between training arguments, as one list, and the report of all errors at once.

Whatever concerns one argument alone is declared with its field, see `argument.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from ...lightning_modules.common.local_paths import is_url, url_of
from ..distributed.process import launched_world_size
from . import hardware
from .accelerator import AcceleratorConfig
from .deepspeed_config import fill_from_arguments, load_deepspeed
from .enums import SchedulerType
from .fields import ARGUMENTS, ArgumentFields
from .fsdp_config import (
    FSDP_DEFAULTS,
    FSDPSettings,
    read_fsdp,
    read_keys,
    shown_fsdp,
    without_effect,
)
from .launch_variables import refusals
from .parallelism import ParallelismConfig
from .reading import read_fields

logger = logging.getLogger(__name__)

# Type checkers know the names and types that rules read.
if TYPE_CHECKING:
    from .. import Seq2SeqTrainingArguments, TrainingArguments
else:
    Seq2SeqTrainingArguments = object


class UnreadableError(Exception):
    """A rule reads a field that already has an error, or that is not to be checked."""


class ReadableArguments(Seq2SeqTrainingArguments):
    """The training arguments as rules read them.

    It has the fields without errors, and the values below, which stand for one field or several. A
    rule that reads anything else is skipped.
    """

    complete: TrainingArguments
    """The arguments themselves; only if all fields are readable."""
    accelerator: AcceleratorConfig
    """The argument `accelerator_config`."""
    accumulation: Mapping[str, Any]
    """`gradient_accumulation_kwargs` of `accelerator_config`."""
    groups: ParallelismConfig
    """The argument `parallelism_config`; only if it is for several ranks."""
    deepspeed_config: dict[str, Any]
    """The configuration of DeepSpeed; only if `deepspeed` is set."""
    fsdp_keys: Mapping[str, Any]
    """The argument `fsdp_config`; only if it sets a key."""
    fsdp_settings: FSDPSettings
    """`fsdp` and `fsdp_config`; only if `fsdp` is set."""
    fsdp_problems: list[str]
    """One sentence for each error in `fsdp` and `fsdp_config`; only if `fsdp` is set."""

    def __init__(self, args: ArgumentFields, values: Mapping[str, Any]) -> None:
        """Set the readable fields, and the values that combine several of them.

        Args:
            args: The arguments.
            values: Their fields without errors, by name.
        """
        # Whatever is not set here makes a rule that reads it be skipped, see `__getattr__`.
        vars(self).update(values)
        if len(values) == len(fields(args)):
            self.complete = cast("TrainingArguments", args)

        accelerator_config = values.get("accelerator_config")
        if accelerator_config:
            self.accelerator = accelerator_config
            self.accumulation = accelerator_config.gradient_accumulation_kwargs or {}

        groups = values.get("parallelism_config")
        if groups is not None and groups.total_size > 1:
            self.groups = groups

        if values.get("deepspeed"):
            self.deepspeed_config = load_deepspeed(values["deepspeed"])

        fsdp_config = values.get("fsdp_config")
        if fsdp_config is not None and fsdp_config != FSDP_DEFAULTS:
            self.fsdp_keys = fsdp_config
        if fsdp_config is not None and values.get("fsdp"):
            settings, fsdp_problems = read_fsdp(values["fsdp"], fsdp_config)
            self.fsdp_settings = settings
            self.fsdp_problems = fsdp_problems

    # Hidden from type checkers, which then report a misspelt name in a rule.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Skip the rule that reads a missing value.

            Raises:
                UnreadableError: There is such a field or value, but these arguments lack it.
                AttributeError: The name is misspelt.
            """
            if name in ARGUMENTS or name in ReadableArguments.__annotations__:
                raise UnreadableError
            raise AttributeError(f"A rule reads {name!r}, which is not a training argument.")


@dataclass(frozen=True)
class Rule:
    """A rule that arguments have to keep."""

    broken: Callable[[ReadableArguments], object]
    """Returns whether arguments break the rule, or one sentence for each way in which they do."""
    message: str = ""
    """The sentence about arguments that break it, with values such as `{args.fsdp}`."""
    kind: type[Exception] = ValueError
    """The error that is raised; a `Warning` is logged when the arguments are made."""

    def messages(self, args: ReadableArguments) -> list[str]:
        """Return one sentence for each way in which arguments break the rule."""
        try:
            if not self.message:
                return list(cast("Iterable[str]", self.broken(args) or []))
            is_broken = bool(self.broken(args))
        except UnreadableError:
            return []

        if not is_broken:
            return []
        return [self.message.format(args=args)]


def _wrong_interval(kind: str, strategy: str, steps: float | None) -> list[str]:
    """Return the error of a number of steps; below 1 it is a share of all steps.

    Args:
        kind: The event: "logging", "eval" or "save".
        strategy: Only with "steps" is the number read.
        steps: The value of `logging_steps`, `eval_steps` or `save_steps`.
    """
    if strategy != "steps":
        return []
    arguments = f"{kind}_strategy='steps' with {kind}_steps={steps!r}"
    if steps is None or not math.isfinite(steps):
        return [f"{arguments}: pass a number of steps."]

    # Scripts save with 0 and negative numbers for "only at the end".
    must_be_positive = kind != "save"
    is_fraction_above_1 = steps > 1 and steps != int(steps)
    if must_be_positive and (steps <= 0 or is_fraction_above_1):
        return [
            f"{arguments}: pass a whole number, or a share of all steps below 1; it must be "
            "above 0."
        ]
    if is_fraction_above_1:
        return [f"{arguments}: pass a whole number, or a share of all steps below 1."]
    return []


def _is_multiple(save_steps: float | None, eval_steps: float | None) -> bool:
    # Missing and negative numbers are reported by another rule.
    if save_steps is None or eval_steps is None or eval_steps <= 0:
        return True
    if save_steps % eval_steps == 0:
        return True
    # Shares are compared in millionths, since 0.3 % 0.1 is not 0.
    both_are_shares = save_steps < 1 and eval_steps < 1
    return both_are_shares and (save_steps * 1_000_000) % (eval_steps * 1_000_000) == 0


def _optimizer_by_path(path: str, optim_args: str | None, weight_decay: float) -> list[str]:
    """Return the error of an optimizer whose class is named by its path."""
    from ...lightning_modules.optim.by_path import optimizer_by_path  # loads torch

    settings = {"lr": 1.0, "weight_decay": weight_decay}
    try:
        optimizer_by_path(path, optim_args, settings, {})
    except ValueError as error:
        return [str(error)]
    return []


def _unused_fsdp_config(settings: FSDPSettings, config: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of `fsdp_config` that have no effect."""
    for unused in without_effect(settings, config):
        yield f"{unused}; it has no effect."

    xla_keys = ("xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt")
    used_keys = [key for key in xla_keys if config.get(key)]
    if used_keys and not settings.xla:
        yield (
            f"{', '.join(used_keys)} of fsdp_config have an effect only with "
            "fsdp_config['xla']=True."
        )


def _unused_without_fsdp(config: Mapping[str, object]) -> list[str]:
    """Return a sentence about the keys of `fsdp_config` that are set although `fsdp` is not."""
    harmless_keys = ("xla_fsdp_v2", "xla_fsdp_grad_ckpt")
    idle_keys = [key for key in config if config[key] and key not in harmless_keys]
    if not idle_keys:
        return []
    return [f"fsdp_config has no effect ({', '.join(idle_keys)}): fsdp is not set."]


def _fsdp_in_groups(settings: FSDPSettings, groups: ParallelismConfig) -> Iterator[str]:
    """Yield why FSDP cannot shard over the groups of `parallelism_config`."""
    if settings.xla:
        yield (
            "fsdp_config['xla']=True and parallelism_config cannot be combined. Remove "
            "parallelism_config."
        )
    elif settings.version == 1:
        yield (
            "parallelism_config needs version 2 of FSDP, but this is version 1. Set "
            "fsdp_config={'version': 2}."
        )
    elif not groups.dp_shard_enabled and not groups.sequence_argument:
        yield (
            f"fsdp has nothing to shard over: dp_shard_size={groups.dp_shard_size}, "
            f"tp_size={groups.tp_size}. Set dp_shard_size above 1, or remove fsdp."
        )


def _deepspeed_contradictions(config: dict[str, Any], args: TrainingArguments) -> list[str]:
    """Return a sentence about values of the configuration that differ from the arguments."""
    contradictions = fill_from_arguments(config, args, launched_world_size())
    if not contradictions:
        return []
    return [
        f"deepspeed contradicts the arguments: {'; '.join(contradictions)}. Write "
        '"auto" in the configuration, or change one of the two.'
    ]


def _fsdp_with_deepspeed(fsdp: object) -> list[str]:
    return [f"{shown_fsdp(fsdp)} and deepspeed cannot be combined: both shard the model. Use one."]


RULES = [
    # Optimizer, length and intervals of the training.
    Rule(
        lambda args: (
            "." in args.optim and _optimizer_by_path(args.optim, args.optim_args, args.weight_decay)
        )
    ),
    Rule(
        lambda args: args.max_steps <= 0 and not 0 <= args.num_train_epochs < math.inf,
        "num_train_epochs={args.num_train_epochs!r} must be at least 0 and finite, or "
        "max_steps={args.max_steps} above 0.",
    ),
    Rule(lambda args: _wrong_interval("logging", args.logging_strategy, args.logging_steps)),
    Rule(lambda args: _wrong_interval("eval", args.eval_strategy, args.eval_steps)),
    Rule(lambda args: _wrong_interval("save", args.save_strategy, args.save_steps)),
    Rule(
        lambda args: (
            args.eval_strategy == "no" and args.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU
        ),
        "lr_scheduler_type='{args.lr_scheduler_type.value}' needs evaluations, but "
        "eval_strategy='no'. Pass eval_strategy='steps'.",
    ),
    # Checkpoints. An address has been replaced by its local folder when the arguments are made.
    Rule(
        lambda args: is_url(args.output_dir),
        "output_dir={args.output_dir!r} is an address that was set after construction. Pass it to "
        "TrainingArguments(output_dir=...).",
    ),
    Rule(
        lambda args: args.save_on_each_node and url_of(args.output_dir or ""),
        "save_on_each_node=True has no use with an address as output_dir: all machines write "
        "there. Remove save_on_each_node.",
    ),
    Rule(
        lambda args: (
            args.load_best_model_at_end and args.save_strategy not in ("best", args.eval_strategy)
        ),
        "load_best_model_at_end=True needs an evaluation of each checkpoint, but "
        "eval_strategy='{args.eval_strategy.value}' and "
        "save_strategy='{args.save_strategy.value}' differ. Pass the same for both, or "
        "save_strategy='best'.",
    ),
    Rule(
        lambda args: (
            args.load_best_model_at_end
            and args.eval_strategy == args.save_strategy == "steps"
            and not _is_multiple(args.save_steps, args.eval_steps)
        ),
        "load_best_model_at_end=True needs an evaluation of each checkpoint, but "
        "save_steps={args.save_steps} is not a multiple of eval_steps={args.eval_steps}. Make it "
        "one: both numbers of steps, or both shares.",
    ),
    Rule(
        lambda args: args.save_strategy == "best" and args.metric_for_best_model is None,
        "save_strategy='best': `args.metric_for_best_model` must be provided, such as 'loss', to "
        "know which checkpoint is best.",
    ),
    Rule(
        lambda args: (
            args.load_best_model_at_end
            and args.save_strategy != "best"
            and args.metric_for_best_model is None
        ),
        "load_best_model_at_end=True: `args.metric_for_best_model` must be provided, such as "
        "'loss', to know which checkpoint is best.",
    ),
    # Number formats.
    Rule(
        lambda args: args.fp16 and args.bf16,
        "fp16=True and bf16=True cannot be combined. Use one.",
    ),
    Rule(
        lambda args: args.fp16_full_eval and args.bf16_full_eval,
        "fp16_full_eval=True and bf16_full_eval=True cannot be combined. Use one.",
    ),
    Rule(
        lambda args: args.bf16 and not args.use_cpu and not hardware.supports_bf16(),
        "bf16=True, but no GPU of this machine computes in bfloat16. Pass use_cpu=True to compute "
        "in it on the CPU.",
    ),
    Rule(
        lambda args: (
            args.bf16_full_eval
            and not args.bf16
            and not args.use_cpu
            and not hardware.supports_bf16()
        ),
        "bf16_full_eval=True, but no GPU of this machine computes in bfloat16. Pass use_cpu=True "
        "to compute in it on the CPU.",
    ),
    Rule(
        lambda args: args.tf32 and not hardware.supports_tf32(),
        "tf32=True, but no GPU of this machine has TF32 (NVIDIA Ampere or newer does). Remove "
        "tf32.",
    ),
    # Batches.
    Rule(
        lambda args: args.sortish_sampler and args.train_sampling_strategy == "sequential",
        "sortish_sampler=True and train_sampling_strategy='sequential' cannot be combined. Use "
        "one.",
    ),
    Rule(
        lambda args: args.auto_find_batch_size and args.train_sampling_strategy == "token_budget",
        "auto_find_batch_size=True and train_sampling_strategy='token_budget' cannot be combined. "
        "Use one.",
    ),
    Rule(
        lambda args: (
            args.dataloader_prefetch_factor is not None and args.dataloader_num_workers == 0
        ),
        "dataloader_prefetch_factor={args.dataloader_prefetch_factor!r} needs workers, but "
        "dataloader_num_workers=0. Pass dataloader_num_workers above 0.",
    ),
    Rule(
        lambda args: args.dataloader_persistent_workers and args.dataloader_num_workers == 0,
        "dataloader_persistent_workers={args.dataloader_persistent_workers!r} needs workers, but "
        "dataloader_num_workers=0. Pass dataloader_num_workers above 0.",
    ),
    Rule(
        lambda args: (
            args.dataloader_multiprocessing_context is not None and args.dataloader_num_workers == 0
        ),
        "dataloader_multiprocessing_context={args.dataloader_multiprocessing_context!r} needs "
        "workers, but dataloader_num_workers=0. Pass dataloader_num_workers above 0.",
    ),
    Rule(
        lambda args: (
            args.train_sampling_strategy == "token_budget" and args.accelerator.split_batches
        ),
        "train_sampling_strategy={args.train_sampling_strategy!r} makes batches of different "
        "sizes, but split_batches=True in accelerator_config needs equal ones. Remove one of them.",
    ),
    Rule(
        lambda args: (
            (args.train_sampling_strategy == "token_budget")
            != (args.max_tokens_per_batch is not None)
        ),
        "train_sampling_strategy={args.train_sampling_strategy!r} with "
        "max_tokens_per_batch={args.max_tokens_per_batch}: 'token_budget' and a number of tokens "
        "need each other. Pass both or neither.",
    ),
    Rule(
        lambda args: (
            args.accumulation.get("num_steps") not in (None, args.gradient_accumulation_steps)
        ),
        "The `AcceleratorConfig`'s `num_steps` is set but differs from the argument: "
        "num_steps={args.accumulation[num_steps]}, "
        "gradient_accumulation_steps={args.gradient_accumulation_steps}. Pass one of the two.",
    ),
    Rule(
        lambda args: args.accelerator.non_blocking and not args.dataloader_pin_memory,
        "accelerator_config: non_blocking=True has an effect only with dataloader_pin_memory=True.",
        Warning,
    ),
    Rule(
        lambda args: args.accumulation.get("adjust_scheduler") is False,
        "accelerator_config: gradient_accumulation_kwargs: adjust_scheduler=False has no effect: "
        "each epoch ends with a step.",
        Warning,
    ),
    Rule(
        lambda args: args.accumulation.get("sync_with_dataloader") is False,
        "accelerator_config: gradient_accumulation_kwargs: sync_with_dataloader=False has no "
        "effect: each epoch ends with a step.",
        Warning,
    ),
    # Several processes. DDP records the graph in a step that all ranks have to survive.
    Rule(
        lambda args: args.ddp_static_graph and args.auto_find_batch_size,
        "ddp_static_graph=True and auto_find_batch_size=True cannot be combined. Use one.",
    ),
    Rule(lambda args: args.complete and refusals(), kind=NotImplementedError),
    Rule(lambda args: _deepspeed_contradictions(args.deepspeed_config, args.complete)),
    Rule(
        lambda args: args.auto_find_batch_size and args.deepspeed_config,
        "auto_find_batch_size=True and deepspeed cannot be combined: the training could not "
        "restart with the initial model. Remove auto_find_batch_size.",
    ),
    Rule(
        lambda args: args.deepspeed_config and args.groups,
        "deepspeed and parallelism_config cannot be combined: DeepSpeed forms its own groups. Use "
        "one. For sp_size remove deepspeed; FSDP then shards the model.",
    ),
    Rule(lambda args: args.deepspeed_config and args.fsdp and _fsdp_with_deepspeed(args.fsdp)),
    Rule(lambda args: args.fsdp_problems),
    # A misspelt setting is refused in one process, too, although nothing reads it there.
    Rule(lambda args: not args.fsdp and read_keys(args.fsdp_keys)[1]),
    Rule(lambda args: _fsdp_in_groups(args.fsdp_settings, args.groups)),
    # Attention is replaced in Python, differently on each rank.
    Rule(
        lambda args: args.torch_compile and args.groups.sequence_argument,
        "torch_compile=True and parallelism_config with cp_size={args.groups.cp_size}, "
        "sp_size={args.groups.sp_size} cannot be combined. Use one.",
    ),
    # Not all versions of Liger accept labels that were shifted before they are split.
    Rule(
        lambda args: args.use_liger_kernel and args.groups.sequence_argument,
        "use_liger_kernel=True and parallelism_config with cp_size={args.groups.cp_size}, "
        "sp_size={args.groups.sp_size} cannot be combined. Use one.",
    ),
    Rule(
        lambda args: (
            args.save_only_model and args.load_best_model_at_end and (args.fsdp or args.deepspeed)
        ),
        "save_only_model=True and load_best_model_at_end=True cannot be combined with deepspeed or "
        "fsdp. Remove one of them.",
    ),
    Rule(
        lambda args: args.fsdp_settings.activation_checkpointing and args.gradient_checkpointing,
        "gradient_checkpointing=True and fsdp_config['activation_checkpointing']=True do the same. "
        "Use one.",
    ),
    # Neither of the next two would leave a machine with all parts of a checkpoint.
    Rule(
        lambda args: args.fsdp_settings.state_dict_type == "sharded" and args.save_only_model,
        "save_only_model=True and fsdp_config['state_dict_type']='SHARDED_STATE_DICT' cannot be "
        "combined. Set it to 'FULL_STATE_DICT', or remove save_only_model.",
    ),
    Rule(
        lambda args: args.fsdp_settings.state_dict_type == "sharded" and args.save_on_each_node,
        "save_on_each_node=True and fsdp_config['state_dict_type']='SHARDED_STATE_DICT' cannot be "
        "combined. Set it to 'FULL_STATE_DICT', or remove save_on_each_node.",
    ),
    Rule(lambda args: not args.fsdp and _unused_without_fsdp(args.fsdp_keys), kind=Warning),
    Rule(lambda args: _unused_fsdp_config(args.fsdp_settings, args.fsdp_keys), kind=Warning),
    Rule(
        lambda args: (
            args.fsdp_settings.version == 1
            and not args.fsdp_settings.use_orig_params
            and args.weight_decay
        ),
        "fsdp_config['use_orig_params']=False joins parameters: weight_decay={args.weight_decay} "
        "applies to biases and norms too.",
        Warning,
    ),
    Rule(
        lambda args: args.fsdp_settings.reshard_after_forward and args.gradient_checkpointing,
        "gradient_checkpointing=True gathers the parameters of FSDP again in the backward pass; "
        "fsdp_config['activation_checkpointing']=True does not.",
        Warning,
    ),
]


def problems(args: ArgumentFields, names: Collection[str] | None = None) -> list[str]:
    """Return one sentence for each error in the arguments and for each unsupported value.

    Args:
        args: Arguments with fields that may have been changed since they were made.
        names: Check these fields only; by default all of them, and the launcher's environment too.
    """
    values, errors = read_fields(args, names)
    return [sentence for kind, sentence in _problems(args, values, errors) if kind is not Warning]


def report(args: ArgumentFields, values: dict[str, Any], errors: dict[str, Exception]) -> list[str]:
    """Raise one error with all errors of these fields and of the rules between them.

    Unsupported values are reported if nothing else is wrong.

    Args:
        args: The arguments.
        values: The result of `read_fields`, or values that were derived from it.
        errors: The errors of `read_fields`.

    Returns:
        Warnings.

    Raises:
        TypeError: Values have wrong types, and nothing else is wrong.
        ValueError: There are other errors.
        NotImplementedError: Values are not supported.
    """
    kinds: list[type[Exception]] = []
    wrong: list[str] = []
    unsupported: list[str] = []
    warnings: list[str] = []
    for kind, sentence in _problems(args, values, errors):
        kinds.append(kind)
        if kind is Warning:
            warnings.append(sentence)
        elif kind is NotImplementedError:
            unsupported.append(sentence)
        else:
            wrong.append(sentence)

    if wrong:
        message = "\n".join(wrong)
        if len(wrong) > 1:
            message = f"{len(wrong)} arguments are invalid:\n{message}"
        raise ValueError(message) if ValueError in kinds else TypeError(message)
    if unsupported:
        raise_unsupported(unsupported)
    return warnings


def raise_unsupported(messages: list[str]) -> None:
    """Raise one error with all sentences about unsupported values; do nothing without any.

    Raises:
        NotImplementedError: There are sentences.
    """
    if messages:
        raise NotImplementedError("\n".join(["Not supported by lightrainer yet:", *messages]))


def _problems(
    args: ArgumentFields, values: dict[str, Any], errors: dict[str, Exception]
) -> Iterator[tuple[type[Exception], str]]:
    """Yield each error of a field and of a rule, with its kind."""
    for error in errors.values():
        kind: type[Exception] = ValueError
        if isinstance(error, TypeError):
            kind = TypeError
        elif isinstance(error, NotImplementedError):
            kind = NotImplementedError
        for sentence in error.args:
            yield kind, sentence

    right_values = {name: value for name, value in values.items() if name not in errors}
    readable = ReadableArguments(args, right_values)
    for rule in RULES:
        for sentence in rule.messages(readable):
            yield rule.kind, sentence
