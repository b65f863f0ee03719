"""Arguments of transformers 4: their successors, and the switch that lets them be accepted.

They are accepted where imports of `transformers` are intercepted, so that an unchanged script for
4.x runs, with a warning. Elsewhere `TrainingArguments(evaluation_strategy=...)` is an error as in
5.3.0, which names the successor. The documentation is generated from the table.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from ...lightning_modules.common.redaction import is_secret_name, redacted
from ...lightning_modules.common.suggestions import did_you_mean

Given = Mapping[str, Any]
_accepted = False


def accept(yes: bool = True) -> None:
    """Accept the old names from now on, or refuse them."""
    global _accepted
    _accepted = yes


def accepted() -> bool:
    """Return True if old names are accepted."""
    return _accepted


def warn(text: str) -> None:
    """Warn of an old name, in the line of the script that has it."""
    level, frame = 2, sys._getframe(1)
    own = __name__.partition(".")[0]
    # Constructors of dataclasses have no file.
    while frame.f_back is not None and (
        _package(frame) == own or frame.f_code.co_filename == "<string>"
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, FutureWarning, stacklevel=level)


def _package(frame: Any) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


def shown(name: str, value: Any) -> str:
    """Format a keyword and its value on one short line, with secrets masked."""
    hidden = name.endswith("token") or is_secret_name(name)
    return (
        f"{name}=..."
        if hidden
        else redacted(f"{name}={' '.join(repr(value).split())}")[: len(name) + 61]
    )


class NoLongerPossibleError(ValueError):
    """An argument of transformers 4 requests a removed feature."""


@dataclass(frozen=True, kw_only=True)
class OldName:
    """An argument of transformers 4, and what takes its place."""

    to: str = ""
    """The argument that takes its place; empty for none."""
    key: str = ""
    """The key that takes its place, in the dict `to`."""
    value: Any = None
    """The value of `to` that stands for True now; a list is added to that of `to`."""
    instead: str = ""
    """What to do where no argument takes its place."""
    default: Any = None
    """Its value where no argument takes its place."""
    harmless: tuple[Any, ...] | None = None
    """The values that are accepted, beside None and the default; without it all are."""
    kind: Callable[[str], Any] | None = str
    """Parse a word of a command line; None for truth values."""

    @property
    def now(self) -> str:
        """What takes its place, for warnings and documentation."""
        if self.instead:
            return self.instead
        if self.key:
            return f"`{self.to}={{'{self.key}': ...}}`"
        return f"`{self.to}`" if self.value is None else f"`{self.to}={self.value!r}`"

    @property
    def is_renamed(self) -> bool:
        """True if an argument with the same values takes its place."""
        return self.now == f"`{self.to}`"

    def refuses(self, value: Any) -> bool:
        """Return True for a value that requests a removed feature."""
        return self.harmless is not None and value not in (None, self.default, *self.harmless)

    def turned(self, value: Any, given: Given) -> dict[str, Any]:
        """Return the current arguments that have the effect of a value.

        Args:
            value: of the old argument.
            given: all current arguments.
        """
        present = given.get(self.to)
        if not self.to:
            return {}
        if self.key:
            return {} if value is None else {self.to: self._with_key(present or {}, value)}
        if isinstance(self.value, list):
            words = present.split() if isinstance(present, str) else list(present or [])
            return {
                self.to: [*words, *(word for word in self.value if value and word not in words)]
            }
        if self.value is not None:
            return {self.to: self.value} if value else {}
        return {self.to: value}

    def _with_key(self, present: Any, value: Any) -> Any:
        """Return a dict, or an object with the same names, with the value at the key."""
        if is_dataclass(present) and not isinstance(present, type):
            return replace(present, **{self.key: value})
        if not isinstance(present, Mapping):
            given = f"{self.key}={value!r} is part of {self.to} now, which is given too"
            raise NoLongerPossibleError(f"{given}. Write it there.")
        return {**present, self.key: value}

    def read(self, args: Any) -> Any:
        """Return its value, as current arguments with a successor have it."""
        present = getattr(args, self.to)
        if self.key:
            return (
                present.get(self.key)
                if isinstance(present, Mapping)
                else getattr(present, self.key, None)
            )
        if isinstance(self.value, list):
            return self.value[0] in (present or [])
        return present if self.value is None else present == self.value


class _Organization(OldName):
    """The organization of a repository, which is the first part of its name now."""

    def turned(self, value: Any, given: Given) -> dict[str, Any]:
        """Put it before the name of the repository, or of the folder."""
        folder = os.path.normpath(given.get("output_dir") or "trainer_output")
        name = (given.get(self.to) or os.path.basename(folder)).rpartition("/")[2]
        return {} if value is None else {self.to: f"{value}/{name}"}

    def read(self, args: Any) -> Any:
        """Return what is before the name."""
        return (getattr(args, self.to) or "").rpartition("/")[0] or None


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
    "include_inputs_for_metrics": OldName(to="include_for_metrics", value=["inputs"], kind=None),
    "include_tokens_per_second": OldName(
        to="include_num_input_tokens_seen", value="all", kind=None
    ),
    "jit_mode_eval": OldName(instead="`torch_compile=True`", default=False, harmless=(), kind=None),
    "mp_parameters": OldName(
        instead="nothing: there is no SageMaker model parallelism", default="", harmless=()
    ),
    "no_cuda": OldName(to="use_cpu", kind=None),
    "overwrite_output_dir": OldName(
        instead="nothing: a folder is written to as it is; scripts may go on reading it",
        default=False,
        kind=None,
    ),
    "past_index": OldName(
        instead="nothing: models keep no state from one batch to the next",
        default=-1,
        harmless=(),
        kind=int,
    ),
    "per_gpu_eval_batch_size": OldName(to="per_device_eval_batch_size", kind=int),
    "per_gpu_train_batch_size": OldName(to="per_device_train_batch_size", kind=int),
    "push_to_hub_model_id": OldName(to="hub_model_id"),
    "push_to_hub_organization": _Organization(
        to="hub_model_id", instead="`hub_model_id='organization/name'`"
    ),
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
    "tpu_metrics_debug": OldName(to="debug", value=["tpu_metrics_debug"], kind=None),
    "tpu_num_cores": OldName(instead="nothing: the launcher says it", kind=_optional_int),
    "use_ipex": OldName(instead="`torch_compile=True`", default=False, harmless=(), kind=None),
    "use_legacy_prediction_loop": OldName(
        instead="nothing: there is one loop", default=False, kind=None
    ),
    "use_mps_device": OldName(
        instead="nothing: the device is found by itself", default=False, kind=None
    ),
    "xpu_backend": OldName(to="ddp_backend"),
}
"""Arguments that 5.3.0 has dropped; `warmup_ratio` and `logging_dir` still are fields of it."""


def advice(name: str, known: Iterable[str]) -> str:
    """Return the successor of an old argument, or the nearest known name; often an empty text.

    Args:
        name: A name that is not known.
        known: All names that are.
    """
    if name not in OLD_NAMES:
        return did_you_mean(name, known)
    old = OLD_NAMES[name]
    if old.is_renamed:
        return f" It is called {old.to} now."
    reason = old.now.removeprefix("nothing: ")
    return f" Pass {old.now}." if reason == old.now else f" Leave it out: {reason}."


def turned(name: str, value: Any, given: Given) -> dict[str, Any]:
    """Return the current arguments that replace an old one, after a warning.

    Raises:
        NoLongerPossibleError: It requests a removed feature, or conflicts with its new name.
    """
    old = OLD_NAMES[name]
    if old.refuses(value):
        raise NoLongerPossibleError(
            f"{shown(name, value)} is not possible since transformers 5. Instead: {old.now}."
        )
    warn(f"{name} is an argument of transformers 4. Instead: {old.now}.")
    return old.turned(value, given)


def modernised(given: Given, old: Iterable[str]) -> dict[str, Any]:
    """Convert arguments with old names to current ones, with a warning for each.

    Args:
        given: All arguments by name.
        old: The old names that a class understands.

    Raises:
        NoLongerPossibleError: An old argument requests a removed feature, or conflicts with its new
            name.
    """
    names = [name for name in old if name in given]
    new = {name: value for name, value in given.items() if name not in names}
    # An organization needs the name that another one gives.
    for name in sorted(names, key=lambda one: one == "push_to_hub_organization"):
        value = given[name]
        to = OLD_NAMES[name].to
        if OLD_NAMES[name].is_renamed and to in given and given[to] != value:
            both = f"{shown(name, value)} is called {to} now, and {shown(to, given[to])} is given"
            raise NoLongerPossibleError(f"{both} too. Leave {name} out.")
        new |= turned(name, value, new)
    return new


class OldAttribute:
    """An attribute with the name of an old argument, which reads and sets what takes its place,
    where it is accepted.

    A class that has a field of this name keeps it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, args: Any, owner: type) -> Any:
        """Return the value of its successor, or the one that was given, or its default."""
        old = OLD_NAMES[self.name]
        values = {} if args is None else vars(args)
        if self.name in values:
            return values[self.name]
        if args is None or not _accepted:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        if not old.to:
            return old.default
        warn(f"{self.name} is an argument of transformers 4. Instead: {old.now}.")
        return old.read(args)

    def __set__(self, args: Any, value: Any) -> None:
        """Set its successor."""
        if not _accepted or self.name in args.__dataclass_fields__:
            vars(args)[self.name] = value
            return
        for name, meant in turned(self.name, value, vars(args)).items():
            setattr(args, name, meant)
        if not OLD_NAMES[self.name].to:
            vars(args)[self.name] = value
