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

    hub = cached_property(lambda self: HubSession(self.trainer))
    signals = cached_property(lambda self: SignalListening(self.trainer))
    callback_states = cached_property(lambda self: CallbackStates(self.trainer))
    lightning_callback_states = cached_property(
        lambda self: LightningCallbackStates(self.trainer, self.trainer._lightning_callbacks)
    )
    elastic = cached_property(lambda self: ElasticResumption(self.trainer))
    data_position = cached_property(lambda self: DataPosition(self.trainer, self.elastic))
    data_loading = cached_property(lambda self: DataLoading(self.trainer))
    external_parameters = cached_property(lambda self: ExternalParameters(self.trainer))
    checkpoint_saver = cached_property(
        lambda self: CheckpointSaver(
            self.trainer,
            self.callback_states,
            self.lightning_callback_states,
            self.signals,
            self.object_store,
            self.complete_checkpoints,
        )
    )
    complete_checkpoints = cached_property(lambda self: CompleteCheckpoints())
    object_store = cached_property(
        lambda self: ObjectStore(self.trainer, self.complete_checkpoints)
    )
    restorer = cached_property(
        lambda self: CheckpointRestorer(
            self.trainer, self.hub, self.object_store, self.checkpoint_saver
        )
    )
    applied_arguments = cached_property(lambda self: AppliedArguments(self.trainer))
    model_preparation = cached_property(lambda self: ModelPreparation(self.trainer))
    model_setup = cached_property(lambda self: ModelSetup(self.trainer))
    batch_size_finder = cached_property(lambda self: BatchSizeFinder(self.trainer))
    metric_of_best = cached_property(lambda self: BestMetric(self.trainer))
    context_parallel = cached_property(lambda self: ContextParallel(self.trainer))
    loss_of_run = cached_property(lambda self: RunningLoss(self.trainer))
    """The loss of the last training; each training assigns a new one."""
    tokens_of_run = cached_property(lambda self: TokenCounter(self.trainer))
    parameter_counter = cached_property(lambda self: ParameterCounter(self.trainer))

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
