"""Values that a script records between two logs, and their means."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

RESERVED = frozenset(
    {"loss", "grad_norm", "learning_rate", "epoch", "step", "num_input_tokens_seen", "total_flos"}
)
"""Names of the Trainer's own logs."""

Sums = dict[str, tuple[float, float]]
"""The sum of weighted values and the sum of weights, by name."""

_Scalar: TypeAlias = "float | torch.Tensor"


class RecordedValues:
    """Weighted means of the values of `Trainer.record`, summed on their device.

    Args:
        weigh: a batch -> its weight, a number or a scalar tensor.

    Attributes:
        sums: weighted values and weights since the last `take`, by name.
        batch: the batch that is being computed, for `weigh`. None outside of batches, where values
            have the weight 1.
        before_step: the sums when the current step began.
    """

    def __init__(self, weigh: Callable[[Any], Any]) -> None:
        self.weigh = weigh
        self.batch: Any = None
        self.sums: dict[str, tuple[_Scalar, _Scalar]] = {}
        self.before_step: dict[str, tuple[_Scalar, _Scalar]] = {}

    def __bool__(self) -> bool:
        return bool(self.sums)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add values with the weight of the current batch, without synchronizing the device.

        Raises:
            ValueError: a name is one of `RESERVED`, or a value is not a number.
        """
        # All values are checked before one is added.
        scalars = {name: _scalar(name, value) for name, value in values.items()}

        weight = 1.0 if self.batch is None else self.weigh(self.batch)
        for name, value in scalars.items():
            total, total_weight = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (total + value * weight, total_weight + weight)

    def state_dict(self, *, is_step_done: bool = True) -> Sums:
        """Return the sums; this synchronizes the device.

        Args:
            is_step_done: the current step is finished; otherwise its values are left out.
        """
        sums: Sums = {}
        counted = self.before_step
        if is_step_done:
            counted = self.sums
        for name, (total, total_weight) in counted.items():
            sums[name] = (float(total), float(total_weight))
        return sums

    def load_state_dict(self, state: Sums) -> None:
        """Continue from a `state_dict`."""
        self.sums = dict(state)

    def take(self, gather: Callable[[Sums], Iterable[Sums]]) -> dict[str, float]:
        """Return the means over all processes, and start again.

        Args:
            gather: the sums of this process -> the sums of each process.
        """
        sums = self.state_dict()
        self.sums = {}
        means: dict[str, float] = {}
        for name, (total, total_weight) in joined_sums(gather(sums)).items():
            means[name] = total / total_weight if total_weight else float("nan")
        return means


def joined_sums(sums_of_processes: Iterable[Sums]) -> Sums:
    """Return the sums of several processes as one."""
    joined: Sums = {}
    for sums in sums_of_processes:
        for name, (total, total_weight) in sums.items():
            joined_total, joined_weight = joined.get(name, (0.0, 0.0))
            joined[name] = (joined_total + total, joined_weight + total_weight)
    return joined


_current: ContextVar[RecordedValues | None] = ContextVar("recorded_values", default=None)


@contextlib.contextmanager
def recording_into(values: RecordedValues) -> Generator[None]:
    """Let `record` add to these values in the block."""
    token = _current.set(values)
    try:
        yield
    finally:
        _current.reset(token)


def record(values: Mapping[str, object]) -> None:
    """Add to the values of the running training, or of the evaluation that runs in it.

    Raises:
        RuntimeError: nothing is running.
        ValueError: see `RecordedValues.add`.
    """
    current = _current.get()
    if current is None:
        raise RuntimeError(
            f"record({', '.join(values)}) was called outside of train(), evaluate() and predict(). "
            "Use log() there."
        )
    current.add(values)


def _scalar(name: str, value: object) -> _Scalar:
    """Return a value as a number or a scalar tensor in float32.

    Raises:
        ValueError: the name is one of `RESERVED`, or the value is not a number.
    """
    # Imported here, since the arguments import callbacks, and must not import torch.
    import torch

    if name in RESERVED:
        raise ValueError(
            f"record({name}=...): the Trainer logs {name!r} itself. Choose another name."
        )
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach().float().reshape(())
    if not isinstance(value, (int, float)):
        raise ValueError(
            f"record({name}={value!r:.80}) needs a number or a tensor with one element. Pass its "
            "mean."
        )
    return value
