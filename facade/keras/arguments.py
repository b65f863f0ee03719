"""`TFTrainingArguments`: the arguments of the Trainer that apply to Keras models."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from ...lightning_modules.common.enums import SchedulerType
from ..arguments import TrainingArguments
from ..arguments.rules import raise_unsupported
from ..arguments.unknown import understand_old_names
from .strategy import Strategy

_NOT_SHARDED = "Keras models are trained whole in each process; remove it"
_TORCH_LAYERS = "it changes layers of torch; remove it"
_XLA_LAUNCHER = (
    "start the script with the launcher of torch_xla, which finds the TPU, and remove it"
)

UNSUPPORTED: dict[str, str] = {
    "activation_checkpointing": "make the layers in keras.RematScope()",
    "auto_find_batch_size": "set per_device_train_batch_size to what fits into memory",
    "bf16_full_eval": "bf16=True evaluates in bfloat16 too",
    "debug": _TORCH_LAYERS,
    "deepspeed": _NOT_SHARDED,
    "fp16_full_eval": "fp16=True evaluates in float16 too",
    "fsdp": _NOT_SHARDED,
    "gcp_project": _XLA_LAUNCHER,
    "gradient_checkpointing": "make the layers in keras.RematScope()",
    "include_num_input_tokens_seen": "count tokens in run_model",
    "label_smoothing_factor": (
        "give it to the loss, e.g. keras.losses.CategoricalCrossentropy(label_smoothing=...)"
    ),
    "neftune_noise_alpha": "add a keras.layers.GaussianNoise",
    "parallelism_config": _NOT_SHARDED,
    "torch_compile": _TORCH_LAYERS,
    "tpu_name": _XLA_LAUNCHER,
    "tpu_zone": _XLA_LAUNCHER,
    "use_liger_kernel": _TORCH_LAYERS,
}
"""Arguments that Keras models do not support, each with what to do instead."""


@understand_old_names
@dataclass(repr=False)
class TFTrainingArguments(TrainingArguments):
    """Hold the arguments of a `TFTrainer`.

    Works like `transformers.TFTrainingArguments` of versions 3 and 4, but is a subclass of our
    `TrainingArguments`.

    `max_grad_norm` limits each value of a gradient, but as in the original only if gradients are
    accumulated. `fp16` and `bf16` set the mixed precision of torch, and that of Keras for models
    created in `strategy.scope()`. Each process is one replica.

    Raises:
        NotImplementedError: Keras models do not support some arguments; the message names all of
            them.
        ValueError: a value is invalid, see `TrainingArguments`.
        TypeError: a value has another type, see `TrainingArguments`.
    """

    tpu_name: str | None = field(
        default=None, metadata={"help": "Not supported: the launcher of a TPU has its name."}
    )
    tpu_zone: str | None = field(default=None, metadata={"help": "Not supported: zone of a TPU."})
    gcp_project: str | None = field(
        default=None, metadata={"help": "Not supported: cloud project of a TPU."}
    )
    poly_power: float = field(
        default=1.0, metadata={"help": "Power of the polynomial decay of the learning rate."}
    )
    xla: bool = field(
        default=False,
        metadata={"help": "Let TensorFlow compile models that compute in it, with XLA."},
    )

    _is_of_one_process = False
    """True if the batch sizes are those of one process, as the engine needs them; False if they are
    those of all replicas.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    def check(self) -> None:
        """Check the arguments; called again before each training, because they may have changed.

        Raises:
            NotImplementedError: as in the class.
            ValueError: `poly_power` is not a positive number, or has no effect on the schedule.
        """
        problems: list[str] = []
        for name, instead in UNSUPPORTED.items():
            value = getattr(self, name)
            default = self.__dataclass_fields__[name].default
            if value not in (default, None, False, [], "", "no"):
                problems.append(f"{name}={value!r}: {instead}")
        raise_unsupported(problems + self._problems_of_data())

        power = self.poly_power
        is_number = isinstance(power, (int, float)) and not isinstance(power, bool)
        if not is_number or power <= 0:
            raise ValueError(
                f"poly_power={power!r} must be a number above 0; 1.0 is a linear decay."
            )
        schedule = SchedulerType(self.lr_scheduler_type)
        if power != 1.0 and schedule is not SchedulerType.LINEAR:
            raise ValueError(
                f"poly_power={power} has no effect on lr_scheduler_type={schedule.value!r}. Remove "
                "one of them."
            )

    def _problems_of_data(self) -> list[str]:
        """Return messages about data arguments that Keras models do not support."""
        problems: list[str] = []
        for name in ("split_batches", "dispatch_batches"):
            value = getattr(self.accelerator_config, name, None)
            if value:
                problems.append(
                    f"accelerator_config: {name}={value!r}: each process reads its own share; "
                    "remove it"
                )
        order = self.train_sampling_strategy
        if order in ("group_by_length", "token_budget"):
            problems.append(
                f"train_sampling_strategy={order!r}: make batches of one length in "
                "get_train_tfdataset"
            )
        if "inputs" in self.include_for_metrics:
            problems.append(
                "include_for_metrics=['inputs']: compute_metrics gets predictions and labels"
            )
        return problems

    @property
    def strategy(self) -> Strategy:
        """Return the part of a `tf.distribute.Strategy` that scripts use."""
        return Strategy(self.n_replicas, self.mixed_precision)

    @property
    def n_replicas(self) -> int:
        """Return the number of processes that train together; each process is a replica."""
        return max(self.world_size, 1)

    @property
    def n_gpu(self) -> int:
        """Return the number of replicas; like the original, even on a CPU."""
        if self._is_of_one_process:
            return super().n_gpu
        return self.n_replicas

    @property
    def train_batch_size(self) -> int:
        """Return the number of samples in one training batch of all replicas."""
        return self.per_device_train_batch_size * self._batch_shares

    @property
    def eval_batch_size(self) -> int:
        """Return the number of samples in one evaluation batch of all replicas."""
        return self.per_device_eval_batch_size * self._batch_shares

    @property
    def _batch_shares(self) -> int:
        """Return the number of processes that share a batch."""
        if self._is_of_one_process:
            return 1
        return self.n_replicas

    def of_one_process(self) -> TFTrainingArguments:
        """Return a copy for the engine, whose batch sizes are those of one process."""
        # The engine's batches are dicts with "features" and "labels", of which none may be removed.
        args = copy.copy(self)
        args._is_of_one_process = True
        args.remove_unused_columns = False
        args.label_names = ["labels"]
        if args.poly_power != 1.0:
            args.lr_scheduler_type = SchedulerType.POLYNOMIAL
            args.lr_scheduler_kwargs = {"lr_end": 0.0, "power": args.poly_power}
        return args
