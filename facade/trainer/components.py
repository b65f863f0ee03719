"""Private components of a Trainer, and the state of its run.

A Trainer keeps all of them in one attribute, `_lightrainer`, so that subclasses may give any other
name to their own attributes and methods.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...callbacks import TrainerCallback
from ...callbacks.ema import trained_weights
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..checkpointing.complete_checkpoints import CompleteCheckpoints
from ..checkpointing.data_position import DataPosition
from ..checkpointing.elastic import ElasticResumption
from ..checkpointing.object_store import ObjectStore
from ..checkpointing.restoring import CheckpointRestorer
from ..checkpointing.saving import CheckpointSaver
from ..checkpointing.signals import SignalListening
from ..checkpointing.training_state import CallbackStates, LightningCallbackStates
from ..evaluation.best_metric import BestMetric
from ..hub.session import HubSession
from ..strategies.plan import RunPlan
from ..strategies.strategy import Strategy
from .applied_arguments import AppliedArguments
from .batch_size import BatchSizeFinder
from .context_parallel import ContextParallel
from .data_loading import DataLoading
from .external_parameters import ExternalParameters
from .meters import ParameterCounter, RunningLoss, TokenCounter
from .model_preparation import ModelPreparation
from .model_setup import ModelSetup
from .planning import plan_of

if TYPE_CHECKING:
    import torch

    from ...lightning_modules.training.router_losses import RouterLosses
    from .. import Trainer
    from ..search.hyperparameter_search import HyperparameterSearch
    from .training_run import TrainingRun


class TrainerComponents:
    """The components of a Trainer, each created on first use, and the state of its run.

    A copy of a Trainer creates its own; see `Trainer.__getstate__`.

    Args:
        trainer: the Trainer, whose constructor need not have run.
    """

    trainer = WeakAttribute["Trainer"]()

    run: TrainingRun | None = None
    """The current call of `train` and its state; None outside of `train`."""
    plan: RunPlan | None = None
    """The plan of the current or the last run; None before the first run."""
    device_of_run: torch.device | None = None
    """The device while Lightning runs: `TrainingArguments.device` would look it up each time."""
    router_losses: RouterLosses | None = None
    """The balancing losses of a mixture of experts while Lightning runs; None for other models."""
    gather_losses: Callable[..., Any] | None = None
    """Function that gathers losses; None to use `gather_function`."""
    steps_of_schedule: int | None = None
    """Length of the schedule, in optimizer steps; None before it is created."""
    was_prepared = False
    """Whether a training or an evaluation has run."""
    setup_seconds = 0.0
    """Duration of the setup of the last evaluation; 0 if it ran within a training."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @cached_property
    def hub(self) -> HubSession:
        """Uploads models and checkpoints to the Hub."""
        return HubSession(self.trainer)

    @cached_property
    def signals(self) -> SignalListening:
        """Listens for signals that end a training."""
        return SignalListening(self.trainer)

    @cached_property
    def callback_states(self) -> CallbackStates:
        """Saves and restores the states of callbacks."""
        return CallbackStates(self.trainer)

    @cached_property
    def lightning_callback_states(self) -> LightningCallbackStates:
        """Saves and restores the states of Lightning callbacks."""
        return LightningCallbackStates(self.trainer, self.trainer._lightning_callbacks)

    @cached_property
    def elastic(self) -> ElasticResumption:
        """Resumes with another number of processes or another batch size."""
        return ElasticResumption(self.trainer)

    @cached_property
    def data_position(self) -> DataPosition:
        """Saves and restores the position in the data."""
        return DataPosition(self.trainer, self.elastic)

    @cached_property
    def data_loading(self) -> DataLoading:
        """Creates the loaders."""
        return DataLoading(self.trainer)

    @cached_property
    def external_parameters(self) -> ExternalParameters:
        """The trained parameters outside of the model, such as those of a loss."""
        return ExternalParameters(self.trainer)

    @cached_property
    def checkpoint_saver(self) -> CheckpointSaver:
        """Writes models and checkpoints."""
        return CheckpointSaver(
            self.trainer,
            self.callback_states,
            self.lightning_callback_states,
            self.signals,
            self.object_store,
            self.complete_checkpoints,
        )

    @cached_property
    def complete_checkpoints(self) -> CompleteCheckpoints:
        """The checkpoints of this run that have their final names."""
        return CompleteCheckpoints()

    @cached_property
    def object_store(self) -> ObjectStore:
        """Uploads files, if `output_dir` is an address."""
        return ObjectStore(self.trainer, self.complete_checkpoints)

    @cached_property
    def restorer(self) -> CheckpointRestorer:
        """Finds and loads checkpoints."""
        return CheckpointRestorer(self.trainer, self.hub, self.object_store, self.checkpoint_saver)

    @cached_property
    def applied_arguments(self) -> AppliedArguments:
        """Checks the arguments before each run, and finds those that have changed."""
        return AppliedArguments(self.trainer)

    @cached_property
    def model_preparation(self) -> ModelPreparation:
        """Applies the arguments that change how the model computes."""
        return ModelPreparation(self.trainer)

    @cached_property
    def model_setup(self) -> ModelSetup:
        """Gives the Trainer its model, and the attributes that are derived from it."""
        return ModelSetup(self.trainer)

    @cached_property
    def batch_size_finder(self) -> BatchSizeFinder:
        """Reduces the batch size until the training fits into memory."""
        return BatchSizeFinder(self.trainer)

    @cached_property
    def metric_of_best(self) -> BestMetric:
        """Tracks the best value of `metric_for_best_model`."""
        return BestMetric(self.trainer)

    @cached_property
    def context_parallel(self) -> ContextParallel:
        """Prepares batches whose sequences are split over ranks."""
        return ContextParallel(self.trainer)

    @cached_property
    def loss_of_run(self) -> RunningLoss:
        """The loss of the last training; each training assigns a new one."""
        return RunningLoss(self.trainer)

    @cached_property
    def tokens_of_run(self) -> TokenCounter:
        """Counts the tokens that were trained."""
        return TokenCounter(self.trainer)

    @cached_property
    def parameter_counter(self) -> ParameterCounter:
        """Counts the parameters of the model, without embeddings."""
        return ParameterCounter(self.trainer)

    @cached_property
    def search(self) -> HyperparameterSearch:
        """The hyperparameter search, without trials before `hyperparameter_search`."""
        from ..search.hyperparameter_search import HyperparameterSearch
        from .search_access import ACCESS

        return HyperparameterSearch(self.trainer, ACCESS)

    @property
    def fitting(self) -> TrainingRun | None:
        """The current training while `fit` runs; otherwise None."""
        if self.run is None or not self.run.is_fitting:
            return None
        return self.run

    @property
    def strategy(self) -> Strategy:
        """The strategy of the current or the last run; before the first run, the strategy that the
        arguments select.
        """
        if self.plan is not None:
            return self.plan.strategy
        return plan_of(self.trainer).strategy

    def saved_weights(self) -> AbstractContextManager[None]:
        """Give the model its trained weights within the block, instead of their averages.

        An `EMACallback` gives it the averages for evaluations.
        """
        # Subclasses with their own training loop may have no handler.
        handler = getattr(self.trainer, "callback_handler", None)
        callbacks: list[TrainerCallback] = []
        if handler is not None:
            callbacks = handler.callbacks
        return trained_weights(callbacks)
