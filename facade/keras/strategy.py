"""`args.strategy` of a `TFTrainer`: the part of a `tf.distribute.Strategy` that scripts use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...lightning_modules.common.libraries import loaded

_Result = TypeVar("_Result")

_KERAS_POLICIES = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}
"""Keras's policy for each mixed precision of the arguments."""


class Strategy:
    """The part of a `tf.distribute.Strategy` that scripts use.

    Args:
        replicas: number of processes that train together.
        precision: "no", "fp16" or "bf16".
    """

    def __init__(self, replicas: int, precision: str = "no") -> None:
        self.num_replicas_in_sync = replicas
        self.precision = precision

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create Keras models in the block with the mixed precision of the arguments."""
        policy = _KERAS_POLICIES.get(self.precision)
        with contextlib.ExitStack() as policies:
            for package in ("keras", "tf_keras"):
                keras = loaded(package)
                if keras is not None and policy is not None:
                    policies.enter_context(_keras_policy(keras, policy))
            yield

    def run(
        self,
        fn: Callable[..., _Result],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> _Result:
        """Call a function in this process, which is one replica."""
        return fn(*args, **(kwargs or {}))

    def experimental_distribute_dataset(self, dataset: _Result) -> _Result:
        """Return the dataset; each process selects its rows of each batch when it reads."""
        return dataset


@contextlib.contextmanager
def _keras_policy(keras: Any, policy: str) -> Iterator[None]:
    """Set the mixed precision policy of Keras 3 or 2 in the block."""
    mixed_precision = keras.mixed_precision
    if hasattr(mixed_precision, "dtype_policy"):
        get_policy = mixed_precision.dtype_policy
        set_policy = mixed_precision.set_dtype_policy
    else:
        get_policy = mixed_precision.global_policy
        set_policy = mixed_precision.set_global_policy

    previous_policy = get_policy()
    set_policy(policy)
    try:
        yield
    finally:
        set_policy(previous_policy)
