"""Rules and warnings about FSDP, DeepSpeed and `parallelism_config`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from ..distributed.process import launched_world_size
from .deepspeed_config import fill_from_arguments, key_faults, load_deepspeed, value_at
from .enums import FSDPOption
from .fsdp_config import fsdp_words, read_fsdp, settings_of, shown_fsdp, without_effect
from .parallelism import ParallelismConfig, parallelism_faults, read_parallelism
from .rules import member_errors, rule

logger = logging.getLogger(__name__)


def warn_of_sharding(args: Any) -> None:
    """Warn of settings that have no effect, or an unwanted one."""
    config = args.fsdp_config
    if not args.fsdp:
        idle = [key for key in config if key not in ("xla_fsdp_v2", "xla_fsdp_grad_ckpt") and config[key]]
        if idle:
            logger.warning("fsdp_config is used only with fsdp, which is not set: %s change nothing.", ", ".join(idle))
        return
    settings = read_fsdp(args.fsdp, config)[0]
    for said in without_effect(settings, config):
        logger.warning("%s; it changes nothing.", said)
    xla = [key for key in ("xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt") if config.get(key)]
    if xla and not config.get("xla"):
        logger.warning("%s are used only with fsdp_config['xla']=True: they change nothing.", ", ".join(xla))
    if args.weight_decay and settings.version == 1 and not settings.use_orig_params:
        said = "fsdp_config['use_orig_params']=False joins parameters: weight_decay=%s applies to biases and norms too."
        logger.warning(said, args.weight_decay)
    if args.gradient_checkpointing and settings.reshard_after_forward:
        better = "fsdp_config['activation_checkpointing']=True does not"
        logger.warning("gradient_checkpointing gathers parameters once more in the backward pass of FSDP; %s.", better)


def loads_weights_once(args: Any) -> bool | None:
    """Return True if `from_pretrained` is to read weights on local rank 0 only; None without FSDP."""
    return read_fsdp(args.fsdp, args.fsdp_config)[0].cpu_ram_efficient_loading if args.fsdp else None


@rule("fsdp", "fsdp_config")
def _fsdp(args: Any) -> Iterable[str]:
    words = fsdp_words(args.fsdp)
    unknown = [error for word in words for error in member_errors("fsdp", word, FSDPOption)]
    # Without fsdp its configuration is not read, as in the reference.
    yield from unknown or (read_fsdp(args.fsdp, args.fsdp_config)[1] if words else [])


@rule(
    *("deepspeed", "per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "save_on_each_node"),
    *("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"),
    *("fp16", "bf16", "fp16_full_eval", "bf16_full_eval", "auto_find_batch_size"),
)
def _deepspeed(args: Any) -> Iterable[str]:
    if not args.deepspeed:
        return
    try:
        config = load_deepspeed(args.deepspeed)
    except ValueError as error:
        yield str(error)
        return
    yield from key_faults(config)
    yield from _zero(config)
    contradictions = fill_from_arguments(config, args, launched_world_size())
    if contradictions:
        lines = "; ".join(contradictions)
        yield f'deepspeed contradicts the arguments: {lines}. Write "auto" in the configuration, or change one.'
    if value_at(config, "fp16.enabled") is True and value_at(config, "bf16.enabled") is True:
        yield "deepspeed: fp16.enabled and bf16.enabled exclude each other. Keep one."
    if args.auto_find_batch_size and value_at(config, "zero_optimization.stage") == 3:
        yield "auto_find_batch_size=True does not go with stage 3 of DeepSpeed. Use stage 1 or 2, or FSDP."


def _zero(config: dict[str, Any]) -> Iterable[str]:
    """Check the required section, the stage, and the devices of offloading."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        yield "deepspeed: the configuration has no section zero_optimization. Add one, such as {'stage': 2}."
        return
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        yield f"deepspeed: zero_optimization.stage={stage!r} must be 0, 1, 2 or 3."
    for part in ("offload_optimizer", "offload_param"):
        yield from _offload(part, zero.get(part), stage)
    autotp = value_at(config, "tensor_parallel.autotp_size", 1)
    if autotp not in (0, 1):
        instead = "split layers with parallelism_config={'tp_size': ...} in place of deepspeed"
        yield f"deepspeed: tensor_parallel.autotp_size={autotp!r} is not there: leave it out, or {instead}."


def _offload(part: str, section: Any, stage: Any) -> Iterable[str]:
    device = section.get("device", "none") if isinstance(section, dict) else "none"
    name = f"zero_optimization.{part}.device={device!r}"
    if device not in ("none", None, "cpu", "nvme"):
        yield f"deepspeed: {name} is not known. Choose from: none, cpu, nvme."
    elif device in ("cpu", "nvme") and part == "offload_param" and stage != 3:
        yield f"deepspeed: {name} needs zero_optimization.stage 3, which is {stage!r}."
    if device == "nvme" and not section.get("nvme_path"):
        yield f"deepspeed: {name} needs zero_optimization.{part}.nvme_path, the folder to keep it in."


@rule("parallelism_config")
def _parallelism(args: Any) -> Iterable[str]:
    return parallelism_faults(read_parallelism(args.parallelism_config), launched_world_size())


@rule("fsdp", "deepspeed")
def _one_engine(args: Any) -> Iterable[str]:
    if args.fsdp and args.deepspeed:
        yield f"{shown_fsdp(args.fsdp)} and deepspeed exclude each other: both shard the model. Keep one."


def _groups(args: Any) -> ParallelismConfig | None:
    """Return a valid `parallelism_config` for more than one rank, or None."""
    config = read_parallelism(args.parallelism_config)
    asked = isinstance(config, ParallelismConfig) and not parallelism_faults(config, 1) and config.total_size > 1
    return config if asked else None


@rule("fsdp", "fsdp_config", "parallelism_config")
def _fsdp_in_groups(args: Any) -> Iterable[str]:
    groups = _groups(args)
    if groups is None or not args.fsdp:
        return
    settings, _ = read_fsdp(args.fsdp, args.fsdp_config)
    if settings.xla:
        yield "fsdp_config['xla']=True and parallelism_config exclude each other. Leave parallelism_config out."
    elif settings.version == 1:
        yield "parallelism_config needs version 2 of FSDP, but this is version 1. Set fsdp_config={'version': 2}."
    elif not groups.dp_shard_enabled and not groups.splits_sequences:
        sizes = f"dp_shard_size={groups.dp_shard_size}, tp_size={groups.tp_size}"
        yield f"fsdp has nothing to shard over: {sizes}. Set dp_shard_size above 1, or leave fsdp out."


@rule("deepspeed", "parallelism_config")
def _deepspeed_in_groups(args: Any) -> Iterable[str]:
    groups = _groups(args)
    if groups is not None and args.deepspeed:
        instead = " For sp_size leave deepspeed out: FSDP shards the model then." if groups.sp_enabled else ""
        yield f"deepspeed and parallelism_config exclude each other: DeepSpeed forms its own groups. Keep one.{instead}"


@rule("parallelism_config", "torch_compile", "use_liger_kernel")
def _split_sequences(args: Any) -> Iterable[str]:
    groups = _groups(args)
    if groups is None or not groups.splits_sequences:
        return
    given = f"parallelism_config with {groups.splits_sequences}={getattr(groups, groups.splits_sequences)}"
    if args.torch_compile:  # attention is replaced in Python, differently on each rank
        yield f"torch_compile=True and {given} exclude each other. Keep one."
    if args.use_liger_kernel:  # not all its versions take labels shifted before the split
        yield f"use_liger_kernel=True and {given} exclude each other. Keep one."


@rule("fp8", "deepspeed", "parallelism_config")
def _float8_with_engines(args: Any) -> Iterable[str]:
    groups = _groups(args)
    if args.fp8 and (args.deepspeed or (groups is not None and groups.tp_size > 1)):
        engine = "deepspeed" if args.deepspeed else "tp_size"
        yield f"fp8=True and {engine} exclude each other: it brings linear layers of its own. Keep one."


@rule("save_only_model", "load_best_model_at_end", "fsdp", "deepspeed")
def _best_of_sharded(args: Any) -> Iterable[str]:
    if args.save_only_model and args.load_best_model_at_end and (args.fsdp or args.deepspeed):
        engine = "deepspeed" if args.deepspeed else "fsdp"
        yield f"save_only_model=True with load_best_model_at_end=True does not go with {engine}. Drop one of them."


@rule("fsdp", "fsdp_config", "gradient_checkpointing", "save_only_model", "save_on_each_node")
def _beside_fsdp(args: Any) -> Iterable[str]:
    settings = settings_of(args)
    if settings and settings.activation_checkpointing and args.gradient_checkpointing:
        yield "gradient_checkpointing=True and fsdp_config['activation_checkpointing']=True do the same. Keep one."
    for name in ("save_only_model", "save_on_each_node"):  # neither leaves a machine with all parts
        if settings and settings.state_dict_type == "sharded" and getattr(args, name):
            parts = "fsdp_config['state_dict_type']='SHARDED_STATE_DICT'"
            yield f"{name}=True does not go with {parts}. Set it to 'FULL_STATE_DICT', or leave {name} out."
