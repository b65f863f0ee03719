"""Values that a script records between two logs, and their means."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

RESERVED = frozenset(
    {"loss", "grad_norm", "learning_rate", "epoch", "step", "num_input_tokens_seen", "total_flos"}
)
"""Names of the Trainer's own logs."""

Sums = dict[str, tuple[float, float]]
"""The sum of weighted values and the sum of weights, by name."""


class RecordedValues:
    """Weighted means of the values of `Trainer.record`, summed on their device.

    Args:
        weigh: a batch -> its weight, a number or a scalar tensor.

    Attributes:
        batch: what is computed now, for `weigh`; None outside of a batch, where values weigh 1.
    """

    def __init__(self, weigh: Callable[[Any], Any]) -> None:
        self.weigh = weigh
        self.batch: Any = None
        self._sums: dict[str, tuple[Any, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add values, each with the weight of the current batch; nothing waits for the device.

        Raises:
            ValueError: a name is one of `RESERVED`, or a value is not a number.
        """
        scalars = {name: _scalar(name, value) for name, value in values.items()}
        weight = 1.0 if self.batch is None else self.weigh(self.batch)
        for name, value in scalars.items():
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + value * weight, weights + weight

    def state_dict(self) -> Sums:
        """Return the sums; this synchronises with the device."""
        return {
            name: (float(total), float(weights)) for name, (total, weights) in self._sums.items()
        }

    def load_state_dict(self, state: Sums) -> None:
        """Continue from a `state_dict`."""
        self._sums = dict(state)

    def take(self, gather: Callable[[Sums], Iterable[Sums]]) -> dict[str, float]:
        """Return the means, and start again.

        Args:
            gather: the sums of this process -> those of all processes.
        """
        sums = self.state_dict()
        self._sums = {}
        joined = joined_sums(gather(sums))
        return {
            name: total / weights if weights else float("nan")
            for name, (total, weights) in joined.items()
        }


def joined_sums(parts: Iterable[Sums]) -> Sums:
    """Return the sums of several processes as one."""
    joined: Sums = {}
    for part in parts:
        for name, (total, weights) in part.items():
            before = joined.get(name, (0.0, 0.0))
            joined[name] = before[0] + total, before[1] + weights
    return joined


_current: ContextVar[RecordedValues | None] = ContextVar("recorded_values", default=None)


@contextlib.contextmanager
def recording_into(values: RecordedValues) -> Iterator[None]:
    """Let `record` add to these values in the block."""
    token = _current.set(values)
    try:
        yield
    finally:
        _current.reset(token)


def record(values: Mapping[str, Any]) -> None:
    """Add to the values of the training, or of the evaluation inside of it, that is running.

    Raises:
        RuntimeError: nothing is running.
        ValueError: see `RecordedValues.add`.
    """
    current = _current.get()
    if current is None:
        raise RuntimeError(
            f"record({', '.join(values)}) outside of train(), evaluate() and predict(): use log() "
            "there."
        )
    current.add(values)


def _scalar(name: str, value: Any) -> Any:
    import torch  # not where callbacks are imported, as arguments import those

    if name in RESERVED:
        raise ValueError(
            f"record({name}=...): the Trainer logs {name!r} itself. Choose another name."
        )
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach().float().reshape(())
    if not isinstance(value, (int, float)):
        raise ValueError(
            f"record({name}={value!r:.80}) takes a number or a tensor with one element. Pass its "
            "mean."
        )
    return value
