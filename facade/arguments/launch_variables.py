"""Table of the environment variables of `accelerate launch` that concern the Trainer, with the
argument that each sets.

`lightrainer launch` sets the same variables from the same options and files; `launched.py` reads
them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .parallelism import SIZES

__all__ = [
    "SETTINGS",
    "VARIABLES",
    "Variable",
    "is_on",
    "refusals",
    "require_clear_switches",
    "set_by",
    "value_of",
    "values_for",
]

_EMPTY = ("", "None")
_OFF = ("", "None", "0", "false", "no", "n", "f", "off")
_ON = ("1", "true", "yes", "y", "t", "on")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable of the launcher: `argument`, `refused` or `elsewhere` is set."""

    argument: str = ""
    """The equivalent argument, with its key: `fsdp_config.version`."""
    refused: str = ""
    """Reason and remedy for values that are not in `accepted`."""
    elsewhere: str = ""
    """Another reader of the variable, or the reason that it has no effect."""
    option: str = ""
    """The option of the launcher, and the key in its files."""
    flag: bool = False
    """The option has no value."""
    default: str = ""
    """The launcher's default value; empty if the variable is then not set."""
    switch: str = ""
    """The variable that enables this one."""
    version: int | None = None
    """The only version of FSDP that reads it."""
    accepted: Collection[str] = _OFF
    """Lower-case values that are accepted; by default those that turn a feature off."""


def _fsdp(key: str, default: str = "", *, option: str = "", version: int | None = None) -> Variable:
    option = f"fsdp_{option or key}"
    argument = f"fsdp_config.{key}"
    return Variable(
        argument=argument,
        option=option,
        default=default,
        switch="ACCELERATE_USE_FSDP",
        version=version,
    )


def _deepspeed(key: str, option: str) -> Variable:
    return Variable(argument=f"deepspeed.{key}", option=option, switch="ACCELERATE_USE_DEEPSPEED")


def _groups(key: str, default: str = "") -> Variable:
    return Variable(
        argument=f"parallelism_config.{key}",
        option=f"parallelism_config_{key.rpartition('.')[2]}",
        default=default,
        switch="ACCELERATE_USE_PARALLELISM_CONFIG",
    )


VARIABLES: dict[str, Variable] = {
    "ACCELERATE_USE_CPU": Variable(argument="use_cpu", option="use_cpu", flag=True),
    "ACCELERATE_MIXED_PRECISION": Variable(
        argument="mixed_precision",
        refused="set it to 'bf16', 'fp16' or 'no'",
        accepted=("bf16", "fp16", "no"),
        option="mixed_precision",
        default="no",
    ),
    "ACCELERATE_DYNAMO_BACKEND": Variable(
        argument="torch_compile_backend", option="dynamo_backend", default="NO"
    ),
    "ACCELERATE_DYNAMO_MODE": Variable(
        argument="torch_compile_mode", option="dynamo_mode", default="default"
    ),
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": Variable(
        argument="torch_compile", option="dynamo_use_fullgraph", flag=True, default="False"
    ),
    "ACCELERATE_DYNAMO_USE_DYNAMIC": Variable(
        argument="torch_compile", option="dynamo_use_dynamic", flag=True, default="False"
    ),
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": Variable(
        refused="the model is compiled as a whole: remove dynamo_use_regional_compilation",
        option="dynamo_use_regional_compilation",
        flag=True,
        default="False",
    ),
    "ACCELERATE_USE_FSDP": Variable(argument="fsdp", option="use_fsdp", flag=True),
    "FSDP_VERSION": _fsdp("version", "1"),
    "FSDP_SHARDING_STRATEGY": _fsdp(
        "reshard_after_forward", "FULL_SHARD", option="sharding_strategy", version=1
    ),
    "FSDP_RESHARD_AFTER_FORWARD": _fsdp("reshard_after_forward", "true", version=2),
    "FSDP_OFFLOAD_PARAMS": _fsdp("cpu_offload", "false", option="offload_params"),
    "FSDP_MIN_NUM_PARAMS": _fsdp("min_num_params", "100000000"),
    "FSDP_AUTO_WRAP_POLICY": _fsdp("auto_wrap_policy"),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": _fsdp("transformer_layer_cls_to_wrap"),
    "FSDP_BACKWARD_PREFETCH": _fsdp("backward_prefetch", version=1),
    "FSDP_STATE_DICT_TYPE": _fsdp("state_dict_type"),
    "FSDP_FORWARD_PREFETCH": _fsdp("forward_prefetch", "false", version=1),
    "FSDP_USE_ORIG_PARAMS": _fsdp("use_orig_params", "true", version=1),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": _fsdp("cpu_ram_efficient_loading", "true"),
    "FSDP_SYNC_MODULE_STATES": _fsdp("sync_module_states", "true", version=1),
    "FSDP_ACTIVATION_CHECKPOINTING": _fsdp("activation_checkpointing", "false"),
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": _fsdp("activation_checkpointing_offload", "false"),
    "FSDP_IGNORED_MODULES": _fsdp("ignored_modules"),
    "ACCELERATE_USE_DEEPSPEED": Variable(argument="deepspeed", option="use_deepspeed", flag=True),
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": _deepspeed("", "deepspeed_config_file"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": _deepspeed(
        "gradient_accumulation_steps", "gradient_accumulation_steps"
    ),
    "ACCELERATE_GRADIENT_CLIPPING": _deepspeed("gradient_clipping", "gradient_clipping"),
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": _deepspeed("zero_optimization.stage", "zero_stage"),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": _deepspeed(
        "zero_optimization.offload_optimizer.device", "offload_optimizer_device"
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH": _deepspeed(
        "zero_optimization.offload_optimizer.nvme_path", "offload_optimizer_nvme_path"
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": _deepspeed(
        "zero_optimization.offload_param.device", "offload_param_device"
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH": _deepspeed(
        "zero_optimization.offload_param.nvme_path", "offload_param_nvme_path"
    ),
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": _deepspeed(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save", "zero3_save_16bit_model"
    ),
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": _deepspeed(
        "zero_optimization.leaf_module.classes", "deepspeed_moe_layer_cls_names"
    ),
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": Variable(
        elsewhere=(
            "nothing in a Trainer script: in stage 3 from_pretrained creates models in parts, as "
            "in transformers"
        ),
        option="zero3_init_flag",
        switch="ACCELERATE_USE_DEEPSPEED",
    ),
    "ACCELERATE_CONFIG_DS_FIELDS": Variable(
        elsewhere="launched.py: settings that must not contradict a file of DeepSpeed",
        switch="ACCELERATE_USE_DEEPSPEED",
    ),
    "ACCELERATE_USE_PARALLELISM_CONFIG": Variable(
        argument="parallelism_config", option="use_parallelism_config", flag=True
    ),
    **{f"PARALLELISM_CONFIG_{name}".upper(): _groups(name, "1") for name in SIZES},
    "PARALLELISM_CONFIG_CP_BACKEND": _groups("cp_backend", "torch"),
    "PARALLELISM_CONFIG_CP_COMM_STRATEGY": _groups("cp_handler.cp_comm_strategy"),
    "PARALLELISM_CONFIG_SP_BACKEND": _groups("sp_backend", "deepspeed"),
    **{
        f"PARALLELISM_CONFIG_{name}".upper(): _groups(f"sp_handler.{name}")
        for name in ("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation")
    },
    "ACCELERATE_USE_MEGATRON_LM": Variable(
        refused="Megatron-LM is not supported: use fsdp, deepspeed or parallelism_config",
        option="use_megatron_lm",
        flag=True,
    ),
    "ACCELERATE_CPU_AFFINITY": Variable(
        refused=(
            "processes are not bound to cores: remove enable_cpu_affinity, and start them with "
            "numactl"
        ),
        option="enable_cpu_affinity",
        flag=True,
    ),
    "ACCELERATE_DEBUG_MODE": Variable(
        elsewhere="nothing: ranks are always compared", option="debug", flag=True
    ),
    "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": Variable(
        refused="smdistributed is not supported: start the script with torchrun in the job"
    ),
    "OMP_NUM_THREADS": Variable(elsewhere="OpenMP and MKL", option="num_cpu_threads_per_process"),
    "CUDA_VISIBLE_DEVICES": Variable(elsewhere="CUDA: which devices are visible", option="gpu_ids"),
}
"""Variables by name, except those that only other libraries read."""

SETTINGS = {name for name, variable in VARIABLES.items() if variable.argument or variable.flag}
"""The variables that set an argument, and those whose values are checked."""

_SWITCHES = [name for name, variable in VARIABLES.items() if variable.flag]
_SAVE_16BIT_MODEL = "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"


def is_on(name: str) -> bool:
    """Return True if a variable is set to a true value."""
    return os.environ.get(name, "").lower() not in _OFF


def value_of(name: str) -> str | None:
    """Return the value of a variable; None if it is empty or its switch is off."""
    value = os.environ.get(name)
    if value is None or value in _EMPTY:
        return None
    switch = VARIABLES[name].switch
    if switch and not is_on(switch):
        return None
    return value


def require_clear_switches() -> None:
    """Check that each variable which turns something on or off says which.

    Raises:
        ValueError: a value is neither; names the option of each such variable.
    """
    problems: list[str] = []
    for name in (*_SWITCHES, _SAVE_16BIT_MODEL):
        value = os.environ.get(name, "")
        if value not in _OFF and value.lower() not in (*_OFF, *_ON):
            problems.append(f"{set_by(name)} is neither true nor false. Set it to one of them.")
    if problems:
        raise ValueError("\n".join(problems))


def set_by(name: str) -> str:
    """Return the option of the launcher that sets a variable, and the variable, for messages."""
    return f"{VARIABLES[name].option} of the launcher ({name}={os.environ.get(name)!r})"


def values_for(argument: str, version: int | None = None) -> dict[str, str]:
    """Return the values of the variables for an argument, as text by key.

    Args:
        argument: The name of the argument.
        version: The version of FSDP, where variables of the other one do not count.
    """
    values: dict[str, str] = {}
    for name, variable in VARIABLES.items():
        if not variable.argument.startswith(f"{argument}."):
            continue
        if variable.version not in (None, version):
            continue
        value = value_of(name)
        if value is not None:
            key = variable.argument.partition(".")[2]
            values[key] = value
    return values


def refusals(sources: Mapping[str, str] | None = None) -> list[str]:
    """Return one sentence for each variable with an unsupported value, with a remedy.

    Args:
        sources: The input of a command that set variables, by the variable's name, such as
            `--mixed_precision fp9`.
    """
    sources = sources or {}
    sentences: list[str] = []
    for name, variable in VARIABLES.items():
        if not variable.refused or name not in os.environ:
            continue
        value = value_of(name)
        if value is not None and value.lower() not in variable.accepted:
            source = sources.get(name, f"the environment variable {name}={value!r}")
            sentences.append(f"{source}: {variable.refused}")
    return sentences
