"""Settings for splitting batches between ranks."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.suggestions import did_you_mean


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class AcceleratorConfig:
    """As `transformers.trainer_pt_utils.AcceleratorConfig`, but errors suggest the nearest key."""

    split_batches: bool = _setting(False, "Split each batch over all processes, in place of one batch for each.")
    dispatch_batches: bool | None = _setting(None, "Read data in the first process only and send it to the others.")
    even_batches: bool = _setting(True, "Repeat samples from the start so that all processes get equally many batches.")
    use_seedable_sampler: bool = _setting(True, "Shuffle by seed and epoch alone, so that the order is repeatable.")
    non_blocking: bool = _setting(False, "Copy batches to the device in the background; needs pinned memory.")
    gradient_accumulation_kwargs: dict | None = _setting(None, "More about accumulation, such as 'sync_each_batch'.")
    use_configured_state: bool = _setting(False, "Use the process state that accelerate was set up with before.")

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
        """As the method of that name in the reference: take a setting out, so that its default holds again."""
        return vars(self).pop(key, default)
