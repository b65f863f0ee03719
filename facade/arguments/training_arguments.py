"""`TrainingArguments` and `Seq2SeqTrainingArguments`: fields, validation and export together."""

import inspect
import json
import logging
import math
import os
import sys
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, cast

from ...lightning_modules.common.local_paths import url_of
from ..distributed.process import join_others
from .derived import derive
from .exports import export_process, export_weight_loading
from .fields import ArgumentFields, GenerationArguments
from .fsdp_config import settings_of
from .hardware import set_tf32, supports_tf32
from .launched import apply_launcher
from .old_names import old_names_accepted
from .process_view import ProcessView
from .reading import read_fields
from .rules import report
from .setters import Setters
from .sweep_trial import apply_trial, note_applied, this_trial
from .unknown import RejectsUnknownKeywords, understand_old_names

logger = logging.getLogger(__name__)


class Serialization(ArgumentFields):
    """The serialization methods of `transformers.TrainingArguments`; tokens are masked."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name; nested values are copied.

        Returns:
            Members of enumerations as text, configurations as dicts, tokens as placeholders;
            `output_dir` as the address if it is the local folder of one.
        """
        values: dict[str, Any] = {}
        for item in fields(self):
            if item.init:
                values[item.name] = _masked(item.name, _plain(getattr(self, item.name)))
        values["output_dir"] = url_of(values["output_dir"]) or values["output_dir"]
        return values

    def to_json_string(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """`to_dict` and the batch sizes; values that trackers do not accept become text."""
        accepted_types: list[type] = [bool, int, float, str]
        torch = sys.modules.get("torch")
        if torch is not None:
            accepted_types.append(torch.Tensor)

        values = self.to_dict()
        for name in ("train_batch_size", "eval_batch_size"):
            values[name] = getattr(self, name)
        for name, value in values.items():
            if type(value) not in accepted_types:
                values[name] = str(value)
        return values

    def __str__(self) -> str:
        lines: list[str] = []
        for name in sorted(item.name for item in fields(self)):
            value = _masked(name, getattr(self, name))
            lines.append(f"{name}={value},\n")
        return f"{type(self).__name__}(\n{''.join(lines)})"

    __repr__ = __str__


def _masked(name: str, value: object) -> object:
    return f"<{name.upper()}>" if name.endswith("_token") else value


def _plain(value: Any) -> Any:
    """Convert enums, dtypes and configurations to plain values, nested ones too."""
    if isinstance(value, Enum):
        return value.value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return _dtype_name(value)

    if isinstance(value, dict):
        plain: dict[Any, Any] = {}
        for key, item in cast("dict[Any, Any]", value).items():
            plain[key] = _dtype_name(item) if key == "dtype" else _plain(item)
        return plain
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]

    # Configurations of other libraries; a class has no values.
    for method in ("to_dict", "to_json"):
        if hasattr(value, method) and not isinstance(value, type):
            return _plain(getattr(value, method)())
    return value


def _dtype_name(value: object) -> str | None:
    """Return the name of a dtype, such as "float16"."""
    if value is None or isinstance(value, str):
        return value
    return str(value).rpartition(".")[2]


def _describe_arguments(cls: type[ArgumentFields]) -> None:
    """Add a section with all arguments to the docstring of a class, for `help()` and notebooks.

    At an import it takes 0.2 ms, and 11 kB of memory.
    """
    if cls.__doc__ is None:  # python -OO
        return
    lines = ["Args:"]
    for item in fields(cls):
        lines.append(f"    {item.name}: {item.metadata['help']}")
    description, raises, errors = inspect.cleandoc(cls.__doc__).partition("Raises:\n")
    arguments = "\n".join(lines)
    cls.__doc__ = f"{description}{arguments}\n\n{raises}{errors}"


@understand_old_names
@dataclass(repr=False)
class TrainingArguments(Setters, Serialization, ProcessView, RejectsUnknownKeywords):
    """Hold all arguments of a training: what is trained, evaluated, logged and saved, and when.

    They have the names, the order and the defaults of `transformers.TrainingArguments`; further
    ones follow at the end.

    Arguments are converted and checked before anything is written. Unknown names are reported
    first, all in one error; then all invalid values and combinations, again in one error. Fields
    may be changed later; their readers then check again (`rules.report`). A subclass
    that is a dataclass may add fields and change defaults; its `__post_init__` must call this one.

    If a launcher such as torchrun started several processes, this one joins their process group
    here, so that scripts can use torch.distributed and `main_process_first` from then on.

    Raises:
        TypeError: Arguments do not exist, or have values of a wrong type and nothing else is wrong.
        ValueError: Invalid values and combinations.
        NotImplementedError: Unsupported values, each with an alternative.
        FileNotFoundError: The JSON file of `accelerator_config` or `fsdp_config` does not exist.
    """

    _VALID_DICT_FIELDS = [
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "gradient_checkpointing_kwargs",
        "activation_checkpointing_kwargs",
        "lr_scheduler_kwargs",
        "parameter_rules",
    ]
    # Scripts for `transformers` read these; lightrainer has no such plugins.
    deepspeed_plugin = None
    fsdp_plugin_args = None

    def __post_init__(self) -> None:
        # The values of a trial override those of the script; the launcher sets the remaining ones.
        trial = this_trial()
        if trial is not None:
            apply_trial(self, trial)
        values, errors = read_fields(self)
        vars(self).update(values)
        apply_launcher(self)
        if self.set_by_launcher:
            values, launcher_errors = read_fields(self, self.set_by_launcher)
            vars(self).update(values)
            errors |= launcher_errors
        derive(self)

        # One error for all fields and rules.
        derived_values = {item.name: getattr(self, item.name) for item in fields(self)}
        for warning in report(self, derived_values, errors):
            logger.warning(warning)

        # Join the process group, and tell other libraries.
        join_others(*self._process_options)
        if old_names_accepted():
            export_process(self)
        fsdp_settings = settings_of(self)
        export_weight_loading(fsdp_settings and fsdp_settings.cpu_ram_efficient_loading)
        if self.deepspeed or f"{__package__}.hf_deepspeed" in sys.modules:
            self._export_deepspeed()

        # As in transformers a compiled model uses TF32 unless `tf32` is set.
        tf32 = self.tf32
        if tf32 is None and self.torch_compile and (self.bf16 or not self.fp16):
            tf32 = True
        if tf32 is not None and supports_tf32():
            set_tf32(tf32)
        if trial is not None:
            note_applied(self, trial)

    def _export_deepspeed(self) -> None:
        """Activate the DeepSpeed configuration for models of `transformers` loaded from now on."""
        from .hf_deepspeed import activate_deepspeed_of, deactivate_deepspeed_of_arguments

        if self.deepspeed:
            activate_deepspeed_of(self)
        else:
            deactivate_deepspeed_of_arguments()

    @property
    def train_batch_size(self) -> int:
        """Samples in one training batch of this process."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """Samples in one evaluation batch of this process."""
        return self.per_device_eval_batch_size

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Compute how many optimizer steps the learning rate rises.

        Args:
            num_training_steps: optimizer steps of the whole run, for `warmup_steps` below 1.

        Returns:
            `warmup_steps`, or that share of the run, rounded up.
        """
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)


# Dataclasses gather fields from the last base to the first: those about generation come last, as
# documented.
@understand_old_names
@dataclass(repr=False)
class Seq2SeqTrainingArguments(GenerationArguments, TrainingArguments):
    """Hold the arguments of a `Seq2SeqTrainer`: those of a training, and of generation.

    Works like `transformers.Seq2SeqTrainingArguments`, but `sortish_sampler` has an effect.

    transformers accepts `sortish_sampler` and never reads it. Here training batches contain samples
    of similar length, as with `train_sampling_strategy="group_by_length"`, if the data has a
    length. Evaluation and prediction keep the order of their data.

    `generation_max_length`, `generation_num_beams` and `generation_config` are read if
    `predict_with_generate` is True. A `generation_config` may be an object such as
    `transformers.GenerationConfig`, a dict, a JSON file, the folder of a `generation_config.json`,
    or, for models that load theirs from the Hub, a name on the Hub; on a command line JSON text is
    a dict too. `Seq2SeqTrainer` reads and checks it when it is made.

    Raises:
        ValueError, TypeError, NotImplementedError, FileNotFoundError: See `TrainingArguments`.
    """

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "generation_config"]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name; `generation_config` as a dict or as text."""
        values = super().to_dict()
        config = values["generation_config"]
        if isinstance(config, os.PathLike):
            values["generation_config"] = os.fspath(cast("os.PathLike[str]", config))
        elif hasattr(config, "__dict__"):
            values["generation_config"] = dict(vars(cast("object", config)))
        return values


_describe_arguments(TrainingArguments)
_describe_arguments(Seq2SeqTrainingArguments)
