"""Sum the losses of micro-batches since the last log."""

from __future__ import annotations

import bisect
import ctypes
import math
from typing import Any

import torch

_MAX_PENDING_LOSSES = 1024
"""Number of losses that are kept as separate tensors before they are concatenated."""


class LossMeter:
    """Sum micro-batch losses bitwise identically to the reference, without a synchronisation per
    step.

    The reference adds each loss to a float32 tensor, and its NaN filter synchronises with the
    device for every loss. Here the losses stay on the device, and are summed in the same order when
    a log is due.

    Args:
        skip_not_finite: whether to replace a NaN or infinite loss by the mean since the last log.

    Attributes:
        not_finite_steps: the `steps_since_log` of all steps with a NaN or infinite loss in the last
            `take`.
    """

    def __init__(self, skip_not_finite: bool) -> None:
        self.skip_not_finite = skip_not_finite
        self.not_finite_steps: list[int] = []
        self._start = 0.0
        """Initial value of the sum: 0, or NaN after a sum that was not finite."""
        self._losses: list[torch.Tensor] = []
        """Losses on their device, as tensors of one or more elements."""
        self._saved = torch.zeros(0, dtype=torch.float64, device="cpu")
        """Earlier losses that were copied from the device for a checkpoint."""
        self._steps: list[int] = []
        """The `steps_since_log` of each loss, starting with those in `_saved`."""

    def add(self, loss: torch.Tensor, steps_since_log: int) -> None:
        """Add the loss of a micro-batch.

        Args:
            loss: a detached scalar.
            steps_since_log: number of optimizer steps since the last log, without the current one.
        """
        self._losses.append(loss)
        self._steps.append(steps_since_log)
        if len(self._losses) >= _MAX_PENDING_LOSSES:
            self._losses = [self._joined_losses()]

    def state_dict(self, steps: int | None = None) -> dict[str, Any]:
        """Return the losses since the last `take`; this synchronises with the device.

        Args:
            steps: optimizer steps since the last log whose losses are returned; by default all.
        """
        self._fetch()
        count = len(self._steps)
        if steps is not None:
            count = bisect.bisect_left(self._steps, steps)
        losses = self._saved[:count]
        return {"rest": self._start, "losses": losses, "steps": self._steps[:count]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`, so that the sums are bitwise identical."""
        self._start = state["rest"]
        self._losses = []
        self._saved = state["losses"].double()
        self._steps = list(state["steps"])

    @staticmethod
    def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
        """Average the `state_dict`s of several processes."""
        start = 0.0
        all_losses: list[torch.Tensor] = []
        all_steps: list[int] = []
        for state in states:
            start += state["rest"]
            all_losses.append(state["losses"].double())
            all_steps += state["steps"]
        losses = torch.cat(all_losses)
        steps = torch.tensor(all_steps, dtype=torch.int64, device="cpu")

        # Order losses by step, and within a step by process.
        order = torch.argsort(steps, stable=True)
        return {
            "rest": start / len(states),
            "losses": losses[order] / len(states),
            "steps": steps[order].tolist(),
        }

    def begin_with(self, total: float) -> None:
        """Start the sum at `total`."""
        self._start = _float32(total)

    def take(self) -> float:
        """Return the sum since the last call, in float32.

        After a sum that was not finite, all further sums are NaN, as in the reference, which resets
        the sum by subtracting it from itself.
        """
        self._fetch()
        total = self._start
        self.not_finite_steps = []
        for loss, steps_since_log in zip(self._saved.tolist(), self._steps, strict=True):
            total = self._added(total, loss, steps_since_log)
        self._saved = self._saved[:0]
        self._steps = []

        # 0, or NaN if the sum is not finite.
        self._start = total - total
        return total

    def _added(self, total: float, loss: float, steps_since_log: int) -> float:
        """Add a loss to `total` in float32; record the step if the loss is not finite."""
        if not math.isfinite(loss):
            # Micro-batches of a step are consecutive.
            if self.not_finite_steps[-1:] != [steps_since_log]:
                self.not_finite_steps.append(steps_since_log)
            if self.skip_not_finite:
                # The mean as in the reference, whose divisor includes the current step.
                mean = _float32(total / (1 + steps_since_log))
                return _float32(total + mean)
        return _float32(total + loss)

    def _fetch(self) -> None:
        """Move the losses from the device to `_saved`. Synchronises with the device."""
        if self._losses:
            losses = self._joined_losses().double().cpu()
            self._saved = torch.cat([self._saved, losses])
            self._losses = []

    def _joined_losses(self) -> torch.Tensor:
        return torch.cat([loss.reshape(-1) for loss in self._losses])


def _float32(value: float) -> float:
    """Round to float32, without NumPy's warning about an infinite result."""
    return ctypes.c_float(value).value
