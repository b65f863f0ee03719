"""What scripts use of a `tf.distribute.Strategy`; it is Lightning that distributes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...lightning_modules.common.libraries import loaded

_POLICIES = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}


class Strategy:
    """As the `tf.distribute.Strategy` of `TFTrainingArguments.strategy`, as far as scripts call it.

    Args:
        replicas: processes that train together.
        precision: "no", "fp16" or "bf16".
    """

    def __init__(self, replicas: int, precision: str = "no") -> None:
        self.num_replicas_in_sync = replicas
        self.precision = precision

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Have Keras models that are made in the block compute in the mixed precision of the arguments."""
        with contextlib.ExitStack() as policies:
            for name in ("keras", "tf_keras") if self.precision in _POLICIES else ():
                if keras := loaded(name):
                    policies.enter_context(_policy(keras, _POLICIES[self.precision]))
            yield

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call a function: this process is one replica."""
        return fn(*args, **(kwargs or {}))

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        """Return the dataset: whoever reads it takes the rows of this process from each batch."""
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
