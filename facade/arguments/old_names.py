"""Arguments of transformers 4: their successors, and the switch that accepts them.

They are accepted while imports of `transformers` are intercepted, so that an unchanged script for
4.x runs, with a warning. Elsewhere `TrainingArguments(evaluation_strategy=...)` raises an error
that names the successor. The documentation is generated from the table.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, cast

from ...lightning_modules.common.redaction import is_secret_name, redacted
from ...lightning_modules.common.suggestions import did_you_mean

ParseWord = Callable[[str], Any]
"""Parses the word that follows an option on a command line."""

_MAX_VALUE_LENGTH = 60

_accepted = False


def set_old_names_accepted(enabled: bool) -> None:
    """Accept old names from now on, or refuse them."""
    global _accepted
    _accepted = enabled


def old_names_accepted() -> bool:
    """Return True if old names are accepted."""
    return _accepted


def warn_at_script_line(text: str, category: type[Warning] = FutureWarning) -> None:
    """Warn at the line of the script that has called this package."""
    # `warnings.warn(skip_file_prefixes=...)` needs Python 3.12.
    package = __name__.partition(".")[0]
    level = 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        # Generated constructors of dataclasses have no file.
        is_generated = frame.f_code.co_filename == "<string>"
        if module.partition(".")[0] != package and not is_generated:
            break
        level += 1
        frame = frame.f_back
    warnings.warn(text, category, stacklevel=level)


def format_argument(name: str, value: object) -> str:
    """Format a keyword and its value on one short line, with secrets masked."""
    if name.endswith("token") or is_secret_name(name):
        return f"{name}=..."
    value_on_one_line = " ".join(repr(value).split())
    text = redacted(f"{name}={value_on_one_line}")
    return text[: len(f"{name}=") + _MAX_VALUE_LENGTH]


class RemovedFeatureError(ValueError):
    """An argument of transformers 4 requests a removed feature."""


@dataclass(frozen=True)
class _Replaced:
    """An argument of transformers 4 that another argument replaces.

    Each subclass is one way of replacing. Its `convert` returns the arguments to pass for a value
    of the old argument, and its `read` returns the value of the old argument. Both get the current
    value of the new argument.
    """

    new_name: str
    """The argument that replaces it."""


@dataclass(frozen=True)
class Renamed(_Replaced):
    """The new argument has the same values."""

    parse_word: ParseWord | None = str
    """None for truth values."""

    @property
    def replacement_text(self) -> str:
        """The new argument, for messages and documentation."""
        return f"`{self.new_name}`"

    def convert(self, value: object, current: object) -> dict[str, object]:
        """Return the value under the new name."""
        return {self.new_name: value}

    def read(self, current: object) -> object:
        """Return the value of the new argument."""
        return current


@dataclass(frozen=True)
class KeyOfDict(_Replaced):
    """The new argument is a dict, and one of its keys has the value."""

    key: str
    parse_word: ParseWord | None = str
    """None for truth values."""

    @property
    def replacement_text(self) -> str:
        """The dict with the key, for messages and documentation."""
        return f"`{self.new_name}={{'{self.key}': ...}}`"

    def convert(self, value: object, current: object) -> dict[str, object]:
        """Return the dict, or the object with the same names, with the value at the key.

        Raises:
            RemovedFeatureError: The new argument is a path to a file, for example.
        """
        if value is None:
            return {}

        settings: Any = current or {}
        # An AcceleratorConfig has fields instead of keys.
        if is_dataclass(settings) and not isinstance(settings, type):
            return {self.new_name: replace(settings, **{self.key: value})}
        if not isinstance(settings, Mapping):
            raise RemovedFeatureError(
                f"{self.key}={value!r} is a key of {self.new_name} now, which is passed too. Set "
                "the key there."
            )
        return {self.new_name: {**settings, self.key: value}}

    def read(self, current: object) -> object:
        """Return the value at the key, or None without one."""
        if isinstance(current, Mapping):
            return cast("Mapping[str, Any]", current).get(self.key)
        return getattr(current, self.key, None)


@dataclass(frozen=True)
class FlagToValue(_Replaced):
    """A truth value: True is one of the values of the new argument."""

    value: str
    parse_word = None

    @property
    def replacement_text(self) -> str:
        """The new argument with this value, for messages and documentation."""
        return f"`{self.new_name}={self.value!r}`"

    def convert(self, value: object, current: object) -> dict[str, object]:
        """Return the new argument with its value for True; False leaves it as it is."""
        if value:
            return {self.new_name: self.value}
        return {}

    def read(self, current: object) -> bool:
        """Return whether the new argument has this value."""
        return current == self.value


@dataclass(frozen=True)
class FlagToListItem(_Replaced):
    """A truth value: True is a word in the list that is the new argument."""

    word: str
    parse_word = None

    @property
    def replacement_text(self) -> str:
        """The list with the word, for messages and documentation."""
        return f"`{self.new_name}={[self.word]!r}`"

    def convert(self, value: object, current: Any) -> dict[str, object]:
        """Return the list, with the word added for True."""
        words: list[str] = list(current or [])
        if isinstance(current, str):
            words = current.split()
        if value and self.word not in words:
            words.append(self.word)
        return {self.new_name: words}

    def read(self, current: Any) -> bool:
        """Return whether the list has the word."""
        return self.word in (current or [])


@dataclass(frozen=True)
class Removed:
    """An argument of transformers 4 that no argument replaces."""

    replacement_text: str
    """What to do instead, for messages and documentation."""
    default: Any = None
    harmless: tuple[Any, ...] | None = None
    """The values that are accepted beside None and the default; by default all are."""
    parse_word: ParseWord | None = str
    """None for truth values."""

    def refuses(self, value: object) -> bool:
        """Return True for a value that requests a removed feature."""
        return self.harmless is not None and value not in (None, self.default, *self.harmless)


OldName = Renamed | KeyOfDict | FlagToValue | FlagToListItem | Removed
"""An argument of transformers 4, and what has become of it."""


def _optional_int(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


_AMP = ("amp", "cuda_amp", "cpu_amp")

OLD_NAMES: dict[str, OldName] = {
    "adafactor": FlagToValue("optim", "adafactor"),
    "dispatch_batches": KeyOfDict("accelerator_config", "dispatch_batches", parse_word=None),
    "evaluate_during_training": FlagToValue("eval_strategy", "steps"),
    "evaluation_strategy": Renamed("eval_strategy"),
    "fp16_backend": Removed(
        "nothing: `fp16=True` takes torch's own", default="auto", harmless=_AMP
    ),
    "fp16_opt_level": Removed(
        "nothing: it was for Apex, `fp16=True` takes torch's own", default="O1"
    ),
    "fsdp_min_num_params": KeyOfDict("fsdp_config", "min_num_params", parse_word=int),
    "fsdp_transformer_layer_cls_to_wrap": KeyOfDict("fsdp_config", "transformer_layer_cls_to_wrap"),
    "group_by_length": FlagToValue("train_sampling_strategy", "group_by_length"),
    "half_precision_backend": Removed(
        "nothing: `fp16=True` and `bf16=True` take torch's own",
        default="auto",
        harmless=_AMP,
    ),
    "include_inputs_for_metrics": FlagToListItem("include_for_metrics", "inputs"),
    "include_tokens_per_second": FlagToValue("include_num_input_tokens_seen", "all"),
    "jit_mode_eval": Removed("`torch_compile=True`", default=False, harmless=(), parse_word=None),
    "mp_parameters": Removed(
        "nothing: SageMaker model parallelism does not exist any more",
        default="",
        harmless=(),
    ),
    "no_cuda": Renamed("use_cpu", parse_word=None),
    "overwrite_output_dir": Removed(
        "nothing: existing folders are written to; scripts may still read it",
        default=False,
        parse_word=None,
    ),
    "past_index": Removed(
        "nothing: models keep no state between batches",
        default=-1,
        harmless=(),
        parse_word=int,
    ),
    "per_gpu_eval_batch_size": Renamed("per_device_eval_batch_size", parse_word=int),
    "per_gpu_train_batch_size": Renamed("per_device_train_batch_size", parse_word=int),
    "push_to_hub_model_id": Renamed("hub_model_id"),
    "push_to_hub_organization": Removed("`hub_model_id='organization/name'`", harmless=()),
    "push_to_hub_token": Renamed("hub_token"),
    "ray_scope": Removed("`hyperparameter_search(scope=...)`", default="last", harmless=()),
    "save_safetensors": Removed(
        "nothing: weights are always written as safetensors, and read from both",
        default=True,
        parse_word=None,
    ),
    "sharded_ddp": Removed("`fsdp='full_shard'`", default="", harmless=(False, [])),
    "split_batches": KeyOfDict("accelerator_config", "split_batches", parse_word=None),
    "torchdynamo": Renamed("torch_compile_backend"),
    "tpu_metrics_debug": FlagToListItem("debug", "tpu_metrics_debug"),
    "tpu_num_cores": Removed("nothing: the launcher sets it", parse_word=_optional_int),
    "use_ipex": Removed("`torch_compile=True`", default=False, harmless=(), parse_word=None),
    "use_legacy_prediction_loop": Removed(
        "nothing: there is one loop", default=False, parse_word=None
    ),
    "use_mps_device": Removed("nothing: the device is detected", default=False, parse_word=None),
    "xpu_backend": Renamed("ddp_backend"),
}
"""Arguments that 5.3.0 has removed; `warmup_ratio` and `logging_dir` are still its fields."""


def advice(name: str, known: Iterable[str]) -> str:
    """Return the successor of an old argument, or the nearest known name; often an empty text.

    Args:
        name: An unknown name.
        known: All known names.
    """
    if name not in OLD_NAMES:
        return did_you_mean(name, known)
    old = OLD_NAMES[name]
    if isinstance(old, Renamed):
        return f" It is called {old.new_name} now."
    if old.replacement_text.startswith("nothing: "):
        return f" Remove it: {old.replacement_text.removeprefix('nothing: ')}."
    return f" Pass {old.replacement_text}."


def _old_name_warning(name: str) -> str:
    replacement = OLD_NAMES[name].replacement_text
    return f"{name} is an argument of transformers 4. Instead: {replacement}."


def replace_argument(name: str, value: object, kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the current arguments that have the effect of an old one, after a warning.

    Args:
        name: The old name.
        value: The value of the old argument.
        kwargs: All current arguments.

    Raises:
        RemovedFeatureError: It requests a removed feature, or conflicts with its new name.
    """
    old = OLD_NAMES[name]
    if isinstance(old, Removed) and old.refuses(value):
        raise RemovedFeatureError(
            f"{format_argument(name, value)} is not possible since transformers 5. Instead: "
            f"{old.replacement_text}."
        )

    warn_at_script_line(_old_name_warning(name))
    if isinstance(old, Removed):
        return {}
    return old.convert(value, kwargs.get(old.new_name))


def with_current_names(kwargs: Mapping[str, object], old_names: Iterable[str]) -> dict[str, object]:
    """Convert arguments with old names to current ones, with a warning for each.

    Args:
        kwargs: All arguments by name.
        old_names: The old names that a class accepts.

    Raises:
        RemovedFeatureError: An old argument requests a removed feature, or conflicts with its new
            name.
    """
    names = sorted(name for name in old_names if name in kwargs)
    current = {name: value for name, value in kwargs.items() if name not in names}
    for name in names:
        value = kwargs[name]
        old = OLD_NAMES[name]
        if isinstance(old, Renamed) and old.new_name in kwargs and kwargs[old.new_name] != value:
            raise RemovedFeatureError(
                f"{format_argument(name, value)} is called {old.new_name} now, and "
                f"{format_argument(old.new_name, kwargs[old.new_name])} is passed too. Remove "
                f"{name}."
            )
        current |= replace_argument(name, value, current)
    return current


class OldAttribute:
    """An attribute with the name of an old argument, which reads and sets its successor.

    It does so only while old names are accepted. A class with a field of this name keeps the field.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, args: object, owner: type) -> Any:
        """Return the value of its successor, or the value that was passed, or its default."""
        old = OLD_NAMES[self.name]
        if args is not None and self.name in vars(args):
            return vars(args)[self.name]
        if args is None or not _accepted:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        if isinstance(old, Removed):
            return old.default
        warn_at_script_line(_old_name_warning(self.name))
        return old.read(getattr(args, old.new_name))

    def __set__(self, args: Any, value: object) -> None:
        """Set its successor."""
        if not _accepted or self.name in args.__dataclass_fields__:
            vars(args)[self.name] = value
            return
        attributes = cast("dict[str, Any]", vars(args))
        for name, current_value in replace_argument(self.name, value, attributes).items():
            setattr(args, name, current_value)
        if isinstance(OLD_NAMES[self.name], Removed):
            # No argument replaces it, but scripts may read it again.
            attributes[self.name] = value
