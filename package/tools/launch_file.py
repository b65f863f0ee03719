"""Read the file of `accelerate config`, which configures `lightrainer launch`."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

STRATEGY_OPTIONS = {
    "FSDP": "use_fsdp",
    "DEEPSPEED": "use_deepspeed",
    "MEGATRON_LM": "use_megatron_lm",
}
"""For each `distributed_type` of a file, the option that turns the strategy on."""
_PREFIXES = {
    "fsdp_config": "fsdp_",
    "dynamo_config": "dynamo_",
    "deepspeed_config": "",
    "parallelism_config": "",
}
"""Sections of a file, with the prefix that their keys have as options."""
_RENAMED_KEYS = {"fsdp_backward_prefetch_policy": "fsdp_backward_prefetch"}
"""Keys of a file whose options have another name."""
_UNSUPPORTED_KEYS = (
    "fp8_config",
    "megatron_lm_config",
    "mpirun_config",
    "command_file",
    "commands",
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_env",
    "deepspeed_hostfile",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
)
"""Keys of a file that are accepted only with a value that turns the feature off."""
_OFF_VALUES = (None, "", False, "no", [], {})
"""Values that mean that a feature is off."""


def default_file() -> str | None:
    """Return the file that `accelerate config` writes; None if it does not exist."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    folder = os.environ.get("HF_HOME", cache)
    path = Path(folder, "accelerate", "default_config.yaml").expanduser()
    return str(path) if path.is_file() else None


def read_settings(path: str | None, options: Collection[str]) -> dict[str, object]:
    """Read a file of `accelerate config`.

    Args:
        path: YAML or JSON; None for no file.
        options: the names of all options.

    Returns:
        the settings by the names of their options, with additional entries `distributed_type`,
        `use_parallelism_config` and `deepspeed_fields`.

    Raises:
        ValueError: the file has unknown keys, or keys for features that are not supported.
        OSError: the file cannot be read.
    """
    import yaml

    if path is None:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} contains a {type(content).__name__}, not settings by name. Write it with "
            "accelerate config."
        )
    distributed_type = _read_distributed_type(path, content)

    # Flatten the sections: rename each of their keys to the name of its option.
    settings = {key: value for key, value in content.items() if key not in _PREFIXES}
    for section, prefix in _PREFIXES.items():
        for key, value in (content.get(section) or {}).items():
            name = key if key.startswith(prefix) else f"{prefix}{key}"
            settings[_RENAMED_KEYS.get(name, name)] = value
    _check_keys(path, settings, options)

    if distributed_type in STRATEGY_OPTIONS:
        settings[STRATEGY_OPTIONS[distributed_type]] = True

    # If the script uses a configuration file of DeepSpeed, which sets these fields, it rejects them
    # here.
    deepspeed_fields = list(content.get("deepspeed_config") or {})
    if "mixed_precision" in content:
        deepspeed_fields.append("mixed_precision")
    settings["distributed_type"] = distributed_type
    settings["use_parallelism_config"] = bool(content.get("parallelism_config"))
    settings["deepspeed_fields"] = deepspeed_fields
    return settings


def _read_distributed_type(path: str, content: dict[str, Any]) -> str:
    """Remove `compute_environment` and `distributed_type` from a file's content; return the latter.

    Raises:
        ValueError: `accelerate launch` supports their values, but lightrainer does not.
    """
    compute_environment = content.pop("compute_environment", "LOCAL_MACHINE")
    distributed_type = content.pop("distributed_type", "")
    # YAML reads NO as False.
    distributed_type = "NO" if distributed_type is False else str(distributed_type)

    is_supported = distributed_type in ("", "NO", *STRATEGY_OPTIONS)
    is_multi = distributed_type.startswith("MULTI_")
    if compute_environment != "LOCAL_MACHINE" or not (is_supported or is_multi):
        raise ValueError(
            f"{path}: compute_environment={compute_environment}, "
            f"distributed_type={distributed_type} is not supported: use accelerate launch."
        )
    return distributed_type


def _check_keys(path: str, settings: Mapping[str, object], options: Collection[str]) -> None:
    """Raise for settings that are unknown or not supported."""
    from ..lightning_modules.common.suggestions import did_you_mean

    for key, value in settings.items():
        if key in _UNSUPPORTED_KEYS:
            if value not in _OFF_VALUES:
                raise ValueError(
                    f"{path}: {key}={value!r} is not supported: remove it, or use accelerate "
                    "launch."
                )
        elif key not in options:
            raise ValueError(
                f"{path}: {key!r} is not a known setting.{did_you_mean(key, options)} Remove it."
            )
