"""LightningModule that evaluates a model by calling `Evaluation.step` for each batch."""

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

    Lightning does not move batches to the device, because the Trainer's loaders do, or
    `Trainer._prepare_inputs` for batches of other loaders.

    Args:
        model: the user's model; its parameters are those of this module.
        evaluation: the current evaluation; None between the evaluations of a training.
    """

    def __init__(self, model: nn.Module, evaluation: Evaluation | None = None) -> None:
        super().__init__()
        self.model = model
        self.evaluation = evaluation

    def __getstate__(self) -> dict[str, object]:
        """Exclude the evaluation: callbacks that average weights copy the module, but must not copy
        its data.
        """
        return {**super().__getstate__(), "evaluation": None}

    def distribute(self, spread: Callable[[EvaluationModule], nn.Module]) -> None:
        """Register a function that wraps or shards the model in `configure_model`, which Lightning
        calls after it has set up the strategy.

        Args:
            spread: wraps the model of this module, and returns the result.
        """

        def configure_model() -> None:
            self.model = spread(self)

        # Set as an attribute, because callbacks that average weights warn if the class defines it.
        self.configure_model = configure_model

    @property
    def device(self) -> torch.device:
        """Return the device of the model, for callbacks that copy the module before Lightning moves
        it.
        """
        return next((parameter.device for parameter in self.parameters()), super().device)

    def cpu(self) -> EvaluationModule:
        """Do nothing: Lightning moves modules to the CPU after a run, but the model is still in
        use.
        """
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: a custom loop may call `evaluate` between a backward pass and the optimizer
        step, so Lightning must not clear its gradients. A training clears gradients through the
        model.
        """

    def on_validation_model_eval(self) -> None:
        """Put only this module, and wrappers of the model, into evaluation mode.

        The Trainer has already called `model.eval()`. Lightning would additionally call
        `train(False)` on each submodule, which would undo an override of `eval` that keeps dropout
        active.
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
        """Run one batch, and return loss, predictions and labels for Lightning callbacks."""
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
            # metrics are otherwise computed outside of the loop, with gradients
            with torch.enable_grad():
                metrics = self.evaluation.numbers()
            self.log_dict(metrics, sync_dist=True, logger=False)  # the Trainer logs them

    # `predict` runs Lightning's `test`.
    on_test_start = on_validation_start
    on_test_model_eval = on_validation_model_eval
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end
