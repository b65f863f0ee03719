"""Read `fsdp` and `fsdp_config` into one value, and report all their errors at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...lightning_modules.common.followed import followed
from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.suggestions import did_you_mean
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
    "param_init_fn": "initialise the model before it goes to the Trainer",
    "state_dict_config": "use state_dict_type",
    "optim_state_dict_config": "use state_dict_type",
    "ignored_modules": "freeze these modules, or wrap the others by transformer_layer_cls_to_wrap",
    "activation_checkpointing_offload": (
        "use activation_checkpointing, which computes activations again"
    ),
}
"""Keys without a counterpart in Lightning and torch, each with a remedy. Turned off, they are
accepted.
"""

ONLY_VERSION_1: dict[str, str] = {
    "use_orig_params": "version 2 always keeps the original parameters",
    "sync_module_states": "version 2 always takes the weights of the first process",
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
    """Modules of at least as many parameters, where `wrap` is "size"."""
    backward_prefetch: str | None = None
    """"backward_pre" or "backward_post"; None for neither."""
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    use_orig_params: bool = True
    sync_module_states: bool = True
    cpu_ram_efficient_loading: bool = False
    """`from_pretrained` of `transformers` reads the weights in the first process of a machine
    only.
    """
    activation_checkpointing: bool = False
    """Activations of the wrapped modules are computed again in the backward pass."""
    state_dict_type: str = "full"
    """"full": checkpoints hold whole tensors; "sharded": each process writes its part."""
    xla: bool = False
    xla_v2: bool = False
    xla_options: Mapping[str, Any] | None = None
    xla_checkpointing: bool = False

    @property
    def reshard_after_forward(self) -> bool:
        """True if parameters are resharded between forward and backward pass."""
        return self.sharding in ("full_shard", "hybrid_shard")

    @property
    def hybrid(self) -> bool:
        """True if each machine holds a copy of the model, sharded within the machine."""
        return self.sharding.startswith("hybrid")


def read_fsdp_words(name: str, value: Any) -> Any:
    """Read the argument `fsdp`: a list of words, a text of them, True or nothing; see
    `argument.Reader`.
    """
    # TRL's command line, which takes the type of this field apart, cannot pass a bool.
    if value is True or (isinstance(value, str) and value.strip().lower() == "true"):
        return True
    if not value or (isinstance(value, str) and value.strip().lower() == "false"):
        return []
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)):
        raise wrong_type(name, value, "True, or words such as 'full_shard auto_wrap'")
    return read_members(name, words, FSDPOption)


def read_fsdp_config(name: str, value: Any) -> dict[str, Any]:
    """Read the argument `fsdp_config`: a dict, or the path of a JSON file; see `argument.Reader`.

    Returns:
        A new dict with the keys of `FSDP_DEFAULTS`, without the prefix "fsdp_"; old names are
        replaced, with a warning.
    """
    config = value
    if isinstance(config, str):
        config = read_object(existing_file(name, config), name, "settings of FSDP")
    if not isinstance(config, Mapping):
        raise wrong_type(name, value, "a dict, or the path of a JSON file")

    settings = FSDP_DEFAULTS | {
        key.removeprefix("fsdp_"): setting for key, setting in config.items()
    }
    for old, new in OLD_NAMES.items():
        if old in settings:
            logger.warning(f"fsdp_config[{old!r}] is deprecated: it is called {new!r} now.")
            settings[new] = settings.pop(old)
    layer = settings.get("transformer_layer_cls_to_wrap")
    if isinstance(layer, str):
        settings["transformer_layer_cls_to_wrap"] = [layer]
    return settings


def fsdp_words(fsdp: Any) -> list[str]:
    """Return the words of the argument `fsdp` in any form of it: a list, text, True or nothing."""
    if fsdp is True:
        return ["auto_wrap"]
    words = (
        fsdp.split() if isinstance(fsdp, str) and not isinstance(fsdp, FSDPOption) else fsdp or []
    )
    return [
        str(getattr(word, "value", word)) for word in ([words] if isinstance(words, str) else words)
    ]


def shown_fsdp(fsdp: Any) -> str:
    """Write the argument `fsdp` as it was passed, for messages."""
    return "fsdp=True" if fsdp is True else f"fsdp={' '.join(fsdp_words(fsdp))!r}"


def settings_of(args: Any) -> FSDPSettings | None:
    """Return the settings of validated training arguments; None if `fsdp` is not set."""
    return read_fsdp(args.fsdp, args.fsdp_config)[0] if args.fsdp else None


def read_fsdp(fsdp: Any, fsdp_config: Mapping[str, Any] | None) -> tuple[FSDPSettings, list[str]]:
    """Read both arguments.

    Args:
        fsdp: see `fsdp_words`.
        fsdp_config: see `read_fsdp_config`.

    Returns:
        The settings, and one sentence for each error. Wrong keys keep their default.
    """
    words, config = fsdp_words(fsdp), fsdp_config or {}
    later = fsdp is True or followed().words_mean_fsdp_2
    words += ["auto_wrap"] if later else []
    faults = [*_unknown(config), *_refused(config)]
    if words == ["offload"]:
        faults.append(
            "fsdp='offload' does nothing alone. Pass 'full_shard offload' or 'shard_grad_op "
            "offload'."
        )
    values = {
        key: _value(key, config[key], faults) for key in READERS if config.get(key) is not None
    }
    values = {key: value for key, value in values.items() if value is not None}
    version = values.get("version", 2 if later else 1)
    wrap, layers = _wrapping(words, values, faults)
    prefetch = values.get("backward_prefetch")
    settings = FSDPSettings(
        version=version,
        sharding=_sharding(words, values.get("reshard_after_forward"), version, faults),
        offload="offload" in words or values.get("cpu_offload", False),
        wrap=wrap,
        layers=layers,
        backward_prefetch=None if prefetch == "no_prefetch" else prefetch,
        xla_v2=values.get("xla_fsdp_v2", False),
        xla_options=values.get("xla_fsdp_settings"),
        xla_checkpointing=values.get("xla_fsdp_grad_ckpt", False),
        **{
            key: values[key]
            for key in (*_SWITCHES, "min_num_params", "state_dict_type", "xla")
            if key in values
        },
    )
    return settings, faults + _combinations(settings)


def without_effect(settings: FSDPSettings, config: Mapping[str, Any]) -> list[str]:
    """List the keys that version 2 has no use for, each with its value and with why."""
    if settings.version != 2:
        return []
    return [
        f"fsdp_config[{key!r}]={config[key]!r}: {why}"
        for key, why in ONLY_VERSION_1.items()
        if key in config
    ]


def _number(value: Any) -> int | None:
    text = str(value).strip()
    return int(text) if text.isdigit() else None


def _boolean(value: Any) -> bool | None:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words.get(str(value).strip().lower())


def _one_of(*choices: str) -> Callable[[Any], str | None]:
    return lambda value: str(value).lower() if str(value).lower() in choices else None


def _names(value: Any) -> tuple[str, ...] | None:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(
        isinstance(name, str) and name for name in given
    ):
        return None
    return tuple(name.strip() for names in given for name in names.split(","))


def _reshard(value: Any) -> bool | str | None:
    """Return a truth value in version 2, the name or torch's number of a strategy in version 1."""
    number = _number(value)
    if isinstance(value, str) and value.lower() in SHARDING:
        return value.lower()
    if not isinstance(value, bool) and number is not None and 1 <= number <= len(SHARDING):
        return SHARDING[number - 1]
    return _boolean(value)


_SWITCHES = ("forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states")
_SWITCHES += ("activation_checkpointing", "cpu_ram_efficient_loading")

READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "version": (lambda value: {"1": 1, "2": 2}.get(str(value).strip()), "1 or 2"),
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
    "transformer_layer_cls_to_wrap": (_names, "a list of class names, such as ['GPT2Block']"),
    "backward_prefetch": (
        _one_of("backward_pre", "backward_post", "no_prefetch"),
        "'backward_pre', 'backward_post' or 'no_prefetch'",
    ),
    "state_dict_type": (
        lambda value: {"full_state_dict": "full", "sharded_state_dict": "sharded"}.get(
            str(value).lower()
        ),
        "'FULL_STATE_DICT' or 'SHARDED_STATE_DICT'",
    ),
    **dict.fromkeys(_SWITCHES, (_boolean, "True or False")),
    **dict.fromkeys(("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"), (_boolean, "True or False")),
    "xla_fsdp_settings": (
        lambda value: value if isinstance(value, Mapping) else None,
        "a dict of options of XlaFullyShardedDataParallel",
    ),
}
"""The keys of `fsdp_config`: what reads each, giving None for nonsense, and what it is to be."""


def _value(key: str, given: Any, faults: list[str]) -> Any:
    read, expected = READERS[key]
    value = read(given)
    if value is None:
        faults.append(f"fsdp_config[{key!r}]={given!r} must be {expected}.")
    return value


def _unknown(config: Mapping[str, Any]) -> list[str]:
    known = [*READERS, *REFUSED]
    return [
        f"fsdp_config has the key {key!r}, which is not known.{did_you_mean(key, known)} Known: "
        f"{', '.join(READERS)}."
        for key in config
        if key not in known
    ]


def _refused(config: Mapping[str, Any]) -> list[str]:
    wanted = {key: config[key] for key in REFUSED if key in config}
    return [
        f"fsdp_config[{key!r}]={value!r} has no counterpart in Lightning: {REFUSED[key]}."
        for key, value in wanted.items()
        if value is not None and _boolean(value) is not False
    ]


def _sharding(words: list[str], reshard: bool | str | None, version: int, faults: list[str]) -> str:
    """Choose the sharding strategy from the words and from `reshard_after_forward`."""
    asked = [word for word in words if word in SHARDING]
    if len(asked) > 1:
        faults.append(f"fsdp: {' and '.join(map(repr, asked))} exclude each other. Keep one.")
    word = asked[0] if asked else None
    if reshard is None:
        return word or "full_shard"
    if isinstance(reshard, bool):
        if version == 1:
            said = f"fsdp_config['reshard_after_forward']={reshard} is for version 2"
            faults.append(f"{said}: pass fsdp_config['version']=2, or a name such as 'full_shard'.")
        kinds = (
            ("hybrid_shard", "hybrid_shard_zero2")
            if (word or "").startswith("hybrid")
            else SHARDING[:2]
        )
        return kinds[0] if reshard else kinds[1]
    if version == 2:
        faults.append(
            f"fsdp_config['reshard_after_forward']={reshard!r} must be True or False in version 2."
        )
    elif word is not None and word != reshard:
        faults.append(
            f"fsdp says {word!r} and fsdp_config['reshard_after_forward'] {reshard!r}. Keep one."
        )
    return reshard


def _wrapping(
    words: list[str], values: dict[str, Any], faults: list[str]
) -> tuple[str | None, tuple[str, ...] | None]:
    """Return the wrapping policy, and the class names of the wrapped layers."""
    policy, layers = values.get("auto_wrap_policy"), values.get("transformer_layer_cls_to_wrap")
    size = values.get("min_num_params", 0)
    if size and layers:
        given = f"min_num_params={size} and transformer_layer_cls_to_wrap={list(layers)}"
        faults.append(f"fsdp_config: {given} exclude each other. Keep one.")
    if policy == "size_based_wrap" and not size:
        faults.append(
            "fsdp_config['auto_wrap_policy']='SIZE_BASED_WRAP' needs min_num_params above 0."
        )
    if policy == "no_wrap":
        return None, None
    if policy == "size_based_wrap" or (policy is None and size):
        return "size", None
    named = policy == "transformer_based_wrap" or layers or "auto_wrap" in words
    return ("layers", layers) if named else (None, None)


def _combinations(settings: FSDPSettings) -> list[str]:
    faults = []
    if (
        settings.cpu_ram_efficient_loading
        and settings.version == 1
        and not settings.sync_module_states
    ):
        faults.append(
            "fsdp_config['cpu_ram_efficient_loading']=True needs sync_module_states=True."
        )
    if settings.version == 2 and settings.sharding == "no_shard":
        faults.append(
            "fsdp='no_shard' is not there in version 2: leave fsdp out, the processes then train "
            "with DDP."
        )
    if settings.activation_checkpointing and settings.wrap is None:
        needed = "add 'auto_wrap' to fsdp, or pass transformer_layer_cls_to_wrap"
        faults.append(
            f"fsdp_config['activation_checkpointing']=True needs to know the layers: {needed}."
        )
    if settings.xla_checkpointing and settings.xla and settings.wrap is None:
        needed = "pass min_num_params or transformer_layer_cls_to_wrap"
        faults.append(f"fsdp_config['xla_fsdp_grad_ckpt']=True needs to know the layers: {needed}.")
    return faults
