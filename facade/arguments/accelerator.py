"""Settings for splitting batches between ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.suggestions import did_you_mean
from ..distributed.process import state_is_configured
from .argument import existing_file, wrong_type

ACCUMULATION_KEYS = ("num_steps", "adjust_scheduler", "sync_with_dataloader", "sync_each_batch")
"""Keys of `gradient_accumulation_kwargs`."""


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class AcceleratorConfig:
    """As `transformers.trainer_pt_utils.AcceleratorConfig`, but errors suggest the nearest key."""

    split_batches: bool = _setting(
        False, "Split each batch over all processes, in place of one batch for each."
    )
    dispatch_batches: bool | None = _setting(
        None, "Read data in the first process only and send it to the others."
    )
    even_batches: bool = _setting(
        True, "Repeat samples from the start so that all processes get equally many batches."
    )
    use_seedable_sampler: bool = _setting(
        True, "Shuffle by seed and epoch alone, so that the order is repeatable."
    )
    non_blocking: bool = _setting(
        False, "Copy batches to the device in the background; needs pinned memory."
    )
    gradient_accumulation_kwargs: dict | None = _setting(
        None, "More about accumulation, such as 'sync_each_batch'."
    )
    use_configured_state: bool = _setting(
        False, "Use the process state that accelerate was set up with before."
    )

    @classmethod
    def from_json_file(cls, json_file: str) -> "AcceleratorConfig":
        """As the method of that name in the reference: build one from a JSON file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is not a JSON object, or a key in it is not one of the fields.
        """
        config = read_object(json_file, "accelerator_config", "its fields")
        faults = cls.unknown_keys(config)
        if faults:
            raise ValueError(f"accelerator_config: in {json_file}, {' '.join(faults)}")
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
        """As the method of that name in the reference: take a setting out, so that its default
        holds again.
        """
        return vars(self).pop(key, default)


def read_accelerator_config(name: str, value: Any) -> AcceleratorConfig:
    """Read the argument `accelerator_config`: an object, a dict, or the path of a JSON file; see
    `Reader`.
    """
    if isinstance(value, type):
        raise NotImplementedError(
            f"{name}={value.__name__}, a class: pass an object, such as {value.__name__}()"
        )
    if isinstance(value, str):
        value = AcceleratorConfig.from_json_file(existing_file(name, value))
    elif not isinstance(value, AcceleratorConfig) and hasattr(value, "even_batches"):
        value = vars(value)  # an object of the reference's own class

    if isinstance(value, Mapping):
        unknown = AcceleratorConfig.unknown_keys(dict(value))
        if unknown:
            raise TypeError(f"{name}={value}: {' '.join(unknown)}")
        value = AcceleratorConfig(**value)
    if not isinstance(value, AcceleratorConfig):
        keys = ", ".join(item.name for item in fields(AcceleratorConfig))
        expected = (
            f"an AcceleratorConfig, or the path of a JSON file, or a dict with keys of {keys}"
        )
        raise wrong_type(name, value, expected)

    faults = [f"{name}: {fault}" for fault in _faults(value)]
    if faults:
        raise ValueError(*faults)
    return value


def _faults(config: AcceleratorConfig) -> Iterator[str]:
    """Yield a sentence for each value that cannot be."""
    for item in fields(config):
        value = getattr(config, item.name)
        if item.type in (bool, bool | None) and not isinstance(value, (bool, type(None))):
            yield f"{item.name}={value!r} must be True or False."
    if config.use_configured_state and not state_is_configured():
        yield (
            "use_configured_state=True, but no state is configured yet. Make an "
            "accelerate.PartialState() or a process group before the arguments, or leave it out."
        )

    accumulation = config.gradient_accumulation_kwargs
    known = ", ".join(ACCUMULATION_KEYS)
    if accumulation is not None and not isinstance(accumulation, Mapping):
        yield f"gradient_accumulation_kwargs={accumulation!r} must be a dict with keys of {known}."
        return
    for key, value in (accumulation or {}).items():
        if key not in ACCUMULATION_KEYS:
            near = did_you_mean(key, ACCUMULATION_KEYS)
            yield (
                f"gradient_accumulation_kwargs: {key!r} is not a known key.{near} Known: {known}."
            )
        elif key == "num_steps":
            if value is not None and (type(value) is not int or value < 1):
                yield (
                    f"gradient_accumulation_kwargs: num_steps={value!r} must be a whole number of "
                    "at least 1."
                )
        elif not isinstance(value, bool):
            yield f"gradient_accumulation_kwargs: {key}={value!r} must be True or False."
