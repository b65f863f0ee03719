"""`TFTrainingArguments`: the arguments of the Trainer that apply to Keras models, and their
`strategy`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...lightning_modules.common.libraries import loaded
from ...lightning_modules.common.suggestions import SchedulerType
from ..arguments import TrainingArguments
from ..arguments.rules import raise_unsupported
from ..arguments.unknown import understand_old_names

_POLICIES = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}


class Strategy:
    """As the `tf.distribute.Strategy` of `TFTrainingArguments.strategy`, as far as scripts call it.

    Args:
        replicas: processes that train together.
        precision: "no", "fp16" or "bf16".
    """

    def __init__(self, replicas: int, precision: str = "no") -> None:
        self.num_replicas_in_sync, self.precision = replicas, precision

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Have Keras models that are made in the block compute in the mixed precision of the
        arguments.
        """
        with contextlib.ExitStack() as policies:
            for name in ("keras", "tf_keras") if self.precision in _POLICIES else ():
                if keras := loaded(name):
                    policies.enter_context(_policy(keras, _POLICIES[self.precision]))
            yield

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function: this process is one replica."""
        return fn(*args, **(kwargs or {}))

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        """Return the dataset; each process takes its own rows of each batch when it reads."""
        return dataset


@contextlib.contextmanager
def _policy(keras: Any, name: str) -> Iterator[None]:
    mixed_precision = keras.mixed_precision
    get = getattr(mixed_precision, "dtype_policy", None) or mixed_precision.global_policy
    put = getattr(mixed_precision, "set_dtype_policy", None) or mixed_precision.set_global_policy
    before = get()
    put(name)
    try:
        yield
    finally:
        put(before)


_WHOLE = "Keras models are trained whole in each process; leave it out"
_LAYERS = "it changes layers of torch; leave it out"
_LAUNCHER = "start the script with the launcher of torch_xla, which knows the TPU, and leave it out"

UNSUPPORTED: dict[str, str] = {
    "activation_checkpointing": "make the layers in keras.RematScope()",
    "auto_find_batch_size": "set per_device_train_batch_size to what fits into memory",
    "bf16_full_eval": "bf16=True evaluates in bfloat16 too",
    "debug": _LAYERS,
    "deepspeed": _WHOLE,
    "fp16_full_eval": "fp16=True evaluates in float16 too",
    "fsdp": _WHOLE,
    "gcp_project": _LAUNCHER,
    "gradient_checkpointing": "make the layers in keras.RematScope()",
    "include_num_input_tokens_seen": "count tokens in run_model",
    "label_smoothing_factor": (
        "give it to the loss, e.g. keras.losses.CategoricalCrossentropy(label_smoothing=...)"
    ),
    "neftune_noise_alpha": "add a keras.layers.GaussianNoise",
    "parallelism_config": _WHOLE,
    "torch_compile": _LAYERS,
    "tpu_name": _LAUNCHER,
    "tpu_zone": _LAUNCHER,
    "use_liger_kernel": _LAYERS,
}
"""Arguments of which only the default has an effect here, each with what to do instead."""


@understand_old_names
@dataclass(repr=False)
class TFTrainingArguments(TrainingArguments):
    """As `transformers.TFTrainingArguments` of versions 3 and 4, on top of the `TrainingArguments`
    here.

    `max_grad_norm` is what each value of a gradient is clipped to, and only where gradients are
    accumulated, as in the original. `fp16` and `bf16` are the mixed precision of torch, and that of
    Keras for models made in `strategy.scope()`. With several processes one process is one replica.

    Raises:
        NotImplementedError: an argument that has no effect on Keras models; names all of them.
        ValueError, TypeError: see `TrainingArguments`.
    """

    tpu_name: str | None = field(
        default=None, metadata={"help": "Name of a TPU; refused, its launcher knows it."}
    )
    tpu_zone: str | None = field(default=None, metadata={"help": "Zone of a TPU; refused."})
    gcp_project: str | None = field(
        default=None, metadata={"help": "Cloud project of a TPU; refused."}
    )
    poly_power: float = field(
        default=1.0, metadata={"help": "Power of the polynomial decay of the learning rate."}
    )
    xla: bool = field(
        default=False,
        metadata={"help": "Let TensorFlow compile models that compute in it, with XLA."},
    )

    _is_of_one_process = False
    """Batch sizes are those of one process, as the engine counts, and not of all replicas."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    def check(self) -> None:
        """Look at all that Keras models have no use for, once more: arguments may be changed.

        Raises:
            NotImplementedError: see the class.
            ValueError: `poly_power` is no power, or has no schedule.
        """
        defaults = {name: kind.default for name, kind in self.__dataclass_fields__.items()}
        raise_unsupported(
            [
                f"{name}={getattr(self, name)!r}: {instead}"
                for name, instead in UNSUPPORTED.items()
                if getattr(self, name) not in (defaults[name], None, False, [], "", "no")
            ]
            + self._of_the_data()
        )
        if (
            isinstance(self.poly_power, bool)
            or not isinstance(self.poly_power, (int, float))
            or self.poly_power <= 0
        ):
            raise ValueError(
                f"poly_power={self.poly_power!r} must be a number above 0; 1.0 is a straight line."
            )
        if (
            self.poly_power != 1.0
            and SchedulerType(self.lr_scheduler_type) is not SchedulerType.LINEAR
        ):
            other = (
                f"lr_scheduler_type={SchedulerType(self.lr_scheduler_type).value!r} asks for "
                "another schedule"
            )
            raise ValueError(f"poly_power={self.poly_power}, but {other}. Leave one of them out.")

    def _of_the_data(self) -> list[str]:
        config: Any = self.accelerator_config
        said = [
            f"accelerator_config: {name}={getattr(config, name)!r}: each process reads its own "
            "share; leave it out"
            for name in ("split_batches", "dispatch_batches")
            if getattr(config, name, None)
        ]
        if self.train_sampling_strategy in ("group_by_length", "batch_rebalance", "token_budget"):
            order = self.train_sampling_strategy
            said.append(
                f"train_sampling_strategy={order!r}: make batches of one length in "
                "get_train_tfdataset"
            )
        if "inputs" in self.include_for_metrics:
            said.append(
                "include_for_metrics=['inputs']: compute_metrics gets predictions and labels"
            )
        return said

    @property
    def strategy(self) -> Strategy:
        """Return the part of a `tf.distribute.Strategy` that scripts use."""
        return Strategy(self.n_replicas, self.mixed_precision)

    @property
    def n_replicas(self) -> int:
        """How many processes train together, each of them one replica."""
        return max(self.world_size, 1)

    @property
    def n_gpu(self) -> int:
        """As in the original the number of replicas, also on the CPU."""
        return super().n_gpu if self._is_of_one_process else self.n_replicas

    @property
    def train_batch_size(self) -> int:
        """Samples in one training batch of all replicas."""
        return self.per_device_train_batch_size * self._shares

    @property
    def eval_batch_size(self) -> int:
        """Samples in one evaluation batch of all replicas."""
        return self.per_device_eval_batch_size * self._shares

    @property
    def _shares(self) -> int:
        return 1 if self._is_of_one_process else self.n_replicas

    def of_one_process(self) -> TFTrainingArguments:
        """Return a copy in the words of the engine: batch sizes of one process, batches of
        features and labels.
        """
        made = copy.copy(self)
        made._is_of_one_process = True
        made.remove_unused_columns = False
        made.label_names = ["labels"]
        if made.poly_power != 1.0:
            made.lr_scheduler_type = SchedulerType.POLYNOMIAL
            made.lr_scheduler_kwargs = {"lr_end": 0.0, "power": made.poly_power}
        return made
