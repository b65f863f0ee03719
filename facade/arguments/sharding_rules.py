"""Rules and warnings about FSDP, DeepSpeed and `parallelism_config`."""

from __future__ import annotations

import logging
from typing import Any

from ..distributed.process import launched_world_size
from .deepspeed_config import fill_from_arguments, key_faults, load_deepspeed, value_at
from .enums import FSDPOption
from .fsdp_config import fsdp_words, read_fsdp, shown_fsdp, without_effect
from .parallelism import ParallelismConfig, parallelism_faults, read_parallelism
from .rules import RuleBook, not_a_member

logger = logging.getLogger(__name__)

_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "save_on_each_node")
_OPTIMIZER = ("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay")
_PRECISION = ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval")


def add_sharding_rules(book: RuleBook) -> None:
    """Add the rules of this module to a book."""
    book.add("fsdp", "fsdp_config")(_fsdp)
    book.add("deepspeed", *_BATCH, *_OPTIMIZER, *_PRECISION)(_deepspeed)
    book.add("parallelism_config")(_parallelism)
    book.add("fsdp", "deepspeed")(_one_engine)
    book.add("fsdp", "fsdp_config", "parallelism_config")(_fsdp_in_groups)
    book.add("deepspeed", "parallelism_config")(_deepspeed_in_groups)
    book.add("parallelism_config", "torch_compile", "use_liger_kernel")(_sequences_in_parts)
    book.add("fsdp", "fsdp_config", "gradient_checkpointing")(_checkpointing_once)
    book.add("fsdp", "fsdp_config", "deepspeed", "save_only_model", "load_best_model_at_end")(_best_model)
    book.add("fsdp", "fsdp_config", "save_on_each_node")(_parts_on_each_node)
    book.add("deepspeed", "auto_find_batch_size")(_batch_size_search)


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
        logger.warning(
            "fsdp_config['use_orig_params']=False joins parameters, so that weight_decay=%s also applies to biases and "
            "norms.",
            args.weight_decay,
        )
    if args.gradient_checkpointing and settings.reshard_after_forward:
        logger.warning(
            "gradient_checkpointing gathers the parameters once more in the backward pass of FSDP. "
            "fsdp_config['activation_checkpointing']=True does not."
        )


def loads_weights_once(args: Any) -> bool | None:
    """Return True if `from_pretrained` is to read weights on local rank 0 only; None without FSDP."""
    return read_fsdp(args.fsdp, args.fsdp_config)[0].cpu_ram_efficient_loading if args.fsdp else None


def _fsdp(args: Any) -> list[str]:
    words = fsdp_words(args.fsdp)
    said = [fault for word in words if (fault := not_a_member("fsdp", word, FSDPOption))]
    # Without fsdp its configuration is not read, as in the reference.
    return said or (read_fsdp(args.fsdp, args.fsdp_config)[1] if words else [])


def _deepspeed(args: Any) -> list[str]:
    if not args.deepspeed:
        return []
    try:
        config = load_deepspeed(args.deepspeed)
    except ValueError as error:
        return [str(error)]
    said = key_faults(config) + _zero(config)
    contradictions = fill_from_arguments(config, args, launched_world_size())
    if contradictions:
        lines = "; ".join(contradictions)
        said.append(f'deepspeed contradicts the arguments: {lines}. Write "auto" in the configuration, or change one.')
    if value_at(config, "fp16.enabled") is True and value_at(config, "bf16.enabled") is True:
        said.append("deepspeed: fp16.enabled and bf16.enabled exclude each other. Keep one.")
    return said


def _zero(config: dict[str, Any]) -> list[str]:
    """Check the required section, the stage, and the devices of offloading."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        return ["deepspeed: the configuration has no section zero_optimization. Add one, such as {'stage': 2}."]
    said, stage = [], zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        said.append(f"deepspeed: zero_optimization.stage={stage!r} must be 0, 1, 2 or 3.")
    for part in ("offload_optimizer", "offload_param"):
        said += _offload(part, zero.get(part), stage)
    autotp = value_at(config, "tensor_parallel.autotp_size", 1)
    if autotp not in (0, 1):
        said.append(
            f"deepspeed: tensor_parallel.autotp_size={autotp!r} is not there in Lightning's DeepSpeedStrategy. Leave "
            "it out, or split layers with parallelism_config={'tp_size': ...} instead of deepspeed."
        )
    return said


def _offload(part: str, section: Any, stage: Any) -> list[str]:
    device = section.get("device", "none") if isinstance(section, dict) else "none"
    name = f"zero_optimization.{part}.device={device!r}"
    said = []
    if device not in ("none", None, "cpu", "nvme"):
        said.append(f"deepspeed: {name} is not known. Choose from: none, cpu, nvme.")
    elif device in ("cpu", "nvme") and part == "offload_param" and stage != 3:
        said.append(f"deepspeed: {name} needs zero_optimization.stage 3, which is {stage!r}.")
    if device == "nvme" and not section.get("nvme_path"):
        said.append(f"deepspeed: {name} needs zero_optimization.{part}.nvme_path, the folder to keep it in.")
    return said


def _parallelism(args: Any) -> list[str]:
    return parallelism_faults(read_parallelism(args.parallelism_config), launched_world_size())


def _one_engine(args: Any) -> str | None:
    if not (args.fsdp and args.deepspeed):
        return None
    return f"{shown_fsdp(args.fsdp)} and deepspeed exclude each other: both shard the model. Keep one."


def _groups(args: Any) -> ParallelismConfig | None:
    """Return a valid `parallelism_config` for more than one rank, or None."""
    config = read_parallelism(args.parallelism_config)
    asked = isinstance(config, ParallelismConfig) and not parallelism_faults(config, 1) and config.total_size > 1
    return config if asked else None


def _fsdp_in_groups(args: Any) -> list[str]:
    groups = _groups(args)
    if groups is None or not args.fsdp:
        return []
    settings, _ = read_fsdp(args.fsdp, args.fsdp_config)
    if settings.xla:
        return ["fsdp_config['xla']=True and parallelism_config exclude each other. Leave parallelism_config out."]
    if settings.version == 1:
        return [
            "parallelism_config goes with version 2 of FSDP, but this is version 1. Set fsdp_config={'version': 2}, or "
            "pass fsdp=True without a version."
        ]
    if not groups.dp_shard_enabled and not groups.splits_sequences:
        return [
            f"fsdp is set, but parallelism_config leaves nothing to shard over: dp_shard_size={groups.dp_shard_size}, "
            f"tp_size={groups.tp_size}. Set dp_shard_size above 1, or leave fsdp out."
        ]
    return []


def _deepspeed_in_groups(args: Any) -> str | None:
    groups = _groups(args)
    if groups is None or not args.deepspeed:
        return None
    instead = " For sp_size leave deepspeed out: FSDP shards the model then." if groups.sp_enabled else ""
    return f"deepspeed and parallelism_config exclude each other: DeepSpeed forms its own groups. Keep one.{instead}"


def _sequences_in_parts(args: Any) -> list[str]:
    groups = _groups(args)
    if groups is None or not groups.splits_sequences:
        return []
    size = f"{groups.splits_sequences}={getattr(groups, groups.splits_sequences)}"
    why = {
        "torch_compile": "torch takes attention apart in Python, for each process in another way",
        "use_liger_kernel": "not all of its versions take the labels that are shifted before the split",
    }
    return [
        f"{name}=True and parallelism_config with {size} exclude each other: {reason}. Keep one."
        for name, reason in why.items()
        if getattr(args, name)
    ]


def _checkpointing_once(args: Any) -> str | None:
    if not (args.fsdp and args.gradient_checkpointing):
        return None
    if not read_fsdp(args.fsdp, args.fsdp_config)[0].activation_checkpointing:
        return None
    return (
        "gradient_checkpointing=True and fsdp_config['activation_checkpointing']=True do the same twice. Keep the one "
        "in fsdp_config."
    )


def _best_model(args: Any) -> list[str]:
    if not args.save_only_model or not (args.fsdp or args.deepspeed):
        return []
    said = []
    if args.load_best_model_at_end:
        engine = "deepspeed" if args.deepspeed else "fsdp"
        said.append(
            f"save_only_model=True with load_best_model_at_end=True does not go with {engine}: the best model is "
            "loaded from a whole checkpoint. Drop one of them."
        )
    if args.fsdp and read_fsdp(args.fsdp, args.fsdp_config)[0].state_dict_type == "sharded":
        said.append(
            "save_only_model=True does not go with fsdp_config['state_dict_type']='SHARDED_STATE_DICT', which is a "
            "form of checkpoint. Set it to 'FULL_STATE_DICT'."
        )
    return said


def _parts_on_each_node(args: Any) -> str | None:
    if not (args.fsdp and args.save_on_each_node):
        return None
    if read_fsdp(args.fsdp, args.fsdp_config)[0].state_dict_type != "sharded":
        return None
    return (
        "save_on_each_node=True does not go with fsdp_config['state_dict_type']='SHARDED_STATE_DICT': no machine has "
        "all parts. Set it to 'FULL_STATE_DICT', or leave save_on_each_node out and write to a disk that all see."
    )


def _batch_size_search(args: Any) -> str | None:
    if not (args.deepspeed and args.auto_find_batch_size):
        return None
    try:
        stage = value_at(load_deepspeed(args.deepspeed), "zero_optimization.stage")
    except ValueError:
        return None
    if stage != 3:
        return None
    return "auto_find_batch_size=True does not go with stage 3 of DeepSpeed. Use stage 1 or 2, or FSDP."
