"""Find the layer whose values become infinite or NaN, and report the passes before it."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

logger = logging.getLogger(__name__)

__all__ = ["DebugUnderflowOverflow", "Frame", "Reading"]


@dataclass(frozen=True)
class Reading:
    """Range of one tensor, or the kind of another value."""

    name: str
    """A parameter's name, `input[0]`, `input.mask` for a keyword, `output`, `output.logits` and the like."""
    low: float | None
    """Smallest absolute value; None if the value is no tensor, or has no elements."""
    high: float | None
    """Largest absolute value, NaN if one of the values is."""
    kind: str
    """Dtype of the tensor, or the type of another value."""
    counts: bool = True
    """False for keyword inputs, as masks among them hold infinities on purpose."""

    @property
    def at_fault(self) -> bool:
        """Return whether any element is infinite or NaN."""
        return self.counts and self.high is not None and not math.isfinite(self.high)

    def __str__(self) -> str:
        low, high = ("" if value is None else f"{value:.2e}" for value in (self.low, self.high))
        return f"{low:>9} {high:>9}  {self.name} ({self.kind})"


@dataclass(frozen=True)
class Frame:
    """One forward pass of one module: the ranges of its own weights, its inputs and its outputs."""

    batch: int
    module: str
    readings: tuple[Reading, ...]

    @property
    def faults(self) -> list[str]:
        """Return names of the readings with infinite or NaN elements."""
        return [reading.name for reading in self.readings if reading.at_fault]

    def __str__(self) -> str:
        return "\n".join([f"{'':21}{self.module}", *map(str, self.readings)])


class DebugUnderflowOverflow:
    """As `transformers.debug_utils.DebugUnderflowOverflow`, but it logs its report, and can be removed.

    It records the smallest and largest absolute value of each module's own weights, inputs and outputs in every forward
    pass. At the first infinite or NaN value the last passes are reported, to show where the numbers began to grow, and
    the run ends. The batches in `trace_batch_nums`
    are reported as they go by, and nothing in them ends the run. This reads from the device at every module: leave it
    out again when the fault is found.

    Args:
        model: the model; a batch is one forward pass of it.
        max_frames_to_save: how many passes of modules a report has.
        trace_batch_nums: batches, from 0, to report in full.
        abort_after_batch_num: the last batch, from 0; after it the run ends.

    Raises:
        ValueError: by the forward pass that went wrong, or after the last batch.
    """

    def __init__(
        self,
        model: nn.Module,
        max_frames_to_save: int = 21,
        trace_batch_nums: list[int] | None = None,
        abort_after_batch_num: int | None = None,
    ) -> None:
        if max_frames_to_save < 1:
            raise ValueError(
                f"max_frames_to_save={max_frames_to_save} must be at least 1: a report has to show the fault."
            )
        self.model = model
        self.trace_batch_nums = list(trace_batch_nums or ())
        self.abort_after_batch_num = abort_after_batch_num
        self.frames: deque[Frame] = deque(maxlen=max_frames_to_save)
        self.batch_number = 0
        """Number of complete batches."""
        self._names = {module: name or "the whole model" for name, module in model.named_modules()}
        self._handles = [module.register_forward_hook(self._look, with_kwargs=True) for module in self._names]

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
        """Return the frames that are kept, the newest at the end."""
        return "\n".join([f"{'abs min':>9} {'abs max':>9}", *map(str, self.frames)])

    def _look(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        title = f"{self._names[module]}, {type(module).__name__}"
        frame = Frame(self.batch_number, title, _read(module, args, kwargs, output))
        self.frames.append(frame)
        if frame.batch in self.trace_batch_nums:
            logger.warning("Batch %s\n%s", frame.batch, frame)
        elif frame.faults:
            self._end_with(frame)
        if module is self.model:
            self.batch_number += 1
            self._end_after_last_batch()

    def _end_with(self, frame: Frame) -> None:
        logger.error(
            "Infinite or NaN values in batch %s. The last %s forward passes:\n%s",
            frame.batch,
            len(self.frames),
            self.report(),
        )
        raise ValueError(
            f"DebugUnderflowOverflow: inf or NaN in {', '.join(frame.faults)} of {frame.module} (batch {frame.batch}). "
            "The forward passes before it are in the log above. Compute this layer in float32, train with bf16 in the "
            "place of fp16, or lower what grows: the learning rate, or the inputs."
        )

    def _end_after_last_batch(self) -> None:
        last = self.abort_after_batch_num
        if last is not None and self.batch_number > last:
            raise ValueError(f"DebugUnderflowOverflow: batch {last} is done, and abort_after_batch_num={last}.")


def _read(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> tuple[Reading, ...]:
    found: list[tuple[str, Any, bool]] = [(name, value, True) for name, value in module.named_parameters(recurse=False)]
    for index, value in enumerate(args):
        found += [(name, leaf, True) for name, leaf in _leaves(f"input[{index}]", value)]
    for key, value in kwargs.items():
        found += [(name, leaf, False) for name, leaf in _leaves(f"input.{key}", value)]
    found += [(name, leaf, True) for name, leaf in _leaves("output", output)]
    ranges = iter(_ranges([leaf for _, leaf, _ in found if _has_range(leaf)]))
    readings = []
    for name, leaf, counts in found:
        low, high = next(ranges) if _has_range(leaf) else (None, None)
        readings.append(Reading(name, low, high, _kind(leaf), counts))
    return tuple(readings)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested tuples, lists and mappings with their paths."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(f"{name}.{key}", part)
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from _leaves(f"{name}[{index}]", part)
    else:
        yield name, value


def _ranges(tensors: list[torch.Tensor]) -> list[list[float]]:
    """Return smallest and largest absolute value of each, with one device synchronisation."""
    if not tensors:
        return []
    exact = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    sizes = [_size(tensor) for tensor in tensors]
    pairs = [torch.stack((size.amin(), size.amax())).to(tensors[0].device, exact) for size in sizes]
    return torch.stack(pairs).tolist()


def _size(tensor: torch.Tensor) -> torch.Tensor:
    """Return the absolute values, in a dtype that can be compared."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return tensor.abs()
    if not tensor.is_floating_point():
        return tensor.to(torch.int64).abs()
    return (tensor.float() if tensor.itemsize < 2 else tensor).abs()


def _has_range(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.numel() > 0 and leaf.layout is torch.strided


def _kind(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return "None" if leaf is None else f"{type(leaf).__name__}, no tensor"
    form = str(leaf.dtype).removeprefix("torch.")
    if leaf.layout is not torch.strided:
        return f"{form}, not dense"
    return form if leaf.numel() else f"{form}, empty"
