"""Sum the losses of micro-batches between two logs."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch

_MAX_PENDING_LOSSES = 1024
"""Losses that are kept as separate tensors before they are joined into one."""


class LossMeter:
    """Sum micro-batch losses to the same bits as the reference, without synchronising each step.

    The reference adds each loss to a float32 tensor, and its filter for NaN synchronises with the
    device for every loss. Here the losses stay on the device, and are added up in the same order
    when a log is due.

    Args:
        skip_not_finite: replace a NaN or infinite loss by the mean since the last log.

    Attributes:
        not_finite_steps: the `steps_since_log` of the steps with a NaN or infinite loss, among
            those that the last `take` added up.
    """

    def __init__(self, skip_not_finite: bool) -> None:
        self.skip_not_finite = skip_not_finite
        self.not_finite_steps: list[int] = []
        self._start = 0.0
        """The sum begins with this: 0, or NaN once a sum was not finite."""
        self._losses: list[torch.Tensor] = []
        """Losses on their device, of any number each."""
        self._saved = torch.zeros(0, dtype=torch.float64, device="cpu")
        """Earlier losses, which were read from the device for a checkpoint."""
        self._steps: list[int] = []
        """The `steps_since_log` of each loss, those of `_saved` first."""

    def add(self, loss: torch.Tensor, steps_since_log: int) -> None:
        """Keep the loss of a micro-batch.

        Args:
            loss: scalar, detached.
            steps_since_log: optimizer steps since the last log, before the current one.
        """
        self._losses.append(loss)
        self._steps.append(steps_since_log)
        if len(self._losses) >= _MAX_PENDING_LOSSES:
            self._losses = [self._joined_losses()]

    def state_dict(self) -> dict[str, Any]:
        """Return the losses since the last `take`; this synchronises with the device."""
        self._fetch()
        return {"rest": self._start, "losses": self._saved, "steps": list(self._steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict`, with the very same sums."""
        self._start = state["rest"]
        self._losses = []
        self._saved = state["losses"].double()
        self._steps = list(state["steps"])

    @staticmethod
    def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the mean of the `state_dict`s of several processes, as one."""
        start = 0.0
        all_losses: list[torch.Tensor] = []
        all_steps: list[int] = []
        for state in states:
            start += state["rest"]
            all_losses.append(state["losses"].double())
            all_steps += state["steps"]
        losses = torch.cat(all_losses)
        steps = torch.tensor(all_steps, dtype=torch.int64, device="cpu")

        # Losses of the same step come one after the other, in the order of the processes.
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

        Once not finite, the sum stays NaN, as in the reference, which resets it by subtracting it
        from itself.
        """
        self._fetch()
        total = self._start
        self.not_finite_steps = []
        for loss, steps_since_log in zip(self._saved.tolist(), self._steps, strict=True):
            total = self._added(total, loss, steps_since_log)
        self._saved = self._saved[:0]
        self._steps = []

        # 0, or NaN for a sum that is not finite.
        self._start = total - total
        return total

    def _added(self, total: float, loss: float, steps_since_log: int) -> float:
        """Return the sum of `total` and a loss in float32; count a loss that is not finite."""
        if not math.isfinite(loss):
            # Micro-batches of one step follow each other.
            if self.not_finite_steps[-1:] != [steps_since_log]:
                self.not_finite_steps.append(steps_since_log)
            if self.skip_not_finite:
                # The mean as the reference takes it, with the current step in its divisor.
                mean = _float32(total / (1 + steps_since_log))
                return _float32(total + mean)
        return _float32(total + loss)

    def _fetch(self) -> None:
        """Move the losses on the device to `_saved`; this synchronises."""
        if self._losses:
            losses = self._joined_losses().double().cpu()
            self._saved = torch.cat([self._saved, losses])
            self._losses = []

    def _joined_losses(self) -> torch.Tensor:
        return torch.cat([loss.reshape(-1) for loss in self._losses])


def _float32(value: float) -> float:
    """Round to float32; NumPy would warn of an infinite result."""
    return ctypes.c_float(value).value
