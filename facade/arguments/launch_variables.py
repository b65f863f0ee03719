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

__all__ = ["VARIABLES", "Variable", "asked", "is_on", "refusals", "said"]

_NOTHING = ("", "None")
_OFF = (*_NOTHING, "0", "false", "no", "n", "f", "off")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable of the launcher; one of `argument`, `refused` and `elsewhere` is
    set.
    """

    argument: str = ""
    """The equivalent argument, with its key: `fsdp_config.version`."""
    refused: str = ""
    """Reason and remedy for values that are not in `fine`."""
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
    """Of FSDP: the only one that it counts in."""
    fine: Collection[str] = _OFF
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
    option, switch = (
        f"parallelism_config_{key.rpartition('.')[2]}",
        "ACCELERATE_USE_PARALLELISM_CONFIG",
    )
    return Variable(
        argument=f"parallelism_config.{key}", option=option, default=default, switch=switch
    )


VARIABLES: dict[str, Variable] = {
    "ACCELERATE_USE_CPU": Variable(argument="use_cpu", option="use_cpu", flag=True),
    "ACCELERATE_MIXED_PRECISION": Variable(
        argument="mixed_precision",
        refused="set it to 'bf16', 'fp16' or 'no'",
        fine=("bf16", "fp16", "no"),
        option="mixed_precision",
        default="no",
    ),
    "ACCELERATE_DYNAMO_BACKEND": Variable(
        argument="torch_compile_backend", option="dynamo_backend", default="NO"
    ),
    "ACCELERATE_DYNAMO_MODE": Variable(
        argument="torch_compile_mode", option="dynamo_mode", default="default"
    ),
    **{
        f"ACCELERATE_{option}".upper(): Variable(
            argument="torch_compile", option=option, flag=True, default="False"
        )
        for option in ("dynamo_use_fullgraph", "dynamo_use_dynamic")
    },
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": Variable(
        refused="the model is compiled as a whole: leave dynamo_use_regional_compilation out",
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
    **{
        f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_{what}".upper(): _deepspeed(
            f"zero_optimization.offload_{part}.{what}", f"offload_{part}_{what}"
        )
        for part in ("optimizer", "param")
        for what in ("device", "nvme_path")
    },
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": _deepspeed(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save", "zero3_save_16bit_model"
    ),
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": _deepspeed(
        "zero_optimization.leaf_module.classes", "deepspeed_moe_layer_cls_names"
    ),
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": Variable(
        elsewhere=(
            "nothing in a Trainer script: in stage 3 from_pretrained makes models in parts, as in "
            "the reference"
        ),
        option="zero3_init_flag",
        switch="ACCELERATE_USE_DEEPSPEED",
    ),
    "ACCELERATE_CONFIG_DS_FIELDS": Variable(
        elsewhere="launched.py: which settings a file of DeepSpeed must not be contradicted by",
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
        refused="there is no Megatron-LM here: use fsdp, deepspeed or parallelism_config",
        option="use_megatron_lm",
        flag=True,
    ),
    "ACCELERATE_CPU_AFFINITY": Variable(
        refused=(
            "processes are not bound to cores: leave enable_cpu_affinity out, and start them under "
            "numactl"
        ),
        option="enable_cpu_affinity",
        flag=True,
    ),
    "ACCELERATE_DEBUG_MODE": Variable(
        elsewhere="nothing: processes are compared in any case", option="debug", flag=True
    ),
    "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": Variable(
        refused="there is no smdistributed here: start the script with torchrun in the job"
    ),
    "OMP_NUM_THREADS": Variable(elsewhere="OpenMP and MKL", option="num_cpu_threads_per_process"),
    "CUDA_VISIBLE_DEVICES": Variable(elsewhere="CUDA: which devices can be seen", option="gpu_ids"),
}
"""By name; without those that other libraries read by themselves."""


def is_on(name: str) -> bool:
    """Return True if a variable is set to a true value."""
    return os.environ.get(name, "").lower() not in _OFF


def asked(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the value of a variable; None if it is empty, or its switch is off."""
    value = (os.environ if environment is None else environment).get(name)
    switch = VARIABLES[name].switch
    return None if value is None or value in _NOTHING or (switch and not is_on(switch)) else value


def said(argument: str, version: int | None = None) -> dict[str, str]:
    """Return the values of the variables for an argument, as text by key.

    Args:
        argument: the argument.
        version: of FSDP.
    """
    rows = [
        (name, row) for name, row in VARIABLES.items() if row.argument.startswith(f"{argument}.")
    ]
    found = {
        row.argument.partition(".")[2]: asked(name)
        for name, row in rows
        if row.version in (None, version)
    }
    return {key: value for key, value in found.items() if value is not None}


def refusals(sources: Mapping[str, str] | None = None) -> list[str]:
    """Return one sentence for each variable with an unsupported value, with a remedy.

    Args:
        sources: what was given to a command that set variables, by their names, such as
            `--mixed_precision fp9`.
    """
    found = []
    for name, row in VARIABLES.items():
        value = asked(name) if row.refused and name in os.environ else None
        if value is None or value.lower() in row.fine:
            continue
        source = (sources or {}).get(name, f"the environment variable {name}={value!r}")
        found.append(f"{source}: {row.refused}")
    return found
