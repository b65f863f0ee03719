"""Check that each training argument has the type of its field."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, fields
from typing import Any, get_args

from ...lightning_modules.common.redaction import SecretThing, is_secret_name, secret
from .accelerator import AcceleratorConfig
from .coercion import ENUM_FIELDS, is_number
from .fields import ArgumentFields, GenerationArguments
from .rules import with_article

# Fields checked by `validation` or not at all: older scripts and libraries put values of other types there.
_FREE = {
    *("run_name", "resume_from_checkpoint", "torch_empty_cache_steps", "report_to", "include_num_input_tokens_seen"),
    *("optim_target_modules", "parallelism_config", "debug", "fsdp"),
    *ENUM_FIELDS,
}
# None is accepted unless the strategy is "steps", which `validation` checks.
_MAY_BE_NONE = {"logging_steps", "save_steps"}


def wrong_types(args: ArgumentFields, names: Collection[str] | None = None) -> dict[str, str]:
    """Return an error for each field with a value of the wrong type."""
    found = {}
    for item in _declared(args):
        if item.name in _FREE or (names is not None and item.name not in names):
            continue
        value = getattr(args, item.name)
        if is_secret_name(item.name):
            value = secret(value)
        expected = _expected(item.name, _TYPES[item.name], value)
        if expected:
            kind = value.kind if isinstance(value, SecretThing) else type(value).__name__
            found[item.name] = f"{item.name}={value!r} is {with_article(kind)}; pass {expected}."
    _explain_keys(args, found)
    return found


# Kept apart: TRL's command line writes other types into the fields.
_TYPES = {item.name: item.type for kind in (ArgumentFields, GenerationArguments) for item in fields(kind)}


def _declared(args: ArgumentFields) -> tuple[Field[Any], ...]:
    """Return the fields of the API, without those that a user's subclass adds."""
    more = fields(GenerationArguments) if isinstance(args, GenerationArguments) else ()
    return (*fields(ArgumentFields), *more)


def _explain_keys(args: ArgumentFields, found: dict[str, str]) -> None:
    """Name the unknown keys of an `accelerator_config` that is still a dict because of them."""
    config = args.accelerator_config
    if "accelerator_config" in found and isinstance(config, dict):
        found["accelerator_config"] = f"accelerator_config={config}: {' '.join(AcceleratorConfig.unknown_keys(config))}"


def _expected(name: str, declared: Any, value: Any) -> str | None:
    """Return a description of the expected type, or None if `value` fits."""
    if name in _SHAPES:
        fits, expected = _SHAPES[name]
        return None if value is None or fits(value) else expected
    kinds = set(get_args(declared)) or {declared}
    if value is None and (type(None) in kinds or bool in kinds or name in _MAY_BE_NONE):
        return None
    return _expected_scalar(kinds, value)


def _expected_scalar(kinds: set[Any], value: Any) -> str | None:
    if bool in kinds:
        return "True or False" if isinstance(value, (str, bytes, Mapping, list, tuple, set)) else None
    if float in kinds:
        return None if is_number(value) else f"a number{_as_number(value)}"
    if int in kinds:
        whole = hasattr(type(value), "__index__")
        return None if whole else f"a whole number{_as_number(value, whole=True)}"
    return None if isinstance(value, (str, os.PathLike)) else "text"


def _as_number(value: Any, whole: bool = False) -> str:
    """Return a hint for text that reads as a number, such as YAML's 1e-4."""
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        number = None
    if number is None or (whole and not number.is_integer()):
        return ""
    return f", {int(number) if whole else number!r} without quotes (in YAML, 1e-4 is text and 1.0e-4 a number)"


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _is_generation_config(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike, Mapping)) or (
        hasattr(value, "__dict__") and not isinstance(value, type)
    )


def _is_name_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


_DICT = (_is(Mapping), "a dict, or one written as JSON")
_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("lr_scheduler_kwargs", "parameter_rules", "liger_kernel_config"), _DICT),
    **dict.fromkeys(("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"), _DICT),
    "trackio_static_space_id": (
        lambda value: isinstance(value, str) or value is False,
        "the name of a Space, or False",
    ),
    "fsdp_config": (_is(Mapping), "a dict, or the path of a JSON file"),
    "deepspeed": (_is(str, os.PathLike, Mapping), "a dict, or the path of a JSON file"),
    "accelerator_config": (
        _is(AcceleratorConfig, type),  # `support` reports a class in place of an object
        "an AcceleratorConfig, or the path of a JSON file, or a dict with keys of "
        f"{', '.join(item.name for item in fields(AcceleratorConfig))}",
    ),
    "generation_config": (
        _is_generation_config,
        "an object with the settings, such as a GenerationConfig, or a dict, or the path of a JSON file",
    ),
    "label_names": (_is_name_list, "a list of names, such as ['labels']"),
    "include_for_metrics": (_is(list, tuple, str), "a list of 'inputs' and 'loss'"),
}
