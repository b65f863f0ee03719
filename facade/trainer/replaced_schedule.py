"""A learning rate schedule that a Lightning callback puts in the place of the Trainer's."""

from __future__ import annotations

from typing import Any


class ReplacedSchedule:
    """StochasticWeightAveraging does so from some epoch on; Lightning itself steps no schedule here.

    Attributes:
        config: what Lightning keeps of the callback's schedule; None as long as the Trainer's is in place.
    """

    def __init__(self) -> None:
        self.config: Any = None

    def look(self, lightning_trainer: Any, own: Any) -> None:
        """Find out, when an epoch has begun, whose schedule it is."""
        configs = lightning_trainer.lr_scheduler_configs
        self.config = configs[0] if configs and configs[0].scheduler is not own else None

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters."""
        return float(self.config.scheduler.optimizer.param_groups[0]["lr"])

    def step_ended(self) -> None:
        """Step it, if it goes by steps."""
        self._step("step")

    def epoch_ended(self) -> None:
        """Step it, if it goes by epochs."""
        self._step("epoch")

    def _step(self, interval: str) -> None:
        if self.config is not None and self.config.interval == interval:
            self.config.scheduler.step()
