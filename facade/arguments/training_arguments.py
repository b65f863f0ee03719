"""The class that users fill in."""

import math
import os
from dataclasses import dataclass

from ..distributed.process import join_others, launched_world_size
from .accelerate_state import export_process
from .coercion import coerce
from .data_rules import warn_of_dealing
from .deepspeed_config import tell_models
from .hardware import set_tf32, supports_tf32
from .loading_variables import export_loaders
from .old_names import OldAttributes
from .packages import require_packages
from .process_view import ProcessView
from .serialization import Serialization
from .setters import Setters
from .sharding_rules import loads_weights_once, warn_of_sharding
from .support import raise_for_unsupported
from .unknown import understand_old_names
from .validation import raise_for_problems


@understand_old_names
@dataclass(repr=False)
class TrainingArguments(Setters, Serialization, ProcessView, OldAttributes):
    """As `transformers.TrainingArguments`: the same fields, in the same order, with the same defaults.

    Each field is described beside itself, in the modules of this folder and in `dataclasses.fields(...)[i].metadata`.
    What was passed is brought into one form and checked, all of it at once, before anything is written. Fields may be
    changed later; whoever reads them then checks again (`validation.problems`, `support.unsupported`). A subclass that
    is a dataclass may add fields and change defaults; one with a `__post_init__` of its own must call this one.

    Where a launcher such as torchrun started several processes, this one joins their process group here, so that
    scripts can use torch.distributed and `main_process_first` from then on.

    Raises:
        ValueError: Values that cannot be; all of them in one message.
        TypeError: Values of the wrong type and nothing else, or an argument that does not exist.
        NotImplementedError: Arguments whose effect is not there yet, each with what to do instead.
        ImportError: There are several processes, and a package that they need is not installed.
        FileNotFoundError: The JSON file of `accelerator_config` or `fsdp_config` does not exist.
    """

    _VALID_DICT_FIELDS = [
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "gradient_checkpointing_kwargs",
        "activation_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]
    # What `accelerate launch` asks for; used where neither fp16 nor bf16 is set.
    _launcher_precision = "no"
    # What `checkpointing.agree` came to.
    _checkpointing = None
    # Read by scripts of the reference. There is no such plugin here.
    deepspeed_plugin = None
    hf_deepspeed_config = None  # that of `deepspeed`, where that is given
    fsdp_plugin_args = None

    def __post_init__(self) -> None:
        if "LIGHTRAINER_TRIAL" in os.environ:  # this script is a trial of a sweep
            from ..search.child import apply_values

            apply_values(self)
        coerce(self, self._VALID_DICT_FIELDS)
        raise_for_problems(self)
        raise_for_unsupported(self)
        warn_of_sharding(self)
        warn_of_dealing(self)
        self._launcher_precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if launched_world_size() > 1:
            require_packages(self)
        join_others(*self._asked_of_process)
        export_process(self)
        export_loaders(loads_weights_once(self))
        tell_models(self)
        if self.tf32 is not None and supports_tf32():
            set_tf32(self.tf32)

    @property
    def train_batch_size(self) -> int:
        """Samples in one training batch of this process."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """Samples in one evaluation batch of this process."""
        return self.per_device_eval_batch_size

    @property
    def mixed_precision(self) -> str:
        """As the attribute of that name in the reference, but it follows `fp16` and `bf16`: "no", "fp16" or "bf16"."""
        if self.fp16:
            return "fp16"
        return "bf16" if self.bf16 else self._launcher_precision

    @mixed_precision.setter
    def mixed_precision(self, value: str) -> None:
        if value not in ("no", "fp16", "bf16"):
            raise ValueError(f"mixed_precision={value!r} is not known. Choose from: no, fp16, bf16.")
        self.fp16, self.bf16, self._launcher_precision = value == "fp16", value == "bf16", "no"

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """As the method of that name in the reference: optimizer steps of warm-up in a run of so many steps."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)
