"""Generation settings, read from an object, a dict, a file or a folder, and set on a model."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.file_names import GENERATION_CONFIG_NAME
from ..common.json_files import read_object
from ..common.libraries import loaded
from ..common.suggestions import did_you_mean
from .pretrained import is_pretrained
from .signatures import accepted_arguments

if TYPE_CHECKING:
    from torch import nn


def read_generation_config(source: object, config_class: Any = None) -> object:
    """Read the settings of a generation from an object, a dict, a file, a folder or the Hub.

    Works like `transformers.Seq2SeqTrainer.load_generation_config`, for any class of generation
    configs.

    Args:
        source: an object with the settings, which is copied; a dict; a JSON file; the folder of a
            `generation_config.json`; or a name on the Hub, if `config_class` loads from there.
        config_class: the class to make from a dict or a file, with `from_pretrained` and
            `from_dict`; or `dict`. By default the `GenerationConfig` of transformers if that has
            been imported, otherwise `dict`.

    Returns:
        The settings, an object of `config_class`.

    Raises:
        FileNotFoundError: the path does not exist, or is not a config.
        ValueError: the settings are invalid; all problems are in one message.
    """
    if config_class is None:
        module = loaded("transformers.generation.configuration_utils")
        config_class = getattr(module, "GenerationConfig", dict)

    if isinstance(source, (str, os.PathLike)):
        source = _find_config(os.fspath(source), config_class)
    elif isinstance(source, Mapping) and config_class is not dict:
        _require_known(source, vars(config_class()), config_class.__name__)

    # A class may reject settings in its constructor or in `validate`.
    config: Any = None
    try:
        config = _make_config(source, config_class)
        problem = _problem_of_config(config)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ValueError(
            f"generation_config={str(source)!r:.100} is invalid:\n{problem}\n"
            "Fix these issues to train your model."
        )
    return config


def generation_config_class(model: nn.Module) -> type | None:
    """Return the class of generation configs of a model; `dict` if it has no such class.

    It is None for a model of `transformers` without a config, for which `read_generation_config`
    has a default class.
    """
    model_config_class = type(getattr(model, "generation_config", None))
    if callable(getattr(model_config_class, "from_pretrained", None)):
        return model_config_class
    if is_pretrained(model):
        return None
    return dict


def set_generation_config(model: Any, config: Any) -> None:
    """Set the generation settings of a model.

    An object replaces the model's `generation_config`, which its `generate` reads; a dict is merged
    into a copy of it. If a model has no such attribute, the settings become keyword arguments of
    its `generate`.

    Args:
        model: a model with a method `generate`.
        config: a result of `read_generation_config`.

    Raises:
        ValueError: the model does not have one of the settings.
    """
    model_config = getattr(model, "generation_config", None)
    has_object = model_config is not None and not isinstance(model_config, Mapping)
    if isinstance(config, Mapping) and has_object:
        config = _copy_with_settings(model_config, config)
    elif not hasattr(model, "generation_config"):
        config = settings_of(config)
    if isinstance(config, Mapping):
        require_accepted(model, config, "generation_config")
    model.generation_config = config


def settings_of(config: object) -> dict[str, Any]:
    """Return the settings of a dict or an object by name, without those that are None."""
    to_dict = getattr(config, "to_dict", None)
    if isinstance(config, Mapping):
        values: Any = config
    elif callable(to_dict):
        values = to_dict()
    else:
        values = vars(config)

    settings: dict[str, Any] = {}
    for name, value in values.items():
        is_internal = name.startswith("_") or name == "transformers_version"
        if value is not None and not is_internal:
            settings[name] = value
    return settings


def setting(source: object, name: str) -> Any:
    """Return one setting of a dict or of an object; None if it is missing."""
    if isinstance(source, Mapping):
        return source.get(name)
    return getattr(source, name, None)


def generate_parameters(model: Any) -> list[str]:
    """Return the named parameters of the model's `generate`."""
    names: list[str] = []
    for parameter in inspect.signature(model.generate).parameters.values():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            names.append(parameter.name)
    return names


def require_accepted(model: nn.Module, options: Mapping[str, object], source: str) -> None:
    """Check that the model's `generate` accepts these keyword arguments.

    Args:
        model: a model with a method `generate`.
        options: the keyword arguments.
        source: the origin of the arguments, for the message.

    Raises:
        ValueError: `generate` does not have some of the parameters; the message lists them.
    """
    accepted = accepted_arguments(model.generate, **options)
    refused = [name for name in options if name not in accepted]
    if not refused:
        return

    parameters = generate_parameters(model)
    listed = ", ".join(f"{name}={options[name]!r}" for name in refused)
    suggestion = ""
    if len(refused) == 1:
        suggestion = did_you_mean(refused[0], parameters)
    raise ValueError(
        f"{source}: {type(model).__name__}.generate does not accept {listed}.{suggestion} It "
        f"accepts: {', '.join(parameters)}."
    )


def _find_config(name: str, config_class: type) -> str | Path:
    """Return the path of a config, or the name itself if it may be a model on the Hub.

    Raises:
        FileNotFoundError: the file does not exist, and the name cannot be on the Hub.
    """
    path = Path(name).expanduser()
    if path.is_file() or (path / GENERATION_CONFIG_NAME).is_file():
        return path

    has_local_form = name.startswith((".", "~", os.sep)) or name.endswith(".json")
    is_local = has_local_form or name.count("/") > 1
    if config_class is not dict and not is_local:
        return name
    advice = ""
    if config_class is dict:
        advice = " This model does not load generation configs from the Hub."
    raise FileNotFoundError(
        f"generation_config={name!r} is not a JSON file, nor a folder with "
        f"{GENERATION_CONFIG_NAME}.{advice}"
    )


def _make_config(source: object, config_class: Any) -> object:
    """Return the settings in a dict, an object, a file or a folder, or on the Hub."""
    if isinstance(source, Mapping):
        settings = dict(source)
        if config_class is dict:
            return settings
        return config_class.from_dict(settings)
    if not isinstance(source, (str, Path)):
        return copy.deepcopy(source)

    # The source is a file, a folder with a file, or a name on the Hub.
    path = Path(source)
    if config_class is dict:
        if path.is_dir():
            path = path / GENERATION_CONFIG_NAME
        return settings_of(read_object(path, keys="generation settings"))
    if path.is_file():
        return config_class.from_pretrained(path.parent, path.name)
    return config_class.from_pretrained(str(source))


def _copy_with_settings(model_config: object, settings: Mapping[str, object]) -> object:
    """Return a copy of the model's config with other settings."""
    public_names = [name for name in dir(model_config) if not name.startswith("_")]
    _require_known(settings, public_names, type(model_config).__name__)
    config = copy.deepcopy(model_config)
    for name, value in settings.items():
        setattr(config, name, value)
    return config


def _require_known(settings: Mapping[str, object], names: Iterable[str], class_name: str) -> None:
    """Raise a ValueError that lists unknown settings with suggestions."""
    known_names = set(names)
    problems: list[str] = []
    for name in settings:
        if name not in known_names:
            suggestion = did_you_mean(name, known_names)
            problems.append(f"generation_config: {class_name} has no setting {name!r}.{suggestion}")
    if problems:
        raise ValueError("\n".join(problems))


def _problem_of_config(config: object) -> str:
    """Return the problem that the config's `validate` reports, or an empty string."""
    validate = getattr(config, "validate", None)
    if not callable(validate):
        return ""
    try:
        # With `strict`, warnings become errors, because saving the model would raise for them.
        validate(**accepted_arguments(validate, strict=True))
    except ValueError as error:
        return str(error)
    return ""
