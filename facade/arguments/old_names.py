"""Arguments of transformers 4: their successors, and the switch that lets them be accepted.

They are accepted where imports of `transformers` are intercepted, so that an unchanged script for 4.x runs, with a
warning. Elsewhere `TrainingArguments(evaluation_strategy=...)` is an error as in 5.3.0, which names the successor. The
documentation is generated from the table.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
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
    while frame.f_back is not None and (_package(frame) == own or frame.f_code.co_filename == "<string>"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, FutureWarning, stacklevel=level)


def _package(frame: Any) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


def shown(name: str, value: Any) -> str:
    """Format a keyword and its value on one short line, with secrets masked."""
    hidden = name.endswith("token") or is_secret_name(name)
    return f"{name}=..." if hidden else redacted(f"{name}={' '.join(repr(value).split())}")[: len(name) + 61]


def advice(name: str, known: Iterable[str]) -> str:
    """Return the successor of an old argument, or the nearest known name; often an empty text.

    Args:
        name: A name that is not known.
        known: All names that are.
    """
    if name not in OLD_NAMES:
        return did_you_mean(name, known)
    now = OLD_NAMES[name].now
    if name in _RENAMED:
        return f" It is called {now.strip('`')} now."
    return f" Leave it out: {now.removeprefix('nothing: ')}." if now.startswith("nothing") else f" Pass {now}."


class NoLongerPossibleError(ValueError):
    """An argument of transformers 4 requests a removed feature."""


@dataclass(frozen=True, kw_only=True)
class OldName:
    """The successor of an argument of transformers 4."""

    now: str
    """The replacement, for warnings and documentation."""
    turn: Callable[[Any, Given], dict[str, Any]] | None = None
    """Convert its value, given all arguments, to current arguments; None if it has no effect."""
    read: Callable[[Any], Any] | None = None
    """Read its value from current arguments; None for the value that was given, or `default`."""
    default: Any = None
    """Its value if not given."""
    refused: Callable[[Any], bool] = lambda value: False
    """Return True for an unsupported value."""
    kind: Callable[[str], Any] | None = None
    """Parse a word of a command line; None for truth values."""


def _to(new: str, kind: Callable[[str], Any] | None = str) -> OldName:
    return OldName(
        now=f"`{new}`", turn=lambda value, given: {new: value}, read=lambda args: getattr(args, new), kind=kind
    )


def _nothing(why: str, default: Any = None, kind: Callable[[str], Any] | None = str) -> OldName:
    return OldName(now=f"nothing: {why}", default=default, kind=kind)


def _refused(now: str, default: Any, kind: Callable[[str], Any] | None, fine: tuple[Any, ...] = ()) -> OldName:
    """Return a row for an argument that takes its default only, or a value that means the same."""
    harmless = (default, None, *fine)
    return OldName(now=now, default=default, refused=lambda value: value not in harmless, kind=kind)


def _in_dict(holder: str, key: str, value: Any, given: Given) -> dict[str, Any]:
    there = given.get(holder) or {}
    if value is None:
        return {}
    if is_dataclass(there) and not isinstance(there, type):
        return {holder: replace(there, **{key: value})}
    if not isinstance(there, Mapping):
        raise NoLongerPossibleError(f"{key}={value!r} is part of {holder} now, which is given too. Write it there.")
    return {holder: {**there, key: value}}


def _into(holder: str, key: str, kind: Callable[[str], Any] | None) -> OldName:
    """Return a row for an argument that is a key of a dict now."""

    def read(args: Any) -> Any:
        there = getattr(args, holder)
        return there.get(key) if isinstance(there, Mapping) else getattr(there, key, None)

    now, turn = f"`{holder}={{'{key}': ...}}`", lambda value, given: _in_dict(holder, key, value, given)
    return OldName(now=now, turn=turn, read=read, kind=kind)


def _flag(new: str, value_now: Any) -> OldName:
    """Return a row for a truth value that is a choice now."""
    turn, read = lambda value, given: {new: value_now} if value else {}, lambda args: getattr(args, new) == value_now
    return OldName(now=f"`{new}={value_now!r}`", turn=turn, read=read)


def _one_more(new: str, word: str) -> OldName:
    """Return a row for a truth value that is a word in a list now."""

    def turn(value: Any, given: Given) -> dict[str, Any]:
        there = given.get(new) or []
        there = there.split() if isinstance(there, str) else list(there)
        return {new: [*there, word] if value and word not in there else there}

    return OldName(now=f"`{new}=[{word!r}]`", turn=turn, read=lambda args: word in (getattr(args, new) or []))


def _in_organization(value: Any, given: Given) -> dict[str, Any]:
    folder = os.path.normpath(given.get("output_dir") or "trainer_output")
    name = (given.get("hub_model_id") or os.path.basename(folder)).rpartition("/")[2]
    return {} if value is None else {"hub_model_id": f"{value}/{name}"}


def _optional_int(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


OLD_NAMES: dict[str, OldName] = {
    "adafactor": _flag("optim", "adafactor"),
    "dispatch_batches": _into("accelerator_config", "dispatch_batches", None),
    "evaluate_during_training": _flag("eval_strategy", "steps"),
    "evaluation_strategy": _to("eval_strategy"),
    "fp16_backend": _refused("nothing: `fp16=True` takes torch's own", "auto", str, ("amp", "cuda_amp", "cpu_amp")),
    "fp16_opt_level": _nothing("it was for Apex, `fp16=True` takes torch's own", "O1"),
    "fsdp_min_num_params": OldName(
        now="`fsdp_config={'min_num_params': ...}`",
        turn=lambda value, given: _in_dict("fsdp_config", "min_num_params", value or None, given),
        default=0,
        kind=int,
    ),
    "fsdp_transformer_layer_cls_to_wrap": _into("fsdp_config", "transformer_layer_cls_to_wrap", str),
    "group_by_length": _flag("train_sampling_strategy", "group_by_length"),
    "half_precision_backend": _refused(
        "nothing: `fp16=True` and `bf16=True` take torch's own", "auto", str, ("amp", "cuda_amp", "cpu_amp")
    ),
    "include_inputs_for_metrics": _one_more("include_for_metrics", "inputs"),
    "include_tokens_per_second": _flag("include_num_input_tokens_seen", "all"),
    "jit_mode_eval": _refused("`torch_compile=True`", False, None),
    "mp_parameters": _refused("nothing: there is no SageMaker model parallelism", "", str),
    "no_cuda": _to("use_cpu", None),
    "overwrite_output_dir": _nothing("a folder is written to as it is; scripts may go on reading it", False, None),
    "past_index": _refused("nothing: models keep no state from one batch to the next", -1, int),
    "per_gpu_eval_batch_size": _to("per_device_eval_batch_size", int),
    "per_gpu_train_batch_size": _to("per_device_train_batch_size", int),
    "push_to_hub_model_id": _to("hub_model_id"),
    "push_to_hub_organization": OldName(
        now="`hub_model_id='organization/name'`",
        turn=_in_organization,
        read=lambda args: (args.hub_model_id or "").rpartition("/")[0] or None,
        kind=str,
    ),
    "push_to_hub_token": _to("hub_token"),
    "ray_scope": _refused("`hyperparameter_search(scope=...)`", "last", str),
    "save_safetensors": _nothing("weights are always written as safetensors, and read from both", True, None),
    "sharded_ddp": _refused("`fsdp='full_shard'`", "", str, (False, [])),
    "split_batches": _into("accelerator_config", "split_batches", None),
    "torchdynamo": _to("torch_compile_backend"),
    "tpu_metrics_debug": _one_more("debug", "tpu_metrics_debug"),
    "tpu_num_cores": _nothing("the launcher says it", None, _optional_int),
    "use_ipex": _refused("`torch_compile=True`", False, None),
    "use_legacy_prediction_loop": _nothing("there is one loop", False, None),
    "use_mps_device": _nothing("the device is found by itself", False, None),
    "xpu_backend": _to("ddp_backend"),
}
"""Arguments that 5.3.0 has dropped; `warmup_ratio` and `logging_dir` still are fields of it."""


def modernised(given: Given, fields: Collection[str]) -> dict[str, Any]:
    """Convert arguments that may have old names to current ones, with a warning for each.

    Args:
        given: The arguments by name.
        fields: The names that the class has; of these none is old, even if it is in the table.

    Raises:
        NoLongerPossibleError: An old argument requests a removed feature, or conflicts with its new name.
    """
    old = [name for name in OLD_NAMES if name in given and name not in fields]
    new = {name: value for name, value in given.items() if name not in old}
    # An organization needs the name that another one gives.
    for name in sorted(old, key=lambda one: one == "push_to_hub_organization"):
        for target, value in turned(name, given[name], new).items():
            if name in _RENAMED and target in given and given[target] != value:
                both = f"{shown(name, given[name])} is called {target} now, and {shown(target, given[target])} is given"
                raise NoLongerPossibleError(f"{both} too. Leave {name} out.")
            new[target] = value
    return new


def turned(name: str, value: Any, given: Given) -> dict[str, Any]:
    """Return the current arguments that replace an old one, after a warning.

    Raises:
        NoLongerPossibleError: It requests a removed feature.
    """
    old = OLD_NAMES[name]
    if old.refused(value):
        raise NoLongerPossibleError(f"{shown(name, value)} is not possible since transformers 5. Instead: {old.now}.")
    warn(f"{name} is an argument of transformers 4. Instead: {old.now}.")
    return {} if old.turn is None else old.turn(value, given)


_RENAMED = {name for name, old in OLD_NAMES.items() if old.now.strip("`").isidentifier()}
