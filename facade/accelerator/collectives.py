"""What processes tell each other: tensors joined, added up, padded, and flags."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.evaluation.collecting import cut_objects, join_objects
from ..arguments.parallelism import copies_of_batches
from ..distributed.collectives import all_gather, has_only_tensors, pad_to_longest, require_tensor
from .gradient_state import GradientState
from .processes import Processes

logger = logging.getLogger(__name__)

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Collectives(Processes):
    """The members of `accelerate.Accelerator` that exchange tensors; all processes have to call them."""

    gradient_state: GradientState
    flag_tensor: torch.Tensor | None = None

    def gather(self, tensor: Any) -> Any:
        """The tensors of all processes, joined along the first dimension, on every process; nested ones too.

        Processes must give equal shapes: `pad_across_processes` sees to that. A number becomes a vector. One process
        gets back what it gave.

        Raises:
            TypeError: there is something else than tensors among them, and several processes.
        """
        return tensor if self.num_processes == 1 else map_nested(all_gather, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As `gather`, without the samples that only fill up the last batch of a loader, and each batch once.

        Args:
            input_data: tensors, nested or not. If there are other things among them they are pickled: see
                `join_objects` for what becomes of it, which is better than a row of keys.
            use_gather_object: pickle tensors, too, so that their shapes may differ.
        """
        if use_gather_object or not has_only_tensors(input_data):
            return self._gather_objects(input_data)
        gather = functools.partial(all_gather, every=copies_of_batches(self.args))
        gathered = input_data if self.num_processes == 1 else map_nested(gather, input_data)
        return _first_of_each(gathered, self.gradient_state.remainder) if self._is_short else gathered

    @property
    def _is_short(self) -> bool:
        """Whether some of the samples only fill up the last round."""
        return self.gradient_state.end_of_dataloader and self.gradient_state.remainder > 0

    def _gather_objects(self, data: Any) -> Any:
        if self.num_processes == 1:
            return data
        everything: list[Any] = [None] * self.num_processes
        dist.all_gather_object(everything, data)
        gathered = join_objects(everything[:: copies_of_batches(self.args)])
        return cut_objects(gathered, self.gradient_state.remainder) if self._is_short else gathered

    @contextlib.contextmanager
    def other_loader(self) -> Iterator[None]:
        """Within it another loader is read; afterwards what is known of the end of the present one is known again."""
        known = self.gradient_state.told
        try:
            yield
        finally:
            self.gradient_state.told = known

    @property
    def end_of_dataloader(self) -> bool:
        """See `GradientState.end_of_dataloader`."""
        return self.gradient_state.end_of_dataloader

    @end_of_dataloader.setter
    def end_of_dataloader(self, ends: bool) -> None:
        self.gradient_state.end_of_dataloader = ends

    @property
    def remainder(self) -> int:
        """See `GradientState.remainder`."""
        return self.gradient_state.remainder

    @remainder.setter
    def remainder(self, samples: int) -> None:
        self.gradient_state.remainder = samples

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Sum, mean or maximum over all processes; a copy in one process.

        Args:
            tensor: tensors, nested or not, of equal shapes in all processes.
            reduction: `sum`, `mean` (of floating point numbers) or `max`.
            scale: as in the reference it counts on TPUs only, so that elsewhere it changes nothing.

        Raises:
            TypeError: there is something else than tensors among them.
            ValueError: there is no such reduction.
        """
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"reduction={reduction!r} must be one of {', '.join(_REDUCTIONS)}. To change nothing leave reduce out."
            )
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
            tensor: tensors, nested or not; without such a dimension they stay as they are.
            dim: which one; negative ones count from the last.
            pad_index: what is filled in.
            pad_first: fill in before, not behind.

        Raises:
            TypeError: there is something else than tensors among them.
        """
        if self.num_processes == 1 and has_only_tensors(tensor):
            return tensor
        return map_nested(lambda leaf: pad_to_longest(leaf, dim, pad_index, pad_first), tensor)

    def set_trigger(self) -> None:
        """Raise a flag that `check_trigger` sees on all processes."""
        self.flag_tensor = torch.tensor(1, device=self.device)

    def check_trigger(self) -> bool:
        """Whether some process has called `set_trigger` since it was last seen."""
        flag = torch.tensor(0, device=self.device) if self.flag_tensor is None else self.flag_tensor
        raised = bool(self.reduce(flag).item() >= 1)
        self.flag_tensor = torch.tensor(0, device=self.device) if raised else flag
        return raised


def _first_of_each(gathered: Any, samples: int) -> Any:
    """The first samples of each tensor; of none if there is a number among them, which is not of samples."""
    try:
        return map_nested(lambda leaf: leaf[:samples], gathered)
    except IndexError:
        return gathered
