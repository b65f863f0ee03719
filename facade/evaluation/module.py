"""LightningModule that evaluates a model: each batch goes through `Evaluation.step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...lightning_modules.internals.fast_path import FastModule
from ...lightning_modules.internals.lightning_import import callbacks_of
from ...lightning_modules.models.wrappers import unwrap_model
from ...lightning_modules.training.out_of_memory import explain
from .out_of_memory_advice import advice_for_evaluation

if TYPE_CHECKING:
    from .loop import Evaluation


class EvaluationModule(FastModule):
    """Run `Trainer.prediction_step` on each batch, and expose the metrics to Lightning callbacks.

    Lightning does not move batches: the Trainer's loaders do, and `Trainer._prepare_inputs` those
    of other loaders.

    Args:
        model: the user's model; its parameters are those of this module.
        evaluation: the current evaluation; None between the evaluations of a training.
    """

    def __init__(self, model: nn.Module, evaluation: Evaluation | None = None) -> None:
        super().__init__()
        self.model = model
        self.evaluation = evaluation

    def __getstate__(self) -> dict[str, object]:
        """Drop the evaluation: callbacks that average weights copy the module, and must not copy
        its data.
        """
        return {**super().__getstate__(), "evaluation": None}

    def distribute(self, spread: Callable[[EvaluationModule], nn.Module]) -> None:
        """Wrap or shard the model in `configure_model`, once Lightning has set up the strategy.

        Args:
            spread: takes this module, and returns the wrapped model.
        """

        def configure_model() -> None:
            self.model = spread(self)

        # An attribute: callbacks that average weights warn about modules with the method.
        self.configure_model = configure_model

    @property
    def device(self) -> torch.device:
        """Return the device of the model, for copies that callbacks make before Lightning moves
        it.
        """
        return next((parameter.device for parameter in self.parameters()), super().device)

    def cpu(self) -> EvaluationModule:
        """Stay on the device: Lightning moves modules to the CPU after a run, but the model is
        still used.
        """
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Keep the gradients: Lightning would clear those of a loop that calls `evaluate` between a
        backward pass and its step. A training clears them through the model.
        """

    def on_validation_model_eval(self) -> None:
        """Put only this module, and wrappers of the model, into evaluation mode.

        The Trainer has called `model.eval()`. Lightning would call `train(False)` too, and undo an
        override of `eval` that keeps dropout active.
        """
        of_model = set(unwrap_model(self.model).modules())
        for module in self.modules():
            if module not in of_model:
                module.training = False

    def on_validation_start(self) -> None:
        """Let all ranks evaluate the same model; see `Strategy.share_buffers`."""
        assert self.evaluation is not None
        self.evaluation.trainer.accelerator.strategy.share_buffers()

    def validation_step(self, batch: object, batch_idx: int) -> dict[str, object]:
        """Run one batch; return loss, predictions and labels as outputs for Lightning callbacks."""
        evaluation = self.evaluation
        assert evaluation is not None
        try:
            with torch.set_grad_enabled(evaluation.feed.gradients):
                return evaluation.step(batch)
        except Exception as error:
            explain(error, lambda: advice_for_evaluation(evaluation.trainer.args, batch))
            raise

    def on_validation_epoch_end(self) -> None:
        """Expose the metrics to Lightning callbacks such as EarlyStopping and ModelCheckpoint."""
        if callbacks_of(self.trainer):
            assert self.evaluation is not None
            # as outside of the loop, where metrics are computed otherwise
            with torch.enable_grad():
                metrics = self.evaluation.numbers()
            self.log_dict(metrics, sync_dist=True, logger=False)  # the Trainer logs them

    # `predict` is a test of Lightning.
    on_test_start = on_validation_start
    on_test_model_eval = on_validation_model_eval
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end
