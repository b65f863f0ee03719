"""The loss of a training as its logs show it, and what they say of one that is NaN or infinite."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch

from ...lightning_modules.training.losses import LossMeter
from ..arguments.parallelism import copies_of_batches

if TYPE_CHECKING:
    from ..protocols.trainer import TrainerProtocol

logger = logging.getLogger(__name__)


class RunningLoss:
    """Adds up the losses of all micro-batches, between two logs and over the whole training.

    Args:
        trainer: the Trainer; its `state.global_step` says when a loss came.

    Attributes:
        total: the sum over the training since `first_step`.
        first_step: the step after which that sum begins.
        last_logged: the step of the last log.
        not_finite: how many losses were NaN or infinite in what `take` gave last, over all processes.
    """

    def __init__(self, trainer: TrainerProtocol) -> None:
        self.trainer = trainer
        self.meter = LossMeter(trainer.args.logging_nan_inf_filter)
        self.total = 0.0
        self.first_step = self.last_logged = trainer.state.global_step
        self.not_finite = 0
        self._has_warned = False

    def add(self, loss: torch.Tensor) -> None:
        """Keep the loss of a micro-batch; nothing waits for it."""
        self.meter.add(loss, self.trainer.state.global_step - self.last_logged)

    def take(self) -> float:
        """The sum since the last call, the mean over all processes."""
        loss = self.meter.take()
        self.not_finite, first = self.meter.not_finite, self.meter.first_not_finite
        step = math.inf if first is None else self.last_logged + first + 1
        if self.trainer.args.world_size > 1:
            loss, self.not_finite, step = self._of_all_processes(loss, step)
        if self.not_finite and not self._has_warned:
            self._warn(int(step))
        self.total += loss
        return loss

    def mean(self) -> float:
        """The loss of a step in the whole training, with what has not been taken yet."""
        self.take()
        return self.total / max(self.trainer.state.global_step - self.first_step, 0.001)

    def state_dict(self) -> dict[str, Any]:
        """What the logs of a training that goes on from here need to be those of an uninterrupted one."""
        return {"last_logged": self.last_logged, "losses": self.meter.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`: the next log is that of the uninterrupted training.

        The mean of the whole is over the steps since the last log before, as this one took no part in the others.
        """
        self.last_logged = self.first_step = state["last_logged"]
        self.meter.load_state_dict(state["losses"])

    def _of_all_processes(self, loss: float, step: float) -> tuple[float, int, float]:
        said = torch.tensor([[loss, self.not_finite, step]], device=self.trainer.args.device)
        losses, counts, steps = self.trainer.accelerator.gather(said).T.contiguous()
        return losses.mean().item(), int(counts.sum()) // copies_of_batches(self.trainer.args), steps.min().item()

    def _warn(self, step: int) -> None:
        self._has_warned = True
        if not self.trainer.state.is_world_process_zero:
            return
        kept_out = " logging_nan_inf_filter keeps it out of the average that is logged."
        logger.warning(
            "The loss of step %s is NaN or infinite.%s This is said once.",
            step,
            kept_out * self.meter.skip_not_finite,
        )
