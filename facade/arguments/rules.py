"""Rules between training arguments, as one list, and the report of all errors at once.

What concerns one argument alone is declared with its field, see `argument.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ...lightning_modules.common.local_paths import address_of, is_address
from ..distributed.process import launched_world_size
from . import hardware
from .deepspeed_config import fill_from_arguments, load_deepspeed, value_at
from .fields import ArgumentFields
from .fsdp_config import FSDP_DEFAULTS, FSDPSettings, read_fsdp, shown_fsdp, without_effect
from .launch_variables import refusals
from .parallelism import ParallelismConfig
from .reading import read_fields

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rule:
    """A rule that arguments have to keep.

    It applies to arguments that have all that the parameters of `broken` name: fields, and what
    `_readable` adds.
    """

    broken: Callable[..., Any]
    """Returns whether arguments break the rule, or one sentence for each way in which they do."""
    message: str = ""
    """The sentence about arguments that break it, with their names in braces."""
    kind: type[Exception] = ValueError
    """The error that is raised; a `Warning` is logged when the arguments are made."""

    def sentences(self, readable: Mapping[str, Any]) -> list[str]:
        """Return one sentence for each way in which arguments break the rule."""
        code = self.broken.__code__
        names = code.co_varnames[: code.co_argcount]
        if not readable.keys() >= set(names):
            return []
        values = [readable[name] for name in names]
        found = self.broken(*values)
        if not found:
            return []
        if not self.message:
            return list(found)
        plain = [value.value if isinstance(value, Enum) else value for value in values]
        return [self.message.format(**dict(zip(names, plain, strict=True)))]


def _wrong_interval(kind: str, strategy: str, steps: float | None) -> list[str]:
    """Return what is wrong with the steps of a strategy "steps", which are a share below 1, or
    whole.
    """
    if strategy != "steps":
        return []
    given = f"{kind}_strategy='steps' with {kind}_steps={steps!r}"
    if steps is None or not math.isfinite(steps):
        return [f"{given}: pass a number of steps."]
    must_be_positive = kind != "save"  # 0 and negative numbers are in use for "only at the end"
    if (must_be_positive and steps <= 0) or (steps > 1 and steps != int(steps)):
        above = "; it must be above 0" if must_be_positive else ""
        return [f"{given}: pass a whole number, or a share of all steps below 1{above}."]
    return []


def _is_multiple(save: float | None, evaluation: float | None) -> bool:
    if save is None or evaluation is None or evaluation <= 0 or save % evaluation == 0:
        return True  # missing and negative numbers are reported by another rule
    # Shares are compared in millionths: 0.3 % 0.1 is not 0.
    return save < 1 and evaluation < 1 and (save * 1_000_000) % (evaluation * 1_000_000) == 0


def _optimizer_by_path(path: str, optim_args: str | None, weight_decay: float) -> list[str]:
    """Return the error of an optimizer that is given as the path of a class."""
    from ...lightning_modules.optim.by_path import optimizer_by_path  # loads torch

    try:
        optimizer_by_path(path, optim_args, {"lr": 1.0, "weight_decay": weight_decay}, {})
    except ValueError as error:
        return [str(error)]
    return []


def _unused_fsdp_config(
    fsdp_settings: FSDPSettings, fsdp_config: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the keys of `fsdp_config` that have no effect."""
    for unused in without_effect(fsdp_settings, fsdp_config):
        yield f"{unused}; it changes nothing."
    xla = [
        key
        for key in ("xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt")
        if fsdp_config.get(key)
    ]
    if xla and not fsdp_settings.xla:
        yield f"{', '.join(xla)} are used only with fsdp_config['xla']=True: they change nothing."


def _unused_without_fsdp(fsdp_config: Mapping[str, Any]) -> list[str]:
    """Return a sentence about the keys of `fsdp_config` that are set although `fsdp` is not."""
    idle = [
        key
        for key in fsdp_config
        if key not in ("xla_fsdp_v2", "xla_fsdp_grad_ckpt") and fsdp_config[key]
    ]
    if not idle:
        return []
    return [
        f"fsdp_config is used only with fsdp, which is not set: {', '.join(idle)} change nothing."
    ]


def _fsdp_in_groups(fsdp_settings: FSDPSettings, groups: ParallelismConfig) -> Iterator[str]:
    """Yield why FSDP cannot shard over these groups."""
    if fsdp_settings.xla:
        yield (
            "fsdp_config['xla']=True and parallelism_config exclude each other. Leave "
            "parallelism_config out."
        )
    elif fsdp_settings.version == 1:
        yield (
            "parallelism_config needs version 2 of FSDP, but this is version 1. Set "
            "fsdp_config={'version': 2}."
        )
    elif not groups.dp_shard_enabled and not groups.splits_sequences:
        sizes = f"dp_shard_size={groups.dp_shard_size}, tp_size={groups.tp_size}"
        yield (
            f"fsdp has nothing to shard over: {sizes}. Set dp_shard_size above 1, or leave fsdp "
            "out."
        )


def _deepspeed_contradictions(args: Any, deepspeed_config: dict[str, Any]) -> list[str]:
    """Return a sentence about values of the configuration that differ from those of the
    arguments.
    """
    contradictions = fill_from_arguments(deepspeed_config, args, launched_world_size())
    if not contradictions:
        return []
    lines = "; ".join(contradictions)
    return [
        f'deepspeed contradicts the arguments: {lines}. Write "auto" in the configuration, or '
        "change one."
    ]


RULES = [
    # Optimizer, length and intervals of the training.
    Rule(
        lambda optim, optim_args, weight_decay: (
            "." in optim and _optimizer_by_path(optim, optim_args, weight_decay)
        ),
    ),
    Rule(
        lambda num_train_epochs, max_steps: max_steps <= 0 and not 0 <= num_train_epochs < math.inf,
        "num_train_epochs={num_train_epochs!r} must be at least 0 and finite, or "
        "max_steps={max_steps} above 0.",
    ),
    Rule(
        lambda logging_strategy, logging_steps: _wrong_interval(
            "logging", logging_strategy, logging_steps
        )
    ),
    Rule(lambda eval_strategy, eval_steps: _wrong_interval("eval", eval_strategy, eval_steps)),
    Rule(lambda save_strategy, save_steps: _wrong_interval("save", save_strategy, save_steps)),
    Rule(
        lambda lr_scheduler_type, eval_strategy: (
            lr_scheduler_type.waits_for_metric and eval_strategy == "no"
        ),
        "lr_scheduler_type={lr_scheduler_type!r} needs evaluations, but eval_strategy='no'. "
        "Pass eval_strategy='steps'.",
    ),
    # Checkpoints.
    Rule(
        # a folder has its place once the arguments are made
        lambda output_dir: is_address(output_dir),
        "output_dir={output_dir!r} is set too late: pass an address to "
        "TrainingArguments(output_dir=).",
    ),
    Rule(
        lambda output_dir, save_on_each_node: save_on_each_node and address_of(output_dir),
        "save_on_each_node: leave it out, as output_dir is an address, where all machines find all "
        "files.",
    ),
    Rule(
        lambda load_best_model_at_end, eval_strategy, save_strategy: (
            load_best_model_at_end and save_strategy not in ("best", eval_strategy)
        ),
        "load_best_model_at_end=True needs an evaluation of each checkpoint, but "
        "eval_strategy={eval_strategy!r} and save_strategy={save_strategy!r} differ. Pass the "
        "same for both, or save_strategy='best'.",
    ),
    Rule(
        lambda load_best_model_at_end, eval_strategy, save_strategy, eval_steps, save_steps: (
            load_best_model_at_end
            and eval_strategy == save_strategy == "steps"
            and not _is_multiple(save_steps, eval_steps)
        ),
        "load_best_model_at_end=True needs an evaluation of each checkpoint, but "
        "save_steps={save_steps} is not a multiple of eval_steps={eval_steps}. Make it one, with "
        "both of them steps or both of them shares.",
    ),
    Rule(
        lambda save_strategy, metric_for_best_model: (
            save_strategy == "best" and metric_for_best_model is None
        ),
        "save_strategy='best' needs metric_for_best_model, such as 'loss', to know which "
        "checkpoint is best.",
    ),
    Rule(
        lambda save_strategy, load_best_model_at_end, metric_for_best_model: (
            load_best_model_at_end and save_strategy != "best" and metric_for_best_model is None
        ),
        "load_best_model_at_end=True needs metric_for_best_model, such as 'loss', to know which "
        "checkpoint is best.",
    ),
    # Number formats.
    Rule(lambda fp16, bf16: fp16 and bf16, "fp16=True and bf16=True exclude each other. Keep one."),
    Rule(
        lambda fp16_full_eval, bf16_full_eval: fp16_full_eval and bf16_full_eval,
        "fp16_full_eval=True and bf16_full_eval=True exclude each other. Keep one.",
    ),
    Rule(
        lambda bf16, use_cpu: bf16 and not use_cpu and not hardware.supports_bf16(),
        "bf16=True, but no GPU here computes in bfloat16. Pass use_cpu=True to compute in it on "
        "the CPU.",
    ),
    Rule(
        lambda bf16_full_eval, bf16, use_cpu: (
            bf16_full_eval and not bf16 and not use_cpu and not hardware.supports_bf16()
        ),
        "bf16_full_eval=True, but no GPU here computes in bfloat16. Pass use_cpu=True to compute "
        "in it on the CPU.",
    ),
    Rule(
        lambda tf32: tf32 and not hardware.supports_tf32(),
        "tf32=True, but no GPU here has TF32 (NVIDIA Ampere or newer does). Leave tf32 out.",
    ),
    Rule(
        lambda fp8, deepspeed_config: fp8,
        "fp8=True and deepspeed cannot be combined: both replace linear layers. Use one.",
    ),
    Rule(
        lambda fp8, groups: fp8 and groups.tp_enabled,
        "fp8=True and tp_size cannot be combined: both replace linear layers. Use one.",
    ),
    # Batches.
    Rule(
        lambda sortish_sampler, train_sampling_strategy: (
            sortish_sampler and train_sampling_strategy == "sequential"
        ),
        "sortish_sampler=True and train_sampling_strategy='sequential' exclude each other. Keep "
        "one.",
    ),
    Rule(
        lambda auto_find_batch_size, train_sampling_strategy: (
            auto_find_batch_size and train_sampling_strategy == "token_budget"
        ),
        "auto_find_batch_size=True and train_sampling_strategy='token_budget' exclude each other. "
        "Keep one.",
    ),
    Rule(
        lambda dataloader_prefetch_factor, dataloader_num_workers: (
            dataloader_prefetch_factor is not None and dataloader_num_workers == 0
        ),
        "dataloader_prefetch_factor={dataloader_prefetch_factor!r} needs workers, but "
        "dataloader_num_workers=0: pass dataloader_num_workers above 0.",
    ),
    Rule(
        lambda dataloader_persistent_workers, dataloader_num_workers: (
            dataloader_persistent_workers and dataloader_num_workers == 0
        ),
        "dataloader_persistent_workers={dataloader_persistent_workers!r} needs workers, but "
        "dataloader_num_workers=0: pass dataloader_num_workers above 0.",
    ),
    Rule(
        lambda dataloader_multiprocessing_context, dataloader_num_workers: (
            dataloader_multiprocessing_context is not None and dataloader_num_workers == 0
        ),
        "dataloader_multiprocessing_context={dataloader_multiprocessing_context!r} needs workers, "
        "but dataloader_num_workers=0: pass dataloader_num_workers above 0.",
    ),
    Rule(
        lambda train_sampling_strategy, accelerator_config: (
            train_sampling_strategy in ("batch_rebalance", "token_budget")
            and accelerator_config.split_batches
        ),
        "train_sampling_strategy={train_sampling_strategy!r} makes batches of different sizes, "
        "split_batches=True in accelerator_config equal ones. Leave one of them out.",
    ),
    Rule(
        lambda train_sampling_strategy, max_tokens_per_batch: (
            (train_sampling_strategy == "token_budget") != (max_tokens_per_batch is not None)
        ),
        "train_sampling_strategy={train_sampling_strategy!r} with "
        "max_tokens_per_batch={max_tokens_per_batch}: 'token_budget' and a number of tokens need "
        "each other. Pass both or neither.",
    ),
    Rule(
        lambda accumulation, gradient_accumulation_steps: (
            accumulation.get("num_steps") not in (None, gradient_accumulation_steps)
        ),
        "accelerator_config: gradient_accumulation_kwargs: num_steps={accumulation[num_steps]}, "
        "but gradient_accumulation_steps={gradient_accumulation_steps}. Give the one or the "
        "other.",
    ),
    Rule(
        lambda accelerator_config, dataloader_pin_memory: (
            accelerator_config.non_blocking and not dataloader_pin_memory
        ),
        "accelerator_config: non_blocking=True copies at once only with "
        "dataloader_pin_memory=True.",
        Warning,
    ),
    Rule(
        lambda accumulation: accumulation.get("adjust_scheduler") is False,
        "accelerator_config: gradient_accumulation_kwargs: adjust_scheduler=False has no effect: "
        "each epoch ends with a step.",
        Warning,
    ),
    Rule(
        lambda accumulation: accumulation.get("sync_with_dataloader") is False,
        "accelerator_config: gradient_accumulation_kwargs: sync_with_dataloader=False has no "
        "effect: each epoch ends with a step.",
        Warning,
    ),
    # Several processes.
    Rule(
        # DDP records the graph in a step that all ranks survive.
        lambda ddp_static_graph, auto_find_batch_size: ddp_static_graph and auto_find_batch_size,
        "ddp_static_graph=True and auto_find_batch_size=True exclude each other. Keep one.",
    ),
    Rule(lambda args: refusals(), kind=NotImplementedError),
    Rule(_deepspeed_contradictions),
    Rule(
        lambda deepspeed_config, auto_find_batch_size: (
            auto_find_batch_size and value_at(deepspeed_config, "zero_optimization.stage") == 3
        ),
        "auto_find_batch_size=True does not go with stage 3 of DeepSpeed. Use stage 1 or 2, or "
        "FSDP.",
    ),
    Rule(
        lambda deepspeed_config, groups: True,
        "deepspeed and parallelism_config exclude each other: DeepSpeed forms its own groups. Keep "
        "one. For sp_size leave deepspeed out: FSDP shards the model then.",
    ),
    Rule(
        lambda deepspeed_config, fsdp: (
            fsdp
            and [
                f"{shown_fsdp(fsdp)} and deepspeed exclude each other: both shard the model. Keep "
                "one."
            ]
        ),
    ),
    Rule(lambda fsdp_faults: fsdp_faults),
    Rule(_fsdp_in_groups),
    Rule(
        # Attention is replaced in Python, differently on each rank.
        lambda groups, torch_compile: groups.splits_sequences and torch_compile,
        "torch_compile=True and parallelism_config with cp_size={groups.cp_size}, "
        "sp_size={groups.sp_size} exclude each other. Keep one.",
    ),
    Rule(
        # Not all versions of Liger take labels that were shifted before they are split.
        lambda groups, use_liger_kernel: groups.splits_sequences and use_liger_kernel,
        "use_liger_kernel=True and parallelism_config with cp_size={groups.cp_size}, "
        "sp_size={groups.sp_size} exclude each other. Keep one.",
    ),
    Rule(
        lambda save_only_model, load_best_model_at_end, fsdp, deepspeed: (
            save_only_model and load_best_model_at_end and (fsdp or deepspeed)
        ),
        "save_only_model=True with load_best_model_at_end=True does not go with deepspeed or fsdp. "
        "Drop one of them.",
    ),
    Rule(
        lambda fsdp_settings, gradient_checkpointing: (
            fsdp_settings.activation_checkpointing and gradient_checkpointing
        ),
        "gradient_checkpointing=True and fsdp_config['activation_checkpointing']=True do the same. "
        "Keep one.",
    ),
    # Neither of the next two leaves a machine with all parts.
    Rule(
        lambda fsdp_settings, save_only_model: (
            fsdp_settings.state_dict_type == "sharded" and save_only_model
        ),
        "save_only_model=True does not go with "
        "fsdp_config['state_dict_type']='SHARDED_STATE_DICT'. Set it to 'FULL_STATE_DICT', or "
        "leave save_only_model out.",
    ),
    Rule(
        lambda fsdp_settings, save_on_each_node: (
            fsdp_settings.state_dict_type == "sharded" and save_on_each_node
        ),
        "save_on_each_node=True does not go with "
        "fsdp_config['state_dict_type']='SHARDED_STATE_DICT'. Set it to 'FULL_STATE_DICT', or "
        "leave save_on_each_node out.",
    ),
    Rule(
        lambda fsdp, fsdp_config: (
            not fsdp and fsdp_config != FSDP_DEFAULTS and _unused_without_fsdp(fsdp_config)
        ),
        kind=Warning,
    ),
    Rule(_unused_fsdp_config, kind=Warning),
    Rule(
        lambda fsdp_settings, weight_decay: (
            fsdp_settings.version == 1 and not fsdp_settings.use_orig_params and weight_decay
        ),
        "fsdp_config['use_orig_params']=False joins parameters: weight_decay={weight_decay} "
        "applies to biases and norms too.",
        Warning,
    ),
    Rule(
        lambda fsdp_settings, gradient_checkpointing: (
            fsdp_settings.reshard_after_forward and gradient_checkpointing
        ),
        "gradient_checkpointing gathers parameters once more in the backward pass of FSDP; "
        "fsdp_config['activation_checkpointing']=True does not.",
        Warning,
    ),
]


def problems(args: ArgumentFields, names: Collection[str] | None = None) -> list[str]:
    """Return one sentence for each error in the arguments and for each value that is not supported.

    Args:
        args: Arguments with fields that may have been changed since they were made.
        names: Look at these fields only; by default at all, and at the launcher's environment too.
    """
    return [
        sentence
        for kind, sentence in _problems(args, *read_fields(args, names))
        if kind is not Warning
    ]


def raise_for_problems(args: ArgumentFields, names: Collection[str] | None = None) -> None:
    """Raise one error with all results of `problems`; values that are not supported are named if
    nothing is wrong.

    Raises:
        TypeError: Values have wrong types, and nothing else is wrong.
        ValueError: There are other errors.
        NotImplementedError: Values are not supported.
    """
    report(args, *read_fields(args, names))


def report(args: ArgumentFields, values: dict[str, Any], errors: dict[str, Exception]) -> list[str]:
    """Raise one error with all errors of these fields and of the rules between them.

    Args:
        args: The arguments.
        values: Of `read_fields`, or with values that were derived since.
        errors: Of `read_fields`.

    Returns:
        Warnings.

    Raises:
        TypeError, ValueError, NotImplementedError: See `raise_for_problems`.
    """
    found = list(_problems(args, values, errors))
    wrong = [sentence for kind, sentence in found if kind in (TypeError, ValueError)]
    if wrong:
        text = (
            wrong[0]
            if len(wrong) == 1
            else "\n".join([f"{len(wrong)} arguments cannot be used:", *wrong])
        )
        only_types = all(kind is not ValueError for kind, _ in found)
        raise TypeError(text) if only_types else ValueError(text)
    unsupported = [sentence for kind, sentence in found if kind is NotImplementedError]
    if unsupported:
        raise_unsupported(unsupported)
    return [sentence for kind, sentence in found if kind is Warning]


def raise_unsupported(sentences: list[str]) -> None:
    """Raise one error with all sentences about values that are not supported; do nothing without
    any.

    Raises:
        NotImplementedError: there are sentences.
    """
    if sentences:
        raise NotImplementedError("\n".join(["Not supported by lightrainer yet:", *sentences]))


def _problems(
    args: ArgumentFields, values: dict[str, Any], errors: dict[str, Exception]
) -> Iterator[tuple[type[Exception], str]]:
    """Yield each error of a field and of a rule, with its kind."""
    for error in errors.values():
        kind = next(
            kind for kind in (TypeError, NotImplementedError, ValueError) if isinstance(error, kind)
        )
        for sentence in error.args:
            yield kind, sentence

    readable = _readable(
        args, {name: value for name, value in values.items() if name not in errors}
    )
    for rule in RULES:
        for sentence in rule.sentences(readable):
            yield rule.kind, sentence


def _readable(args: ArgumentFields, values: dict[str, Any]) -> dict[str, Any]:
    """Return what rules may read: fields without errors, and what stands for several of them.

    Returns:
        `values`, and `args` if none is missing; `accumulation` and `groups` if `accelerator_config`
        and `parallelism_config` have them; with DeepSpeed `deepspeed_config`; with FSDP
        `fsdp_settings` and `fsdp_faults`.
    """
    if len(values) == len(fields(args)):
        values["args"] = args
    if accelerator_config := values.get("accelerator_config"):
        values["accumulation"] = accelerator_config.gradient_accumulation_kwargs or {}
    groups = values.get("parallelism_config")
    if groups is not None and groups.total_size > 1:
        values["groups"] = groups
    if values.get("deepspeed"):
        values["deepspeed_config"] = load_deepspeed(values["deepspeed"])
    if values.get("fsdp") and "fsdp_config" in values:
        values["fsdp_settings"], values["fsdp_faults"] = read_fsdp(
            values["fsdp"], values["fsdp_config"]
        )
    return values
