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


@dataclass(frozen=True)
class Frame:
    """One forward pass of one module: the ranges of its own weights, its inputs and its outputs."""

    batch: int
    module: str
    ranges: dict[str, tuple[float, float]]
    """Smallest and largest absolute value by name: a parameter, `input[0]`, `input.mask` for a
    keyword, `output`.
    """

    @property
    def faults(self) -> list[str]:
        """Return the names with infinite or NaN elements; not of inputs by keyword, such as
        masks, which may be so.
        """
        return [
            n
            for n, (_, high) in self.ranges.items()
            if not math.isfinite(high) and not n.startswith("input.")
        ]

    def __str__(self) -> str:
        lines = [f"{low:>9.2e} {high:>9.2e}  {name}" for name, (low, high) in self.ranges.items()]
        return "\n".join([f"{'':21}{self.module}", *lines])


class DebugUnderflowOverflow:
    """As `transformers.debug_utils.DebugUnderflowOverflow`, but it logs its report, and can be
    removed.

    It records the smallest and largest absolute value of each module's own weights, inputs and
    outputs in every forward pass. At the first infinite or NaN value the last passes are reported,
    to show where the numbers began to grow, and the run ends. The batches in `trace_batch_nums`
    are reported as they go by, and nothing in them ends the run. This reads from the device at
    every module: leave it out again when the fault is found.

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
        self.model = model
        self.trace_batch_nums = list(trace_batch_nums or ())
        self.abort_after_batch_num = abort_after_batch_num
        self.frames: deque[Frame] = deque(maxlen=max_frames_to_save)
        self.batch_number = 0
        """Number of complete batches."""
        self._names = {module: name or "the whole model" for name, module in model.named_modules()}
        self._handles = [
            module.register_forward_hook(self._look, with_kwargs=True) for module in self._names
        ]

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
        values: dict[str, torch.Tensor] = {**dict(module.named_parameters(recurse=False))}
        for name, value in (("input", tuple(args)), ("input", kwargs), ("output", output)):
            values.update(_leaves(name, value))
        title = f"{self._names[module]}, {type(module).__name__}"
        frame = Frame(
            self.batch_number, title, {name: _range(value) for name, value in values.items()}
        )
        self.frames.append(frame)
        if frame.batch in self.trace_batch_nums:
            logger.warning("Batch %s\n%s", frame.batch, frame)
        elif frame.faults:
            self._end_with(frame)
        if module is self.model:
            self.batch_number += 1
            last = self.abort_after_batch_num
            if last is not None and self.batch_number > last:
                raise ValueError(
                    f"DebugUnderflowOverflow: batch {last} is done, and "
                    f"abort_after_batch_num={last}."
                )

    def _end_with(self, frame: Frame) -> None:
        last = len(self.frames)
        logger.error(
            "Inf or NaN in batch %s. The last %s forward passes:\n%s",
            frame.batch,
            last,
            self.report(),
        )
        raise ValueError(
            f"DebugUnderflowOverflow: inf or NaN in {', '.join(frame.faults)} of {frame.module} "
            f"(batch {frame.batch}), see the log above. Compute this layer in float32, use bf16 "
            "instead of fp16, or lower the learning rate."
        )


def _leaves(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dense tensors with elements in nested tuples, lists and mappings, with their
    paths.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(f"{name}.{key}", part)
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from _leaves(f"{name}[{index}]", part)
    elif isinstance(value, torch.Tensor) and value.numel() and value.layout is torch.strided:
        yield name, value


def _range(tensor: torch.Tensor) -> tuple[float, float]:
    """Return smallest and largest absolute value."""
    values = tensor.detach()
    if not (values.is_complex() or (values.is_floating_point() and values.itemsize > 1)):
        values = values.float()
    low, high = torch.stack(torch.aminmax(values.abs())).tolist()
    return low, high
