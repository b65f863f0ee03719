"""Find the module whose values become infinite or NaN first."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

logger = logging.getLogger(__name__)


class ValueRange(NamedTuple):
    """The smallest and the largest absolute value of a tensor."""

    low: float
    high: float


@dataclass(frozen=True)
class Frame:
    """Value ranges of the weights, inputs and outputs in one forward pass of a module."""

    batch: int
    """Number of the batch, from 0."""
    module: str
    """Name and class of the module."""
    ranges: dict[str, ValueRange]
    """The ranges of tensors by name.

    A name is that of a parameter, `input[0]`, `input.mask` for a keyword argument, or `output`.
    """

    @property
    def faults(self) -> list[str]:
        """Return the names of tensors with infinite or NaN elements.

        Keyword arguments are omitted, because masks have infinite elements.
        """
        names: list[str] = []
        for name, value_range in self.ranges.items():
            if not math.isfinite(value_range.high) and not name.startswith("input."):
                names.append(name)
        return names

    def __str__(self) -> str:
        lines = [f"{low:>9.2e} {high:>9.2e}  {name}" for name, (low, high) in self.ranges.items()]
        return "\n".join([f"{'':21}{self.module}", *lines])


class DebugUnderflowOverflow:
    """Find the module whose values become infinite or NaN first, and stop the run there.

    Works like `transformers.debug_utils.DebugUnderflowOverflow`, but logs, and can be removed.

    Records the smallest and largest absolute values of each module's weights, inputs and outputs in
    every forward pass. At the first infinite or NaN value, it logs the last passes, which show
    where values began to grow, and stops the run. The batches in `trace_batch_nums` are logged
    completely, and do not stop the run. Each module synchronises with the device, so remove this
    object after debugging.

    Args:
        model: the model. Each forward pass of it counts as a batch.
        max_frames_to_save: maximum number of module forward passes in a report.
        trace_batch_nums: numbers, from 0, of the batches to log completely.
        abort_after_batch_num: number, from 0, of the batch after which the run stops.

    Raises:
        ValueError: in the forward pass with the infinite or NaN value, or after the last batch.
    """

    def __init__(
        self,
        model: nn.Module,
        max_frames_to_save: int = 21,
        trace_batch_nums: list[int] | None = None,
        abort_after_batch_num: int | None = None,
    ) -> None:
        self.model = model
        self.trace_batch_nums = list(trace_batch_nums or ())
        self.abort_after_batch_num = abort_after_batch_num
        self.frames: deque[Frame] = deque(maxlen=max_frames_to_save)
        self.batch_number = 0
        """Number of complete batches."""
        self._names: dict[nn.Module, str] = {}
        self._handles: list[RemovableHandle] = []
        for name, module in model.named_modules():
            self._names[module] = name or "the whole model"
            handle = module.register_forward_hook(self._record_pass, with_kwargs=True)
            self._handles.append(handle)

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> DebugUnderflowOverflow:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def report(self) -> str:
        """Return the recorded frames, the newest at the end."""
        return "\n".join([f"{'abs min':>9} {'abs max':>9}", *map(str, self.frames)])

    def _record_pass(
        self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: object
    ) -> None:
        """Forward hook of every module: record the pass, and stop the run at invalid values."""
        tensors: dict[str, torch.Tensor] = dict(module.named_parameters(recurse=False))
        tensors.update(_named_tensors("input", tuple(args)))
        tensors.update(_named_tensors("input", kwargs))
        tensors.update(_named_tensors("output", output))
        title = f"{self._names[module]}, {type(module).__name__}"
        ranges = {name: _range(tensor) for name, tensor in tensors.items()}
        frame = Frame(self.batch_number, title, ranges)
        self.frames.append(frame)

        if frame.batch in self.trace_batch_nums:
            logger.warning("Batch %s\n%s", frame.batch, frame)
        elif frame.faults:
            self._raise_fault(frame)
        if module is self.model:
            self._end_batch()

    def _end_batch(self) -> None:
        """Count a batch, and stop the run after the last one."""
        self.batch_number += 1
        last = self.abort_after_batch_num
        if last is not None and self.batch_number > last:
            raise ValueError(
                f"DebugUnderflowOverflow: the run ends after batch {last}, as "
                f"abort_after_batch_num={last}. Remove the argument to continue."
            )

    def _raise_fault(self, frame: Frame) -> NoReturn:
        """Log the last frames, and raise an error for the newest one."""
        logger.error(
            "Inf or NaN in batch %s. The last %s forward passes:\n%s",
            frame.batch,
            len(self.frames),
            self.report(),
        )
        raise ValueError(
            f"DebugUnderflowOverflow: inf or NaN in {', '.join(frame.faults)} of {frame.module} "
            f"(batch {frame.batch}), see the log above. Compute this layer in float32, use bf16 "
            "instead of fp16, or lower the learning rate."
        )


def _named_tensors(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dense tensors in nested tuples, lists and mappings, with their paths.

    Empty tensors, which have no range, are skipped.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _named_tensors(f"{name}.{key}", part)
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from _named_tensors(f"{name}[{index}]", part)
    elif isinstance(value, torch.Tensor) and value.numel() and value.layout is torch.strided:
        yield name, value


def _range(tensor: torch.Tensor) -> ValueRange:
    """Return the range of the absolute values of a tensor."""
    values = tensor.detach()
    # torch lacks some of these operations for integers, booleans and 8-bit floating point numbers.
    is_wide_float = values.is_floating_point() and values.itemsize > 1
    if not values.is_complex() and not is_wide_float:
        values = values.float()
    # Read both numbers from the device in one transfer.
    return ValueRange(*torch.stack(torch.aminmax(values.abs())).tolist())
