"""The LightningModule around a model that is evaluated: each batch goes through the steps of an `Evaluation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.internals.fast_path import FastModule
from ...lightning_modules.internals.lightning_import import callbacks_of

if TYPE_CHECKING:
    from .loop import Evaluation


class EvaluationModule(FastModule):
    """A LightningModule that runs `Trainer.prediction_step` on each batch; metrics are shown to Lightning callbacks.

    Batches stay where they are: `Trainer._prepare_inputs`, an override point, moves them.

    Args:
        model: the user's model; its parameters are this module's.
        evaluation: the evaluation that runs, None between those of a training.
    """

    def __init__(self, model: nn.Module, evaluation: Evaluation | None = None) -> None:
        super().__init__()
        self.model = model
        self.evaluation = evaluation

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the evaluation, whose data may not be copied: callbacks that average weights copy the module."""
        return {**super().__getstate__(), "evaluation": None}

    def distribute(self, spread: Callable[[EvaluationModule], nn.Module]) -> None:
        """Let the model be spread over processes when Lightning configures it, once the strategy is set up.

        Args:
            spread: takes this module, and returns what to call in the model's place.
        """

        def configure_model() -> None:
            self.model = spread(self)

        # Not a method: callbacks that average weights warn of modules that have one.
        self.configure_model = configure_model

    @property
    def device(self) -> torch.device:
        """Where the model is, also before Lightning has moved it: callbacks make their copies there."""
        return next((parameter.device for parameter in self.parameters()), super().device)

    def cpu(self) -> EvaluationModule:
        """Stay on the device: Lightning empties it after each run, but the model is used afterwards."""
        return self

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Run one batch of `evaluate`; its loss, predictions and labels are what Lightning callbacks get as outputs."""
        assert self.evaluation is not None
        return self.evaluation.step(batch)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Run one batch of `predict`."""
        assert self.evaluation is not None
        return self.evaluation.step(batch)

    def on_validation_epoch_end(self) -> None:
        """End an evaluation."""
        self._log_metrics()

    def on_test_epoch_end(self) -> None:
        """End a prediction."""
        self._log_metrics()

    def _log_metrics(self) -> None:
        """Show the metrics to Lightning callbacks, such as its EarlyStopping and ModelCheckpoint."""
        if callbacks_of(self.trainer):
            assert self.evaluation is not None
            with torch.enable_grad():  # as outside of the loop, where metrics are computed otherwise
                metrics = self.evaluation.numbers()
            self.log_dict(metrics, sync_dist=True, logger=False)  # the Trainer logs them
