"""Read `fsdp` and `fsdp_config` into one value, and report all their errors at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.suggestions import did_you_mean
from ...lightning_modules.common.version_behavior import version_behavior
from .argument import existing_file, read_members, wrong_type
from .enums import FSDPOption

logger = logging.getLogger(__name__)

FSDP_DEFAULTS: dict[str, Any] = {
    "min_num_params": 0,
    "xla": False,
    "xla_fsdp_v2": False,
    "xla_fsdp_grad_ckpt": False,
}
"""Keys that `fsdp_config` always has."""

SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""Sharding strategies among the words of `fsdp`; torch numbers them from 1 in this order."""

OLD_NAMES: dict[str, str] = {
    "sharding_strategy": "reshard_after_forward",
    "offload_params": "cpu_offload",
    "backward_prefetch_policy": "backward_prefetch",
    "transformer_cls_to_wrap": "transformer_layer_cls_to_wrap",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
}
"""Keys of `fsdp_config` as older configurations of accelerate spell them."""

REFUSED: dict[str, str] = {
    "mixed_precision_policy": "pass bf16=True or fp16=True",
    "param_init_fn": "initialize the model before you pass it to the Trainer",
    "state_dict_config": "use state_dict_type",
    "optim_state_dict_config": "use state_dict_type",
    "ignored_modules": "freeze these modules, or wrap the others by transformer_layer_cls_to_wrap",
    "activation_checkpointing_offload": "use activation_checkpointing, which recomputes them",
}
"""Keys without a counterpart in Lightning and torch, each with a remedy; False is accepted."""

ONLY_VERSION_1: dict[str, str] = {
    "use_orig_params": "version 2 always keeps the original parameters",
    "sync_module_states": "version 2 always broadcasts the weights of rank 0",
    "limit_all_gathers": "version 2 always limits them",
    "backward_prefetch": "version 2 always prefetches before the gradients are computed",
}
"""Keys without effect in version 2, each with the reason."""


@dataclass(frozen=True, kw_only=True)
class FSDPSettings:
    """`fsdp` and `fsdp_config`, in torch's terms."""

    version: int = 1
    """1 is `FullyShardedDataParallel`, 2 is `fully_shard`."""
    sharding: str = "full_shard"
    """One of `SHARDING`."""
    offload: bool = False
    """Parameters and gradients are kept in host memory."""
    wrap: str | None = None
    """Wrapping policy: "layers", "size", or None to shard the model as one module."""
    layers: tuple[str, ...] | None = None
    """Class names of these modules; None for those that the model names itself."""
    min_num_params: int = 0
    """Least number of parameters of a wrapped module, if `wrap` is "size"."""
    backward_prefetch: str | None = None
    """"backward_pre" or "backward_post"; None for neither."""
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    use_orig_params: bool = True
    sync_module_states: bool = True
    cpu_ram_efficient_loading: bool = False
    """`from_pretrained` of `transformers` reads the weights on one rank of a machine only."""
    activation_checkpointing: bool = False
    """Activations of the wrapped modules are recomputed in the backward pass."""
    state_dict_type: str = "full"
    """"full": checkpoints hold whole tensors; "sharded": each rank writes its part."""
    xla: bool = False

    @property
    def reshard_after_forward(self) -> bool:
        """True if parameters are resharded between forward and backward pass."""
        return self.sharding in ("full_shard", "hybrid_shard")

    @property
    def hybrid(self) -> bool:
        """True if each machine holds a copy of the model, sharded within the machine."""
        return self.sharding.startswith("hybrid")


def read_fsdp_words(name: str, value: object) -> bool | list[FSDPOption]:
    """Read the argument `fsdp`: a list of words, a text of them, True or nothing."""
    # TRL's command line, which takes the type of this field apart, cannot pass a bool.
    text = value.strip().lower() if isinstance(value, str) else ""
    if value is True or text == "true":
        return True
    if not value or text == "false":
        return []

    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)):
        raise wrong_type(name, value, "True, or words such as 'full_shard auto_wrap'")
    return read_members(name, cast("Sequence[object]", words), FSDPOption)


def read_fsdp_config(name: str, value: object) -> dict[str, Any]:
    """Read the argument `fsdp_config`: a dict, or the path of a JSON file.

    Returns:
        A new dict with the keys of `FSDP_DEFAULTS`, without the prefix "fsdp_"; old names are
        replaced, with a warning.
    """
    config = value
    if isinstance(config, str):
        config = read_object(existing_file(name, config), name, "settings of FSDP")
    if not isinstance(config, Mapping):
        raise wrong_type(name, value, "a dict, or the path of a JSON file")

    # As in transformers, a key may begin with "fsdp_".
    settings = FSDP_DEFAULTS.copy()
    for key, setting in cast("Mapping[str, Any]", config).items():
        settings[key.removeprefix("fsdp_")] = setting
    for old_name, new_name in OLD_NAMES.items():
        if old_name in settings:
            logger.warning(
                f"fsdp_config[{old_name!r}] is deprecated: it is called {new_name!r} now."
            )
            settings[new_name] = settings.pop(old_name)

    layer = settings.get("transformer_layer_cls_to_wrap")
    if isinstance(layer, str):
        settings["transformer_layer_cls_to_wrap"] = [layer]
    return settings


def fsdp_words(fsdp: object) -> list[str]:
    """Return the words of the argument `fsdp` in any form of it: a list, text, True or nothing."""
    if fsdp is True:
        return ["auto_wrap"]
    if isinstance(fsdp, FSDPOption):
        return [fsdp.value]
    if isinstance(fsdp, str):
        return fsdp.split()
    words = cast("Sequence[object]", fsdp or [])
    return [str(getattr(word, "value", word)) for word in words]


def shown_fsdp(fsdp: object) -> str:
    """Format the argument `fsdp` as it was passed, for messages."""
    if fsdp is True:
        return "fsdp=True"
    return f"fsdp={' '.join(fsdp_words(fsdp))!r}"


def settings_of(args: Any) -> FSDPSettings | None:
    """Return the settings of validated training arguments; None if `fsdp` is not set."""
    if not args.fsdp:
        return None
    settings, _ = read_fsdp(args.fsdp, args.fsdp_config)
    return settings


def read_fsdp(
    fsdp: object, fsdp_config: Mapping[str, Any] | None
) -> tuple[FSDPSettings, list[str]]:
    """Read both arguments.

    Args:
        fsdp: See `fsdp_words`.
        fsdp_config: See `read_fsdp_config`.

    Returns:
        The settings, and one sentence for each error. Invalid keys keep their default.
    """
    config = fsdp_config or {}
    words = fsdp_words(fsdp)

    # As in transformers, `fsdp=True` is version 2, layer by layer. Words are version 1, except for
    # scripts that import transformers 5.10.1 or later.
    is_version_2 = fsdp is True or version_behavior().fsdp_options_mean_version_2
    if is_version_2:
        words.append("auto_wrap")
    values, problems = read_keys(config)
    problems += _unsupported_keys(config)
    if words == ["offload"]:
        problems.append(
            "fsdp='offload' has no effect alone. Pass 'full_shard offload' or 'shard_grad_op "
            "offload'."
        )

    default_version = 2 if is_version_2 else 1
    version = values.get("version", default_version)
    wrap, layers = _wrapping(words, values, problems)

    # torch has None for no prefetching.
    prefetch = values.get("backward_prefetch")
    if prefetch == "no_prefetch":
        prefetch = None

    # The other fields of the settings have the names of their keys.
    same_names = {key: values[key] for key in _KEYS_OF_SETTINGS if key in values}
    settings = FSDPSettings(
        version=version,
        sharding=_sharding(words, values.get("reshard_after_forward"), version, problems),
        offload="offload" in words or values.get("cpu_offload", False),
        wrap=wrap,
        layers=layers,
        backward_prefetch=prefetch,
        **same_names,
    )
    return settings, problems + _combination_problems(settings)


def without_effect(settings: FSDPSettings, config: Mapping[str, object]) -> list[str]:
    """Return the keys that version 2 does not read, each with its value and the reason."""
    if settings.version != 2:
        return []
    return [
        f"fsdp_config[{key!r}]={config[key]!r}: {reason}"
        for key, reason in ONLY_VERSION_1.items()
        if key in config
    ]


def _number(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if text.isdigit() else None


def _boolean(value: object) -> bool | None:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words.get(str(value).strip().lower())


def _version(value: object) -> int | None:
    return {"1": 1, "2": 2}.get(str(value).strip())


def _state_dict_type(value: object) -> str | None:
    types = {"full_state_dict": "full", "sharded_state_dict": "sharded"}
    return types.get(str(value).lower())


def _mapping(value: object) -> Mapping[str, object] | None:
    if not isinstance(value, Mapping):
        return None
    return cast("Mapping[str, Any]", value)


def _one_of(*choices: str) -> Callable[[object], str | None]:
    def read_choice(value: object) -> str | None:
        word = str(value).lower()
        return word if word in choices else None

    return read_choice


def _class_names(value: object) -> tuple[str, ...] | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)):
        return None
    names: list[str] = []
    for text in cast("Sequence[Any]", texts):
        if not isinstance(text, str) or not text:
            return None
        names += [name.strip() for name in text.split(",")]
    return tuple(names)


def _reshard(value: object) -> bool | str | None:
    """Return a truth value in version 2, the name or torch's number of a strategy in version 1."""
    if isinstance(value, str) and value.lower() in SHARDING:
        return value.lower()
    number = _number(value)
    if number is not None and 1 <= number <= len(SHARDING):
        return SHARDING[number - 1]
    return _boolean(value)


_SWITCHES = (
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "sync_module_states",
    "activation_checkpointing",
    "cpu_ram_efficient_loading",
)

_KEYS_OF_SETTINGS = (*_SWITCHES, "min_num_params", "state_dict_type", "xla")
"""Keys of `fsdp_config` that `FSDPSettings` calls by the same name."""

READERS: dict[str, tuple[Callable[[object], Any], str]] = {
    "version": (_version, "1 or 2"),
    "reshard_after_forward": (
        _reshard,
        f"True or False in version 2, one of {', '.join(SHARDING)} in version 1",
    ),
    "cpu_offload": (_boolean, "True or False"),
    "auto_wrap_policy": (
        _one_of("transformer_based_wrap", "size_based_wrap", "no_wrap"),
        "'TRANSFORMER_BASED_WRAP', 'SIZE_BASED_WRAP' or 'NO_WRAP'",
    ),
    "min_num_params": (_number, "a number of parameters"),
    "transformer_layer_cls_to_wrap": (
        _class_names,
        "a list of class names, such as ['GPT2Block']",
    ),
    "backward_prefetch": (
        _one_of("backward_pre", "backward_post", "no_prefetch"),
        "'backward_pre', 'backward_post' or 'no_prefetch'",
    ),
    "state_dict_type": (_state_dict_type, "'FULL_STATE_DICT' or 'SHARDED_STATE_DICT'"),
    **dict.fromkeys(_SWITCHES, (_boolean, "True or False")),
    "xla": (_boolean, "True or False"),
    "xla_fsdp_v2": (_boolean, "True or False"),
    "xla_fsdp_grad_ckpt": (_boolean, "True or False"),
    "xla_fsdp_settings": (_mapping, "a dict of options of XlaFullyShardedDataParallel"),
}
"""For each key of `fsdp_config` its reader, which returns None for invalid values, and a
description of valid ones.
"""


def read_keys(config: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """Read each key of `fsdp_config`, whatever the other keys are.

    Returns:
        The values in torch's terms of keys that are set and valid, and one sentence for each key
        that is unknown or has an invalid value.
    """
    known_keys = [*READERS, *REFUSED]
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, raw_value in config.items():
        if key not in known_keys:
            problems.append(
                f"fsdp_config has the key {key!r}, which is not known."
                f"{did_you_mean(key, known_keys)} Known: {', '.join(READERS)}."
            )
        elif key in READERS and raw_value is not None:
            read, expected = READERS[key]
            value = read(raw_value)
            if value is None:
                problems.append(f"fsdp_config[{key!r}]={raw_value!r} must be {expected}.")
            else:
                values[key] = value
    return values, problems


def _unsupported_keys(config: Mapping[str, object]) -> list[str]:
    problems: list[str] = []
    for key, remedy in REFUSED.items():
        value = config.get(key)
        if value is not None and _boolean(value) is not False:
            problems.append(
                f"fsdp_config[{key!r}]={value!r} has no counterpart in Lightning: {remedy}."
            )
    return problems


def _sharding(
    words: list[str], reshard: bool | str | None, version: int, problems: list[str]
) -> str:
    """Choose the sharding strategy from the words and from `reshard_after_forward`."""
    strategies = [word for word in words if word in SHARDING]
    if len(strategies) > 1:
        names = " and ".join(repr(name) for name in strategies)
        problems.append(f"fsdp: {names} cannot be combined. Use one.")
    strategy = strategies[0] if strategies else None
    if reshard is None:
        return strategy or "full_shard"

    # Version 2 has a switch.
    if isinstance(reshard, bool):
        if version == 1:
            problems.append(
                f"fsdp_config['reshard_after_forward']={reshard} needs version 2: pass "
                "fsdp_config['version']=2, or a name such as 'full_shard'."
            )
        is_hybrid = strategy is not None and strategy.startswith("hybrid")
        if is_hybrid:
            return "hybrid_shard" if reshard else "hybrid_shard_zero2"
        return "full_shard" if reshard else "shard_grad_op"

    # Version 1 has names.
    if version == 2:
        problems.append(
            f"fsdp_config['reshard_after_forward']={reshard!r} must be True or False in version 2."
        )
    elif strategy is not None and strategy != reshard:
        problems.append(
            f"fsdp={strategy!r} and fsdp_config['reshard_after_forward']={reshard!r} contradict "
            "each other. Use one."
        )
    return reshard


def _wrapping(
    words: list[str], values: dict[str, Any], problems: list[str]
) -> tuple[str | None, tuple[str, ...] | None]:
    """Return the wrapping policy, and the class names of the wrapped layers."""
    # Without a policy, the other keys tell which one is meant.
    policy = values.get("auto_wrap_policy")
    layers = values.get("transformer_layer_cls_to_wrap")
    size = values.get("min_num_params", 0)
    if size and layers:
        problems.append(
            f"fsdp_config: min_num_params={size} and transformer_layer_cls_to_wrap={list(layers)} "
            "cannot be combined. Use one."
        )
    if policy == "size_based_wrap" and not size:
        problems.append(
            "fsdp_config['auto_wrap_policy']='SIZE_BASED_WRAP' needs min_num_params above 0."
        )

    if policy == "no_wrap":
        return None, None
    if policy == "size_based_wrap" or (policy is None and size):
        return "size", None
    if policy == "transformer_based_wrap" or layers or "auto_wrap" in words:
        return "layers", layers
    return None, None


def _combination_problems(settings: FSDPSettings) -> list[str]:
    """Return one sentence for each setting that lacks another one."""
    problems: list[str] = []
    is_version_1 = settings.version == 1
    if settings.cpu_ram_efficient_loading and is_version_1 and not settings.sync_module_states:
        problems.append(
            "fsdp_config['cpu_ram_efficient_loading']=True needs sync_module_states=True."
        )
    if settings.version == 2 and settings.sharding == "no_shard":
        problems.append(
            "fsdp='no_shard' is not available in version 2: remove fsdp; the ranks then train with "
            "DDP."
        )
    if settings.activation_checkpointing and settings.wrap is None:
        problems.append(
            "fsdp_config['activation_checkpointing']=True needs the layers: add 'auto_wrap' to "
            "fsdp, or pass transformer_layer_cls_to_wrap."
        )
    return problems
