"""Settings for splitting batches between ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.suggestions import did_you_mean
from ..distributed.process import state_is_configured
from .argument import SettingsDict, existing_file, wrong_type

ACCUMULATION_KEYS = ("num_steps", "adjust_scheduler", "sync_with_dataloader", "sync_each_batch")
"""Keys of `gradient_accumulation_kwargs`."""


@dataclass
class AcceleratorConfig:
    """Say how batches are divided over the processes: the argument `accelerator_config`.

    Works like `transformers.trainer_pt_utils.AcceleratorConfig`, but errors suggest the nearest
    key.
    """

    split_batches: bool = False
    """Split each batch over all processes, instead of one batch for each."""
    dispatch_batches: bool | None = None
    """Read data in the first process only and send it to the others."""
    even_batches: bool = True
    """Repeat samples from the start so that all processes get equally many batches."""
    use_seedable_sampler: bool = True
    """Shuffle by seed and epoch alone, so that the order is repeatable."""
    non_blocking: bool = False
    """Copy batches to the device in the background; needs pinned memory."""
    gradient_accumulation_kwargs: SettingsDict | None = None
    """More about accumulation, such as 'sync_each_batch'."""
    use_configured_state: bool = False
    """Use the process state that accelerate was configured with before."""

    @classmethod
    def from_json_file(cls, json_file: str) -> "AcceleratorConfig":
        """Build one from a JSON file.

        Raises:
            FileNotFoundError: The file does not exist.
            ValueError: It is not a JSON object, or a key in it is not one of the fields.
        """
        config = read_object(json_file, "accelerator_config", "its fields")
        problems = cls.unknown_keys(config)
        if problems:
            raise ValueError(f"accelerator_config: in {json_file}, {' '.join(problems)}")
        return cls(**config)

    @classmethod
    def unknown_keys(cls, config: dict[str, Any]) -> list[str]:
        """Return one sentence for each key that is not a field."""
        names = [item.name for item in fields(cls)]
        return [
            f"{key!r} is not a known key.{did_you_mean(key, names)} Known: {', '.join(names)}."
            for key in config
            if key not in names
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a new dict."""
        return asdict(self)

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove a setting, so that its default holds again."""
        return vars(self).pop(key, default)


def read_accelerator_config(name: str, value: Any) -> AcceleratorConfig:
    """Read the argument `accelerator_config`: an object, a dict, or the path of a JSON file."""
    if isinstance(value, type):
        raise NotImplementedError(
            f"Tried passing in a callable to `{name}`: {value.__name__} is a class. Pass an "
            f"object, such as {value.__name__}()"
        )

    # Objects of transformers have the same attributes.
    if isinstance(value, AcceleratorConfig):
        config = value
    elif isinstance(value, str):
        config = AcceleratorConfig.from_json_file(existing_file(name, value))
    elif isinstance(value, Mapping):
        config = _from_settings(name, dict(cast("Mapping[str, Any]", value)))
    elif hasattr(value, "even_batches"):
        config = _from_settings(name, vars(cast("object", value)))
    else:
        keys = ", ".join(item.name for item in fields(AcceleratorConfig))
        expected = (
            f"an AcceleratorConfig, or the path of a JSON file, or a dict with keys of {keys}"
        )
        raise wrong_type(name, value, expected)

    problems = [f"{name}: {problem}" for problem in _problems(config)]
    if problems:
        raise ValueError(*problems)
    return config


def _from_settings(name: str, settings: dict[str, Any]) -> AcceleratorConfig:
    unknown = AcceleratorConfig.unknown_keys(settings)
    if unknown:
        raise TypeError(f"{name}={settings}: {' '.join(unknown)}")
    return AcceleratorConfig(**settings)


def _problems(config: AcceleratorConfig) -> Iterator[str]:
    """Yield a sentence for each invalid value."""
    for item in fields(config):
        value = getattr(config, item.name)
        is_flag = item.type in (bool, bool | None)
        if is_flag and value is not None and not isinstance(value, bool):
            yield f"{item.name}={value!r} must be True or False."
    if config.use_configured_state and not state_is_configured():
        yield (
            "use_configured_state=True, but no state is configured yet. Create an "
            "accelerate.PartialState() or a process group before the arguments, or remove it."
        )

    accumulation = cast("object", config.gradient_accumulation_kwargs)
    if isinstance(accumulation, Mapping):
        for problem in _accumulation_problems(cast("Mapping[str, Any]", accumulation)):
            yield f"gradient_accumulation_kwargs: {problem}"
    elif accumulation is not None:
        keys = ", ".join(ACCUMULATION_KEYS)
        yield f"gradient_accumulation_kwargs={accumulation!r} must be a dict with keys of {keys}."


def _accumulation_problems(accumulation: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each invalid setting of accumulation."""
    for key, value in accumulation.items():
        if key not in ACCUMULATION_KEYS:
            suggestion = did_you_mean(key, ACCUMULATION_KEYS)
            known_keys = ", ".join(ACCUMULATION_KEYS)
            yield f"{key!r} is not a known key.{suggestion} Known: {known_keys}."
        elif key != "num_steps":
            if not isinstance(value, bool):
                yield f"{key}={value!r} must be True or False."
        elif value is not None and (type(value) is not int or value < 1):
            yield f"num_steps={value!r} must be a whole number of at least 1."
