"""Set arguments from the environment variables of `accelerate launch` and `lightrainer launch`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..distributed.process import launched_world_size
from .deepspeed_config import BATCHES, GATHER, load_deepspeed, value_at
from .exports import was_exported
from .fsdp_config import FSDP_DEFAULTS, fsdp_words, read_fsdp, read_keys
from .launch_variables import (
    SETTINGS,
    VARIABLES,
    is_on,
    require_clear_switches,
    set_by,
    value_of,
    values_for,
)
from .rank_groups import effective_parallelism
from .reading import typed

if TYPE_CHECKING:
    from .. import TrainingArguments
    from .enums import FSDPOption

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


def apply_launcher(args: TrainingArguments) -> None:
    """Set arguments that the script leaves unset; those of the script take precedence.

    Args:
        args: The training arguments after `read_fields`, changed in place; `set_by_launcher` names
            those that were set.

    Raises:
        ValueError: A configuration file of DeepSpeed conflicts with the launcher's options, or
            cannot be read. A variable is neither true nor false.
    """
    if os.environ.keys().isdisjoint(SETTINGS):
        return
    require_clear_switches()
    before = {name: getattr(args, name) for name in FIELDS}

    args.launcher_precision = (value_of("ACCELERATE_MIXED_PRECISION") or "no").lower()
    _set_compilation(args)
    if is_on("ACCELERATE_USE_PARALLELISM_CONFIG") and args.parallelism_config is None:
        args.parallelism_config = _nested(values_for("parallelism_config"))
    if is_on("ACCELERATE_USE_DEEPSPEED") and not args.deepspeed:
        args.deepspeed = _deepspeed_config()
    if is_on("ACCELERATE_USE_FSDP") and not was_exported("ACCELERATE_USE_FSDP"):
        _set_fsdp(args)

    # `print(trainer.plan)` shows these.
    changed = [name for name in FIELDS if getattr(args, name) != before[name]]
    if args.launcher_precision != "no" and not args.fp16 and not args.bf16:
        changed.insert(0, "mixed_precision")
    args.set_by_launcher = tuple(changed)


def _set_compilation(args: TrainingArguments) -> None:
    is_compiled = (
        args.torch_compile
        or args.torch_compile_backend is not None
        or args.torch_compile_mode is not None
    )

    # What the script sets takes precedence over the launcher.
    backend = value_of("ACCELERATE_DYNAMO_BACKEND")
    if not is_compiled and backend is not None and backend.lower() != "no":
        is_compiled = True
        args.torch_compile = True
        args.torch_compile_backend = backend.lower()

    # `accelerate launch` exports "default" unless a mode is passed.
    mode = value_of("ACCELERATE_DYNAMO_MODE")
    if is_compiled and args.torch_compile_mode is None and mode != "default":
        args.torch_compile_mode = mode

    compile_options: dict[str, bool] = {}
    if value_of("ACCELERATE_DYNAMO_USE_FULLGRAPH") is not None:
        compile_options["fullgraph"] = is_on("ACCELERATE_DYNAMO_USE_FULLGRAPH")
    if value_of("ACCELERATE_DYNAMO_USE_DYNAMIC") is not None:
        compile_options["dynamic"] = is_on("ACCELERATE_DYNAMO_USE_DYNAMIC")
    args.compile_options = compile_options


_LEAF_CLASSES = "zero_optimization.leaf_module.classes"


def _deepspeed_config() -> dict[str, object]:
    """Return the configuration of a file with its "auto" filled in, or one from the variables."""
    settings: dict[str, Any] = {"zero_optimization.stage": 2, GATHER: False}
    for key, value in values_for("deepspeed").items():
        if key:
            settings[key] = typed(value)
    if _LEAF_CLASSES in settings:
        settings[_LEAF_CLASSES] = settings[_LEAF_CLASSES].split(",")

    # Without a file, `fill_from_arguments` fills in the values that follow from the arguments.
    file = value_of("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if file is None or file == "none":
        open_keys = (*BATCHES, "gradient_clipping", "fp16.enabled", "bf16.enabled")
        config = _nested(dict.fromkeys(open_keys, "auto"))
        _fill(config, settings)
        return config

    # With a file, variables only replace "auto".
    _refuse_beside_file(file)
    config = load_deepspeed(file)
    settings.setdefault("zero_optimization.offload_optimizer.device", "none")
    settings.setdefault("zero_optimization.offload_param.device", "none")
    for key, value in settings.items():
        if key == _LEAF_CLASSES or value_at(config, key) == "auto":
            _fill(config, {key: value})
    return config


def _refuse_beside_file(file: str) -> None:
    """Refuse options of the launcher that its configuration file sets as well."""
    options = {"mixed_precision"}
    for variable in VARIABLES.values():
        if variable.argument.startswith("deepspeed."):
            options.add(variable.option)
    options -= {"deepspeed_config_file", "deepspeed_moe_layer_cls_names"}

    options_in_file = (value_of("ACCELERATE_CONFIG_DS_FIELDS") or "").split(",")
    set_twice = sorted(options.intersection(options_in_file))
    if set_twice:
        raise ValueError(
            f"deepspeed_config_file={file!r} and the launcher contradict each other. "
            f"Move these settings of the launcher into the file: {', '.join(set_twice)}."
        )


_WRAPPING_KEYS = ("auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params")
_KEYS_BESIDE_FSDP = (
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
    "cpu_offload",
    "state_dict_type",
    "activation_checkpointing",
)
"""Keys of `fsdp_config` that the launcher sets if the script sets `fsdp`, as in transformers."""


def _set_fsdp(args: TrainingArguments) -> None:
    _refuse_invalid_fsdp_values()
    if not _has_ranks_to_shard_over(args):
        logger.warning(
            f"{set_by('ACCELERATE_USE_FSDP')} has no effect: there is nothing to shard the model "
            "over."
        )
        return

    fsdp: Any = args.fsdp  # True too, as later versions document

    # Settings of the script take precedence over those of the launcher.
    config = cast("dict[str, Any]", args.fsdp_config)  # after `read_fields`
    script_settings = {
        key: value for key, value in config.items() if FSDP_DEFAULTS.get(key) != value
    }
    if fsdp:
        fsdp_settings, _ = read_fsdp(fsdp, config)
        settings = _launcher_fsdp_settings(fsdp_settings.version)
        settings = {key: settings[key] for key in settings if key in _KEYS_BESIDE_FSDP}
    else:
        version = int(value_of("FSDP_VERSION") or 1)
        settings = _launcher_fsdp_settings(version)
        settings["version"] = version
        default_type = "FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT"
        settings.setdefault("state_dict_type", default_type)

    # If the script chooses the layers to wrap, the launcher does not.
    wraps_layers = fsdp is True or "auto_wrap" in fsdp_words(fsdp)
    if wraps_layers or not script_settings.keys().isdisjoint(_WRAPPING_KEYS):
        settings = {key: settings[key] for key in settings if key not in _WRAPPING_KEYS}
    args.fsdp = cast("list[FSDPOption]", fsdp or True)
    args.fsdp_config = FSDP_DEFAULTS | settings | script_settings


def _refuse_invalid_fsdp_values() -> None:
    """Refuse misspelt values of the launcher, even in one process, where they have no effect.

    Raises:
        ValueError: A value is misspelt; names its option and variable, and the valid values.
    """
    problems: list[str] = []
    for name, variable in VARIABLES.items():
        if not variable.argument.startswith("fsdp_config."):
            continue
        value = value_of(name)
        if value is None:
            continue
        key = variable.argument.partition(".")[2]
        _, problems_of_key = read_keys({key: typed(value)})
        problems += [f"{set_by(name)}: {problem}" for problem in problems_of_key]
    if problems:
        raise ValueError("\n".join(problems))


def _has_ranks_to_shard_over(args: TrainingArguments) -> bool:
    if launched_world_size() == 1:
        return False
    groups = effective_parallelism(args)
    if groups is None or groups.total_size == 1:
        return True
    return groups.dp_shard_enabled or bool(groups.sequence_argument)


def _launcher_fsdp_settings(version: int) -> dict[str, object]:
    """Return settings of `fsdp_config` from the launcher's variables."""
    settings = {key: typed(value) for key, value in values_for("fsdp_config", version).items()}

    # `accelerate config` writes the strategy of version 1 here, where accelerate does not read it.
    reshard = typed(value_of("FSDP_RESHARD_AFTER_FORWARD"))
    is_default = settings.get("reshard_after_forward") in (None, "FULL_SHARD")
    if version == 1 and isinstance(reshard, str) and is_default:
        settings["reshard_after_forward"] = reshard

    # The launcher sets both of these whatever the policy is.
    policy = str(settings.setdefault("auto_wrap_policy", "NO_WRAP")).upper()
    if not policy.startswith("TRANSFORMER"):
        settings.pop("transformer_layer_cls_to_wrap", None)
    if not policy.startswith("SIZE"):
        settings.pop("min_num_params", None)
    return settings


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration with these values, whose keys are joined by dots."""
    config: dict[str, Any] = {}
    _fill(config, {key: typed(value) for key, value in settings.items()})
    return config


def _fill(config: dict[str, Any], settings: Mapping[str, object]) -> None:
    for key, value in settings.items():
        *path, last = key.split(".")
        section = config
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
