"""`TrainingArguments` and `Seq2SeqTrainingArguments`: fields, validation and export joined in
one class.
"""

import json
import logging
import math
import os
import sys
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ...lightning_modules.common.local_paths import address_of
from ..distributed.process import join_others
from . import old_names
from .derived import derive
from .exports import export_loaders, export_process
from .fields import ArgumentFields, GenerationArguments
from .fsdp_config import settings_of
from .hardware import set_tf32, supports_tf32
from .launched import apply_launcher
from .process_view import ProcessView
from .reading import read_fields
from .rules import report
from .setters import Setters
from .sweep_trial import apply_trial, note_applied
from .unknown import NamesItsArguments, understand_old_names

logger = logging.getLogger(__name__)


class Serialization(ArgumentFields):
    """The serialization methods of `transformers.TrainingArguments`; tokens are masked."""

    def to_dict(self) -> dict[str, Any]:
        """As the method of that name in the reference, but what is nested is copied, never changed
        in place.

        Returns:
            All fields by name: members of enumerations as text, configurations as dicts, tokens as
            a placeholder; `output_dir` as the address, if it is the folder of one.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        values["output_dir"] = address_of(values["output_dir"]) or values["output_dir"]
        return {name: _masked(name, _plain(value)) for name, value in values.items()}

    def to_json_string(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """`to_dict` and the batch sizes, with everything a tracker cannot take turned into text."""
        torch = sys.modules.get("torch")
        kept = (bool, int, float, str, *([torch.Tensor] if torch else []))
        values = self.to_dict()
        values |= {name: getattr(self, name) for name in ("train_batch_size", "eval_batch_size")}
        return {
            name: value if type(value) in kept else str(value) for name, value in values.items()
        }

    def __str__(self) -> str:
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        lines = [f"{name}={_masked(name, named[name])},\n" for name in sorted(named)]
        return f"{type(self).__name__}(\n{''.join(lines)})"

    __repr__ = __str__


def _masked(name: str, value: Any) -> Any:
    return f"<{name.upper()}>" if name.endswith("_token") else value


def _plain(value: Any) -> Any:
    """Convert enums, dtypes and configurations to plain values, nested ones too."""
    if isinstance(value, Enum):
        return value.value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return _dtype_name(value)
    if isinstance(value, dict):
        return {
            key: _dtype_name(item) if key == "dtype" else _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for method in ("to_dict", "to_json"):
        if hasattr(value, method) and not isinstance(value, type):
            return _plain(getattr(value, method)())
    return value


def _dtype_name(value: Any) -> Any:
    """Return the name of a dtype, such as "float16"."""
    return value if value is None or isinstance(value, str) else str(value).rpartition(".")[2]


@understand_old_names
@dataclass(repr=False)
class TrainingArguments(Setters, Serialization, ProcessView, NamesItsArguments):
    """As `transformers.TrainingArguments`: the same fields, in the same order, with the same
    defaults.

    Each field is described in the modules of this folder and in
    `dataclasses.fields(...)[i].metadata`. Arguments are converted and checked together, before
    anything is written. Fields may be changed later; their readers then check again
    (`rules.raise_for_problems`). A subclass that is a dataclass may add fields and change defaults;
    one with a `__post_init__` of its own must call this one.

    If a launcher such as torchrun started several processes, this one joins their process group
    here, so that scripts can use torch.distributed and `main_process_first` from then on.

    Raises:
        TypeError: Arguments that do not exist, all in one message and before any value is looked
            at; or values of the wrong type, and no other mistakes.
        ValueError: Invalid values; all in one message.
        NotImplementedError: Unsupported arguments, each with what to do instead.
        FileNotFoundError: The JSON file of `accelerator_config` or `fsdp_config` does not exist.
    """

    _VALID_DICT_FIELDS = [
        *("accelerator_config", "fsdp_config", "deepspeed"),
        *(
            "gradient_checkpointing_kwargs",
            "activation_checkpointing_kwargs",
            "lr_scheduler_kwargs",
            "parameter_rules",
        ),
    ]
    # Set by `derive`.
    _checkpointing = None
    # Read by scripts of the reference. There is no such plugin here.
    deepspeed_plugin = None
    hf_deepspeed_config = None  # that of `deepspeed`, where that is given
    fsdp_plugin_args = None

    def __post_init__(self) -> None:
        # Values: those of a trial, then those of the script, and those of the launcher where the
        # script has none.
        apply_trial(self)
        values, errors = read_fields(self)
        vars(self).update(values)
        apply_launcher(self)
        if self._from_launcher:
            values, more_errors = read_fields(self, self._from_launcher)
            vars(self).update(values)
            errors |= more_errors
        derive(self)
        for warning in report(
            self, {item.name: getattr(self, item.name) for item in fields(self)}, errors
        ):
            logger.warning(warning)

        # Effects on the process.
        join_others(*self._asked_of_process)
        if old_names.accepted():
            export_process(self)
        settings = settings_of(self) if self.fsdp else None
        export_loaders(None if settings is None else settings.cpu_ram_efficient_loading)
        if self.deepspeed or f"{__package__}.hf_deepspeed" in sys.modules:
            self._export_deepspeed()
        # As in the reference a compiled model uses TF32 unless `tf32` says otherwise: its products
        # take the most time.
        tf32 = self.tf32
        if tf32 is None and self.torch_compile and (self.bf16 or not self.fp16):
            tf32 = True
        if tf32 is not None and supports_tf32():
            set_tf32(tf32)
        note_applied(self)

    def _export_deepspeed(self) -> None:
        """Activate the DeepSpeed configuration for models of `transformers` loaded from now on."""
        from .hf_deepspeed import export_deepspeed, forget_arguments

        if self.deepspeed:
            export_deepspeed(self)
        else:
            forget_arguments()

    @property
    def train_batch_size(self) -> int:
        """Samples in one training batch of this process."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """Samples in one evaluation batch of this process."""
        return self.per_device_eval_batch_size

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """As the method of that name in the reference: optimizer steps of warm-up in a run of so
        many steps.
        """
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)


# Dataclasses gather fields from the last base to the first: those about generation come last, as
# documented.
@understand_old_names
@dataclass(repr=False)
class Seq2SeqTrainingArguments(GenerationArguments, TrainingArguments):
    """As `transformers.Seq2SeqTrainingArguments`, but `sortish_sampler` has an effect.

    The reference accepts `sortish_sampler` and never reads it. Here it does what its documentation
    says, for the training data of any kind that has a length: batches of samples of similar length,
    as with `train_sampling_strategy="group_by_length"`. Evaluation and prediction keep the order of
    their data.

    `generation_max_length`, `generation_num_beams` and `generation_config` are read where
    `predict_with_generate` is True. A `generation_config` may be an object such as
    `transformers.GenerationConfig`, a dict, a JSON file, the folder of a `generation_config.json`,
    or, for models that load theirs from the Hub, a name on the Hub; on a command line JSON text is
    a dict too. `Seq2SeqTrainer` reads and checks it when it is made.

    Raises:
        ValueError, TypeError, NotImplementedError, FileNotFoundError: See `TrainingArguments`.
    """

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "generation_config"]

    def to_dict(self) -> dict[str, Any]:
        """As `transformers.Seq2SeqTrainingArguments.to_dict`, but a path is text, and so always fit
        for JSON.

        Returns:
            All fields by name; `generation_config` as a dict where it is an object.
        """
        values = super().to_dict()
        config = values["generation_config"]
        if isinstance(config, os.PathLike):
            values["generation_config"] = os.fspath(config)
        elif hasattr(config, "__dict__"):
            values["generation_config"] = dict(vars(config))
        return values
