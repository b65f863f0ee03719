"""Keep the model of the best trial of a search."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from ...callbacks import TrainerState
    from .. import Trainer

logger = logging.getLogger(__name__)


class BestModel:
    """Holds only the model of the best trial so far.

    Args:
        direction: `minimize` or `maximize`.
        install_model: gives a Trainer a new model.
        enabled: False to keep no model.
    """

    def __init__(
        self,
        direction: str,
        install_model: Callable[[Trainer, nn.Module], None],
        *,
        enabled: bool,
    ) -> None:
        self._direction = direction
        self._install_model = install_model
        self._enabled = enabled
        self._loss = math.inf
        self._state: TrainerState | None = None
        self.number: int | None = None
        """The number of the best trial so far."""
        self.model: nn.Module | None = None

    def keep_if_best(self, trainer: Trainer, number: int, value: Any) -> None:
        """Keep the Trainer's model if it is better than those of earlier trials.

        Args:
            trainer: the Trainer, after a trial.
            number: the number of the trial.
            value: the objective of the trial.
        """
        # Do not keep a sharded model; the best one is loaded from its checkpoint at the end.
        if not self._enabled or trainer.accelerator.strategy.configures_model:
            return
        loss = value
        if self._direction == "maximize":
            loss = -value

        # A trial with an unusable objective counts as failed, see `why_unusable`.
        is_unusable = math.isnan(loss) or loss == -math.inf
        if not is_unusable and (self.number is None or loss < self._loss):
            self.number = number
            self._loss = loss
            self.model = trainer.model
            self._state = trainer.state

    def move_to_cpu(self) -> None:
        """Move the model to the CPU, to free the memory of the device for the next trial."""
        if self.model is None or getattr(self.model, "hf_device_map", None) is not None:
            return
        try:
            self.model.to("cpu")
        except (ValueError, RuntimeError) as error:  # quantized models cannot be moved
            logger.debug("The best model stays on its device: %s", error)

    def move_to_trainer(self, trainer: Trainer, run_id: str) -> bool:
        """Move the model and its state to the Trainer.

        Args:
            trainer: the Trainer.
            run_id: the number of a trial.

        Returns:
            False if the kept model is from another trial, or there is none.
        """
        if self.model is None or self._state is None or str(self.number) != run_id:
            return False
        self._install_model(trainer, self.model)
        trainer.state = self._state
        self.model = None
        return True
