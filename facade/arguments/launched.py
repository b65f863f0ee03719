"""Set arguments from the environment variables of `accelerate launch` and `lightrainer launch`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from ..distributed.process import launched_world_size
from .deepspeed_config import BATCHES, GATHER, load_deepspeed, value_at
from .exports import is_ours
from .fsdp_config import FSDP_DEFAULTS, fsdp_words, read_fsdp
from .launch_variables import VARIABLES, asked, is_on, said
from .parallelism import ParallelismConfig, read_parallelism
from .reading import typed

logger = logging.getLogger(__name__)

FIELDS = (
    "torch_compile",
    "torch_compile_backend",
    "torch_compile_mode",
    "parallelism_config",
    "deepspeed",
    "fsdp",
    "fsdp_config",
)
"""The arguments that a launcher can set."""


def apply_launcher(args: Any) -> None:
    """Set arguments that the script leaves unset; its own take precedence, as in the reference.

    Args:
        args: the training arguments after `read_fields`, changed in place; `_from_launcher` names
            those that were set.

    Raises:
        ValueError: a configuration file of DeepSpeed conflicts with the launcher's options, or
            cannot be read.
    """
    if os.environ.keys().isdisjoint(VARIABLES):
        return
    before = {name: getattr(args, name) for name in FIELDS}
    args._launcher_precision = (asked("ACCELERATE_MIXED_PRECISION") or "no").lower()
    _set_compilation(args)
    if is_on("ACCELERATE_USE_PARALLELISM_CONFIG") and args.parallelism_config is None:
        args.parallelism_config = read_parallelism(_nested(said("parallelism_config")))
    if is_on("ACCELERATE_USE_DEEPSPEED") and not args.deepspeed:
        args.deepspeed = _deepspeed()
    if is_on("ACCELERATE_USE_FSDP") and not is_ours("ACCELERATE_USE_FSDP"):
        _set_fsdp(args)

    # What the plan shows.
    taken = [name for name in FIELDS if getattr(args, name) != before[name]]
    if args._launcher_precision != "no" and not args.fp16 and not args.bf16:
        taken.insert(0, "mixed_precision")
    args._from_launcher = tuple(taken)


def _set_compilation(args: Any) -> None:
    backend = asked("ACCELERATE_DYNAMO_BACKEND")
    is_compiled = (
        args.torch_compile
        or args.torch_compile_backend is not None
        or args.torch_compile_mode is not None
    )
    if not is_compiled and backend is not None and backend.lower() != "no":
        is_compiled = args.torch_compile = True
        args.torch_compile_backend = backend.lower()
    mode = asked("ACCELERATE_DYNAMO_MODE")
    if is_compiled and args.torch_compile_mode is None and mode != "default":
        args.torch_compile_mode = mode

    args.compile_options = {}
    if asked("ACCELERATE_DYNAMO_USE_FULLGRAPH") is not None:
        args.compile_options["fullgraph"] = is_on("ACCELERATE_DYNAMO_USE_FULLGRAPH")
    if asked("ACCELERATE_DYNAMO_USE_DYNAMIC") is not None:
        args.compile_options["dynamic"] = is_on("ACCELERATE_DYNAMO_USE_DYNAMIC")


_CLASSES = "zero_optimization.leaf_module.classes"


def _deepspeed() -> dict[str, Any]:
    """Return the configuration of a file with its "auto" filled in, or one made of the variables
    alone.
    """
    given = {"zero_optimization.stage": 2, GATHER: False}
    given |= {key: typed(value) for key, value in said("deepspeed").items() if key}
    if _CLASSES in given:
        given[_CLASSES] = given[_CLASSES].split(",")
    file = asked("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if file is None or file == "none":
        # Values that follow from the arguments are left to `fill_from_arguments`.
        config = _nested(
            dict.fromkeys((*BATCHES, "gradient_clipping", "fp16.enabled", "bf16.enabled"), "auto")
        )
        _fill(config, given)
        return config

    _refuse_beside_file(file)
    config = load_deepspeed(file)
    given.setdefault("zero_optimization.offload_optimizer.device", "none")
    given.setdefault("zero_optimization.offload_param.device", "none")
    _fill(
        config,
        {
            key: value
            for key, value in given.items()
            if key == _CLASSES or value_at(config, key) == "auto"
        },
    )
    return config


def _refuse_beside_file(file: str) -> None:
    """Refuse options of the launcher beside a configuration file that holds them too."""
    options = {row.option for row in VARIABLES.values() if row.argument.startswith("deepspeed.")}
    options.add("mixed_precision")
    options -= {"deepspeed_config_file", "deepspeed_moe_layer_cls_names"}
    set_twice = sorted(
        options.intersection((asked("ACCELERATE_CONFIG_DS_FIELDS") or "").split(","))
    )
    if set_twice:
        raise ValueError(
            f"deepspeed_config_file={file!r} and the launcher contradict each other. "
            f"Move these settings of the launcher into the file: {', '.join(set_twice)}."
        )


_WRAPPING = ("auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params")
_BESIDE_FSDP = (*_WRAPPING, "cpu_offload", "state_dict_type", "activation_checkpointing")
"""Keys of `fsdp_config` that the launcher sets if the script itself sets `fsdp`; as in the
reference.
"""


def _set_fsdp(args: Any) -> None:
    groups = args.parallelism_config
    shards = isinstance(groups, ParallelismConfig) and (
        groups.dp_shard_enabled or groups.splits_sequences
    )
    is_grouped = isinstance(groups, ParallelismConfig) and groups.total_size > 1
    if launched_world_size() == 1 or (is_grouped and not shards):
        logger.warning(
            "use_fsdp of the launcher (ACCELERATE_USE_FSDP) has no effect: there is nothing to "
            "shard the model over."
        )
        return

    version = int(asked("FSDP_VERSION") or 1)
    if args.fsdp:
        version = read_fsdp(args.fsdp, args.fsdp_config)[0].version
    given = {key: typed(value) for key, value in said("fsdp_config", version).items()}
    # `accelerate config` writes the strategy of version 1 here, where accelerate does not look.
    reshard = typed(asked("FSDP_RESHARD_AFTER_FORWARD"))
    if (
        version == 1
        and isinstance(reshard, str)
        and given.get("reshard_after_forward") in (None, "FULL_SHARD")
    ):
        given["reshard_after_forward"] = reshard

    # The launcher sets both of these whatever the policy is.
    policy = str(given.setdefault("auto_wrap_policy", "NO_WRAP")).upper()
    if not policy.startswith("TRANSFORMER"):
        given.pop("transformer_layer_cls_to_wrap", None)
    if not policy.startswith("SIZE"):
        given.pop("min_num_params", None)

    # The script's own settings.
    own = {key: value for key, value in args.fsdp_config.items() if FSDP_DEFAULTS.get(key) != value}
    if args.fsdp:
        given = {key: value for key, value in given.items() if key in _BESIDE_FSDP}
    else:
        given["version"] = version
        given.setdefault(
            "state_dict_type", "FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT"
        )
    if args.fsdp is True or "auto_wrap" in fsdp_words(args.fsdp) or own.keys() & set(_WRAPPING):
        given = {key: value for key, value in given.items() if key not in _WRAPPING}
    args.fsdp = args.fsdp or True
    args.fsdp_config = {**FSDP_DEFAULTS, **given, **own}


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with these values, whose keys are joined by dots."""
    config: dict[str, Any] = {}
    _fill(config, {key: typed(value) for key, value in given.items()})
    return config


def _fill(config: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        *path, last = key.split(".")
        node = config
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
