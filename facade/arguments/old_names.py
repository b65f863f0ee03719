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

_accepted = False


def accept(accepts: bool = True) -> None:
    """Accept old names from now on, or refuse them."""
    global _accepted
    _accepted = accepts


def accepted() -> bool:
    """Return True if old names are accepted."""
    return _accepted


def warn_at_script_line(text: str, category: type[Warning] = FutureWarning) -> None:
    """Warn at the line of the script that has called this package."""
    # `warnings.warn(skip_file_prefixes=...)` needs Python 3.12.
    package = __name__.partition(".")[0]
    level = 2
    frame = inspect.currentframe()
    frame = frame and frame.f_back
    while frame is not None and frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        # Generated constructors of dataclasses have no file.
        is_generated = frame.f_code.co_filename == "<string>"
        if module.partition(".")[0] != package and not is_generated:
            break
        level += 1
        frame = frame.f_back
    warnings.warn(text, category, stacklevel=level)


def shown(name: str, value: object) -> str:
    """Format a keyword and its value on one short line, with secrets masked."""
    if name.endswith("token") or is_secret_name(name):
        return f"{name}=..."
    value_on_one_line = " ".join(repr(value).split())
    return redacted(f"{name}={value_on_one_line}")[: len(name) + 61]


class NoLongerPossibleError(ValueError):
    """An argument of transformers 4 requests a removed feature."""


@dataclass(frozen=True, kw_only=True)
class OldName:
    """An argument of transformers 4, and its successor."""

    to: str = ""
    """The argument that replaces it; empty without one."""
    key: str = ""
    """The key in the dict `to` that replaces it."""
    value: Any = None
    """The value of `to` that stands for True now."""
    added_word: str = ""
    """The word that is added to the list `to` for True."""
    instead: str = ""
    """Advice if no argument replaces it."""
    default: Any = None
    """Its value if no argument replaces it."""
    harmless: tuple[Any, ...] | None = None
    """The values that are accepted beside None and the default; by default all are."""
    kind: Callable[[str], Any] | None = str
    """Parse a word of a command line; None for truth values."""

    @property
    def now(self) -> str:
        """Its successor, for warnings and documentation."""
        if self.instead:
            return self.instead
        if self.key:
            return f"`{self.to}={{'{self.key}': ...}}`"
        if self.added_word:
            return f"`{self.to}={[self.added_word]!r}`"
        if self.value is not None:
            return f"`{self.to}={self.value!r}`"
        return f"`{self.to}`"

    @property
    def is_renamed(self) -> bool:
        """True if an argument with the same values replaces it."""
        return self.now == f"`{self.to}`"

    def refuses(self, value: object) -> bool:
        """Return True for a value that requests a removed feature."""
        return self.harmless is not None and value not in (None, self.default, *self.harmless)

    def current_arguments(self, value: object, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the current arguments that have the effect of a value.

        Args:
            value: The value of the old argument.
            kwargs: All current arguments.
        """
        present = kwargs.get(self.to)
        if not self.to:
            return {}

        # A key of a dict.
        if self.key:
            if value is None:
                return {}
            return {self.to: self._with_key(present or {}, value)}

        # A word that is added to a list.
        if self.added_word:
            words: list[str] = list(present or [])
            if isinstance(present, str):
                words = present.split()
            if value and self.added_word not in words:
                words.append(self.added_word)
            return {self.to: words}

        # A value that stands for True, or the same value under another name.
        if self.value is None:
            return {self.to: value}
        return {self.to: self.value} if value else {}

    def _with_key(self, present: object, value: object) -> object:
        """Return a dict, or an object with the same names, with the value at the key."""
        if is_dataclass(present) and not isinstance(present, type):
            return replace(present, **{self.key: value})
        if not isinstance(present, Mapping):
            raise NoLongerPossibleError(
                f"{self.key}={value!r} is a key of {self.to} now, which is passed too. Set the key "
                "there."
            )
        return {**cast("Mapping[str, Any]", present), self.key: value}

    def read(self, args: object) -> Any:
        """Return its value, computed from the current arguments."""
        present: Any = getattr(args, self.to)
        if self.key and isinstance(present, Mapping):
            return cast("Mapping[str, Any]", present).get(self.key)
        if self.key:
            return getattr(present, self.key, None)
        if self.added_word:
            return self.added_word in (present or [])
        if self.value is None:
            return present
        return present == self.value


def _optional_int(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


_AMP = ("amp", "cuda_amp", "cpu_amp")

OLD_NAMES: dict[str, OldName] = {
    "adafactor": OldName(to="optim", value="adafactor", kind=None),
    "dispatch_batches": OldName(to="accelerator_config", key="dispatch_batches", kind=None),
    "evaluate_during_training": OldName(to="eval_strategy", value="steps", kind=None),
    "evaluation_strategy": OldName(to="eval_strategy"),
    "fp16_backend": OldName(
        instead="nothing: `fp16=True` takes torch's own", default="auto", harmless=_AMP
    ),
    "fp16_opt_level": OldName(
        instead="nothing: it was for Apex, `fp16=True` takes torch's own", default="O1"
    ),
    "fsdp_min_num_params": OldName(to="fsdp_config", key="min_num_params", kind=int),
    "fsdp_transformer_layer_cls_to_wrap": OldName(
        to="fsdp_config", key="transformer_layer_cls_to_wrap"
    ),
    "group_by_length": OldName(to="train_sampling_strategy", value="group_by_length", kind=None),
    "half_precision_backend": OldName(
        instead="nothing: `fp16=True` and `bf16=True` take torch's own",
        default="auto",
        harmless=_AMP,
    ),
    "include_inputs_for_metrics": OldName(to="include_for_metrics", added_word="inputs", kind=None),
    "include_tokens_per_second": OldName(
        to="include_num_input_tokens_seen", value="all", kind=None
    ),
    "jit_mode_eval": OldName(instead="`torch_compile=True`", default=False, harmless=(), kind=None),
    "mp_parameters": OldName(
        instead="nothing: SageMaker model parallelism does not exist any more",
        default="",
        harmless=(),
    ),
    "no_cuda": OldName(to="use_cpu", kind=None),
    "overwrite_output_dir": OldName(
        instead="nothing: existing folders are written to; scripts may still read it",
        default=False,
        kind=None,
    ),
    "past_index": OldName(
        instead="nothing: models keep no state between batches",
        default=-1,
        harmless=(),
        kind=int,
    ),
    "per_gpu_eval_batch_size": OldName(to="per_device_eval_batch_size", kind=int),
    "per_gpu_train_batch_size": OldName(to="per_device_train_batch_size", kind=int),
    "push_to_hub_model_id": OldName(to="hub_model_id"),
    "push_to_hub_organization": OldName(instead="`hub_model_id='organization/name'`", harmless=()),
    "push_to_hub_token": OldName(to="hub_token"),
    "ray_scope": OldName(instead="`hyperparameter_search(scope=...)`", default="last", harmless=()),
    "save_safetensors": OldName(
        instead="nothing: weights are always written as safetensors, and read from both",
        default=True,
        kind=None,
    ),
    "sharded_ddp": OldName(instead="`fsdp='full_shard'`", default="", harmless=(False, [])),
    "split_batches": OldName(to="accelerator_config", key="split_batches", kind=None),
    "torchdynamo": OldName(to="torch_compile_backend"),
    "tpu_metrics_debug": OldName(to="debug", added_word="tpu_metrics_debug", kind=None),
    "tpu_num_cores": OldName(instead="nothing: the launcher sets it", kind=_optional_int),
    "use_ipex": OldName(instead="`torch_compile=True`", default=False, harmless=(), kind=None),
    "use_legacy_prediction_loop": OldName(
        instead="nothing: there is one loop", default=False, kind=None
    ),
    "use_mps_device": OldName(instead="nothing: the device is detected", default=False, kind=None),
    "xpu_backend": OldName(to="ddp_backend"),
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
    if old.is_renamed:
        return f" It is called {old.to} now."
    if old.now.startswith("nothing: "):
        return f" Remove it: {old.now.removeprefix('nothing: ')}."
    return f" Pass {old.now}."


def current_arguments(name: str, value: object, kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the current arguments that replace an old one, after a warning.

    Raises:
        NoLongerPossibleError: It requests a removed feature, or conflicts with its new name.
    """
    old = OLD_NAMES[name]
    if old.refuses(value):
        raise NoLongerPossibleError(
            f"{shown(name, value)} is not possible since transformers 5. Instead: {old.now}."
        )
    warn_at_script_line(f"{name} is an argument of transformers 4. Instead: {old.now}.")
    return old.current_arguments(value, kwargs)


def with_current_names(kwargs: Mapping[str, object], old_names: Iterable[str]) -> dict[str, object]:
    """Convert arguments with old names to current ones, with a warning for each.

    Args:
        kwargs: All arguments by name.
        old_names: The old names that a class accepts.

    Raises:
        NoLongerPossibleError: An old argument requests a removed feature, or conflicts with its new
            name.
    """
    names = sorted(name for name in old_names if name in kwargs)
    current = {name: value for name, value in kwargs.items() if name not in names}
    for name in names:
        value = kwargs[name]
        new_name = OLD_NAMES[name].to
        if OLD_NAMES[name].is_renamed and new_name in kwargs and kwargs[new_name] != value:
            raise NoLongerPossibleError(
                f"{shown(name, value)} is called {new_name} now, and "
                f"{shown(new_name, kwargs[new_name])} is passed too. Remove {name}."
            )
        current |= current_arguments(name, value, current)
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
        if not old.to:
            return old.default
        warn_at_script_line(f"{self.name} is an argument of transformers 4. Instead: {old.now}.")
        return old.read(args)

    def __set__(self, args: Any, value: object) -> None:
        """Set its successor."""
        if not _accepted or self.name in args.__dataclass_fields__:
            vars(args)[self.name] = value
            return
        attributes = cast("dict[str, Any]", vars(args))
        for name, current_value in current_arguments(self.name, value, attributes).items():
            setattr(args, name, current_value)
        if not OLD_NAMES[self.name].to:
            attributes[self.name] = value
