"""Collectives of the accelerator: gather, reduce, pad, and flags shared by all processes."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.evaluation.collecting import cut_objects, join_objects
from ..arguments.parallelism import copies_of_batches
from ..distributed.collectives import all_gather, has_only_tensors, pad_to_longest, require_tensor
from ..distributed.process import forwarded
from .gradient_state import GradientState
from .processes import Processes

logger = logging.getLogger(__name__)

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Collectives(Processes):
    """The members of `accelerate.Accelerator` that exchange tensors; all processes have to call them."""

    gradient_state: GradientState
    end_of_dataloader: bool = forwarded(
        "gradient_state.end_of_dataloader", "See `GradientState.end_of_dataloader`.", writable=True
    )
    remainder: int = forwarded("gradient_state.remainder", "See `GradientState.remainder`.", writable=True)
    flag_tensor: torch.Tensor | None = None

    def gather(self, tensor: Any) -> Any:
        """Concatenate (nested) tensors of all processes along the first dimension, on every process.

        Shapes must be equal on all processes, see `pad_across_processes`. Scalars become vectors. A single process gets
        its input back.

        Raises:
            TypeError: with several processes, `tensor` holds something other than tensors.
        """
        return tensor if self.num_processes == 1 else map_nested(all_gather, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As `gather`, without the samples that pad the last batch of a loader, and with each batch once.

        Args:
            input_data: tensors, nested or not. Other objects are pickled and joined by `join_objects`, which unlike the
                reference joins the values of dicts.
            use_gather_object: pickle tensors, too, so that their shapes may differ.
        """
        if use_gather_object or not has_only_tensors(input_data):
            return self._gather_objects(input_data)
        gather = functools.partial(all_gather, every=copies_of_batches(self.args))
        gathered = input_data if self.num_processes == 1 else map_nested(gather, input_data)
        return _truncate(gathered, self.gradient_state.remainder) if self._ends_padded else gathered

    @property
    def _ends_padded(self) -> bool:
        """Return whether this is the last batch and it was padded with repeated samples."""
        return self.gradient_state.end_of_dataloader and self.gradient_state.remainder > 0

    def _gather_objects(self, data: Any) -> Any:
        if self.num_processes == 1:
            return data
        gathered = join_objects(gather_objects(data)[:: copies_of_batches(self.args)])
        return cut_objects(gathered, self.gradient_state.remainder) if self._ends_padded else gathered

    @contextlib.contextmanager
    def keep_loader_position(self) -> Iterator[None]:
        """Restore `end_of_dataloader` and `remainder` after another loader was read in the block."""
        known = self.gradient_state.loader_end
        try:
            yield
        finally:
            self.gradient_state.loader_end = known

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Reduce (nested) tensors over all processes; returns copies.

        Args:
            tensor: tensors, nested or not, of equal shapes on all processes.
            reduction: `sum`, `mean` (of floating point numbers) or `max`.
            scale: no effect except on TPUs, as in the reference.

        Raises:
            TypeError: `tensor` holds something other than tensors.
            ValueError: unknown reduction.
        """
        if scale != 1.0:
            logger.warning("accelerator.reduce: scale=%s counts on TPUs only, and is left out here.", scale)
        return map_nested(functools.partial(self._reduce_one, reduction), tensor)

    def _reduce_one(self, reduction: str, leaf: Any) -> torch.Tensor:
        leaf = require_tensor(leaf).clone()
        if self.num_processes > 1:
            dist.all_reduce(leaf, _REDUCTIONS[reduction])
            if reduction == "mean":
                leaf /= self.num_processes
        return leaf

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad tensors along `dim` to the longest of all processes, so that they can be gathered.

        Args:
            tensor: tensors, nested or not; those without the dimension `dim` are returned unchanged.
            dim: dimension to pad; negative ones count from the last.
            pad_index: padding value.
            pad_first: pad at the beginning.

        Raises:
            TypeError: `tensor` holds something other than tensors.
        """
        if self.num_processes == 1 and has_only_tensors(tensor):
            return tensor
        return map_nested(lambda leaf: pad_to_longest(leaf, dim, pad_index, pad_first), tensor)

    def set_trigger(self) -> None:
        """Set a flag that `check_trigger` reads on all processes."""
        self.flag_tensor = torch.tensor(1, device=self.device)

    def check_trigger(self) -> bool:
        """Return whether any process has called `set_trigger`, and reset the flag."""
        flag = torch.tensor(0, device=self.device) if self.flag_tensor is None else self.flag_tensor
        raised = bool(self.reduce(flag).item() >= 1)
        self.flag_tensor = torch.tensor(0, device=self.device) if raised else flag
        return raised


def _truncate(gathered: Any, samples: int) -> Any:
    """Return the first samples of each tensor; unchanged if one is a scalar."""
    try:
        return map_nested(lambda leaf: leaf[:samples], gathered)
    except IndexError:
        return gathered
