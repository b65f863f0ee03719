"""Read generation settings from an object, a dict, a file or a folder."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..common.file_names import GENERATION_CONFIG_NAME
from ..common.json_files import read_object
from ..common.libraries import loaded
from ..common.suggestions import did_you_mean
from . import inspection


def read_generation_config(given: Any, kind: Any = None) -> Any:
    """As `transformers.Seq2SeqTrainer.load_generation_config`, for any class of generation configs.

    Args:
        given: an object with the settings, which is copied; a dict; a JSON file; the folder of a
            `generation_config.json`; or a name on the Hub, where `kind` loads from there.
        kind: what to make of a dict or a file: a class with `from_pretrained` and `from_dict`, or
            `dict`. By default the `GenerationConfig` of transformers if that has been imported,
            otherwise `dict`.

    Returns:
        The settings, checked.

    Raises:
        FileNotFoundError: there is nothing at the path.
        ValueError: the settings cannot be; all of them in one message.
    """
    if kind is None:
        kind = getattr(
            loaded("transformers.generation.configuration_utils"), "GenerationConfig", dict
        )
    if isinstance(given, (str, os.PathLike)):
        given = _find(os.fspath(given), kind)
    elif isinstance(given, Mapping) and kind is not dict:
        _require_known(given, vars(kind()), kind.__name__)
    try:
        config = _made(given, kind)
        faults = _faults(config)
    except ValueError as error:  # a class may refuse the settings in its constructor
        config, faults = None, str(error)
    if faults:
        raise ValueError(
            f"generation_config={str(given)!r:.100} is invalid. Correct it before "
            f"training:\n{faults}"
        )
    return config


def kind_of_config(model: Any) -> type | None:
    """Return the class of generation configs of a model; None if the model has none."""
    own = type(getattr(model, "generation_config", None))
    if callable(getattr(own, "from_pretrained", None)):
        return own
    return None if inspection.is_pretrained(model) else dict


def give_generation_config(model: Any, config: Any) -> None:
    """Set the generation settings of a model.

    An object replaces the model's `generation_config`, which its `generate` reads; a dict is merged
    into a copy of it. If a model has no such attribute, the settings become keyword arguments of
    its `generate`.

    Args:
        model: has a method `generate`.
        config: what `read_generation_config` returned.

    Raises:
        ValueError: the model knows no setting of that name.
    """
    own = getattr(model, "generation_config", None)
    if isinstance(config, Mapping) and own is not None and not isinstance(own, Mapping):
        config = _changed(own, config)
    elif not hasattr(model, "generation_config"):
        config = settings_of(config)
    if isinstance(config, Mapping):
        require_accepted(model, config, "generation_config")
    model.generation_config = config


def settings_of(config: Any) -> dict[str, Any]:
    """Return the settings of a config of any kind by name, without those that are None."""
    to_dict = getattr(config, "to_dict", None)
    if isinstance(config, Mapping):
        values: Any = config
    elif callable(to_dict):
        values = to_dict()
    else:
        values = vars(config)
    return {
        name: value
        for name, value in values.items()
        if value is not None and not name.startswith("_") and name != "transformers_version"
    }


def setting(place: Any, name: str) -> Any:
    """Return one setting of a dict or of an object; None if it is missing."""
    if isinstance(place, Mapping):
        return place.get(name)
    return getattr(place, name, None)


def generate_parameters(model: Any) -> list[str]:
    """Return the named parameters of the model's `generate`."""
    parameters = inspect.signature(model.generate).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def require_accepted(model: Any, options: Mapping[str, Any], source: str) -> None:
    """Check that the model's `generate` takes these keyword arguments.

    Args:
        model: has a method `generate`.
        options: the arguments.
        source: where they come from.

    Raises:
        ValueError: it has no such parameters; all of them in one message.
    """
    accepted = inspection.accepted_arguments(model.generate, **options)
    refused = [name for name in options if name not in accepted]
    if refused:
        known = generate_parameters(model)
        listed = ", ".join(f"{name}={options[name]!r}" for name in refused)
        hint = did_you_mean(refused[0], known) if len(refused) == 1 else ""
        raise ValueError(
            f"{source}: {type(model).__name__}.generate takes no {listed}.{hint} It takes: "
            f"{', '.join(known)}."
        )


def _find(given: str, kind: type) -> str | Path:
    """Return the file or folder of this name; the name itself, where it may be one on the Hub."""
    path = Path(given).expanduser()
    if path.is_file() or (path / GENERATION_CONFIG_NAME).is_file():
        return path
    local = given.startswith((".", "~", os.sep)) or given.endswith(".json") or given.count("/") > 1
    if kind is not dict and not local:
        return given
    hub = " This model loads no generation config from the Hub." if kind is dict else ""
    raise FileNotFoundError(
        f"generation_config={given!r} is no JSON file, nor has it {GENERATION_CONFIG_NAME}.{hub}"
    )


def _made(given: Any, kind: Any) -> Any:
    if isinstance(given, Mapping):
        settings = dict(given)
        return settings if kind is dict else kind.from_dict(settings)
    if not isinstance(given, (str, Path)):
        return copy.deepcopy(given)

    # A file, a folder with one, or a name on the Hub.
    path = Path(given)
    if kind is dict:
        file = path if path.is_file() else path / GENERATION_CONFIG_NAME
        return settings_of(read_object(file, keys="generation settings"))
    if path.is_file():
        return kind.from_pretrained(path.parent, path.name)
    return kind.from_pretrained(str(given))


def _changed(own: Any, settings: Mapping[str, Any]) -> Any:
    """Return a copy of the model's own config with these settings."""
    _require_known(
        settings, [name for name in dir(own) if not name.startswith("_")], type(own).__name__
    )
    changed = copy.deepcopy(own)
    for name, value in settings.items():
        setattr(changed, name, value)
    return changed


def _require_known(settings: Mapping[str, Any], known: Iterable[str], whose: str) -> None:
    known = set(known)
    said = [f"{name!r}.{did_you_mean(name, known)}" for name in settings if name not in known]
    if said:
        raise ValueError(
            "\n".join(f"generation_config: {whose} has no setting {one}" for one in said)
        )


def _faults(config: Any) -> str:
    """Return the problem of a config by its own `validate`, if it has one; an empty text without
    any.
    """
    validate = getattr(config, "validate", None)
    if callable(validate):
        try:
            # Strictly, since a warning now is an error when the model is saved.
            validate(**inspection.accepted_arguments(validate, strict=True))
        except ValueError as error:
            return str(error)
    return ""
