"""Running training loss, kept on the device and read only when a log is due."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

_CHUNK = 1024


class LossMeter:
    """Sum micro-batch losses as the reference does, to the last bit, without a device synchronisation at each step.

    The reference adds each loss to a float32 tensor, and its filter for NaN synchronises for every loss. Here the
    losses are kept as they come, and added up in the same order when a log is due.

    Args:
        skip_not_finite: put the mean of the window so far in the place of a NaN or infinite loss.

    Attributes:
        not_finite: how many of the losses that the last `take` added up were NaN or infinite.
        first_not_finite: the `steps_since_log` of the first of them, None if there was none.
    """

    def __init__(self, skip_not_finite: bool) -> None:
        self.skip_not_finite = skip_not_finite
        self.not_finite = 0
        self.first_not_finite: int | None = None
        self._rest = np.float32(0.0)
        self._losses: list[torch.Tensor] = []
        self._chunks: list[tuple[torch.Tensor, list[int]]] = []
        self._steps: list[int] = []

    def add(self, loss: torch.Tensor, steps_since_log: int) -> None:
        """Keep the loss of a micro-batch.

        Args:
            loss: scalar, detached.
            steps_since_log: optimizer steps since the last log, before the current one.
        """
        self._losses.append(loss)
        self._steps.append(steps_since_log)
        if len(self._losses) >= _CHUNK:
            self._pack()

    def state_dict(self) -> dict[str, Any]:
        """Return the losses since the last `take`, for `load_state_dict`; this synchronises with the device."""
        self._pack()
        losses = [chunk.double().cpu() for chunk, _ in self._chunks]
        steps = [since for _, chunk in self._chunks for since in chunk]
        return {
            "rest": float(self._rest),
            "losses": torch.cat(losses) if losses else torch.zeros(0, device="cpu"),
            "steps": steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict`, with the very same sums."""
        self._rest = np.float32(state["rest"])
        self._losses, self._steps = [], []
        self._chunks = [(state["losses"], list(state["steps"]))] if state["steps"] else []

    @staticmethod
    def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the mean of the `state_dict`s of several processes, as one."""
        steps = torch.tensor([step for state in states for step in state["steps"]], dtype=torch.int64, device="cpu")
        losses = torch.cat([state["losses"].double() for state in states]) / len(states)
        order = torch.argsort(steps, stable=True)
        rest = sum(state["rest"] for state in states) / len(states)
        return {"rest": rest, "losses": losses[order], "steps": steps[order].tolist()}

    def begin_with(self, total: float) -> None:
        """Start the sum at `total`, replacing the rest of the last `take`."""
        self._rest = np.float32(total)

    def take(self) -> float:
        """Return the sum since the last call, in float32.

        Once not finite, the sum stays NaN, as in the reference, which resets it by subtracting it from itself.
        """
        self._pack()
        total = self._rest
        self.not_finite, self.first_not_finite = 0, None
        for chunk, steps in self._chunks:
            for loss, since in zip(chunk.tolist(), steps, strict=True):
                total = self._added(total, loss, since)
        self._chunks = []
        with np.errstate(invalid="ignore"):
            self._rest = total - total
        return float(total)

    def _added(self, total: np.float32, loss: float, steps_since_log: int) -> np.float32:
        if not math.isfinite(loss):
            self.not_finite += 1
            if self.first_not_finite is None:
                self.first_not_finite = steps_since_log
            if self.skip_not_finite:
                return total + total / np.float32(1 + steps_since_log)
        with np.errstate(all="ignore"):
            return np.float32(float(total) + loss)

    def _pack(self) -> None:
        if self._losses:
            self._chunks.append((torch.stack([loss.reshape(()) for loss in self._losses]), self._steps))
            self._losses, self._steps = [], []
