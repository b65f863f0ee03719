"""Components of a Trainer, and the state of its run, which are not documented attributes.

A Trainer keeps all of them in one attribute, `_lightrainer`, so that subclasses may give any other
name to their own attributes and methods.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

from ...callbacks import CallbackHandler, TrainerCallback
from ...callbacks.ema import trained_weights
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.pretrained import set_in_config
from ...lightning_modules.models.signatures import accepts_loss_kwargs, can_return_loss
from ...lightning_modules.models.wrappers import base_of_adapter
from ..arguments.parallelism import set_groups_of_model
from ..checkpointing.data_position import DataPosition
from ..checkpointing.elastic import ElasticResumption
from ..checkpointing.object_store import ObjectStore
from ..checkpointing.restoring import CheckpointRestorer
from ..checkpointing.saving import CheckpointSaver
from ..checkpointing.signals import SignalListening
from ..checkpointing.training_state import CallbackStates, LightningCallbackStates
from ..evaluation.best_metric import BestMetric
from ..hub.session import HubSession
from ..strategies.model_parallel import prepare_spread_model
from ..strategies.plan import RunPlan, stop_if_asked_to
from ..strategies.strategy import Strategy
from . import construction, optimization
from .batch_size import BatchSizeFinder
from .checks import require_trainable_quantization
from .construction import AppliedArguments, expose_save_model, seed_everything
from .context_parallel import ContextParallel
from .data_loading import DataLoading
from .external_parameters import ExternalParameters
from .lightning_callbacks import is_lightning_callback
from .meters import ParameterCounter, RunningLoss, TokenCounter
from .model_preparation import ModelPreparation

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
    """The device while Lightning runs, because the arguments look it up each time."""
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
        )
    )
    object_store = cached_property(lambda self: ObjectStore(self.trainer))
    restorer = cached_property(
        lambda self: CheckpointRestorer(
            self.trainer, self.hub, self.object_store, self.checkpoint_saver
        )
    )
    applied_arguments = cached_property(lambda self: AppliedArguments(self.trainer.args))
    model_preparation = cached_property(lambda self: ModelPreparation(self.trainer))
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
        from .portable import TRANSPORT

        return HyperparameterSearch(self.trainer, TRANSPORT)

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
        return construction.plan_of(self.trainer).strategy

    def saved_weights(self) -> AbstractContextManager[None]:
        """Give the model the weights to save, which are not the averages that are evaluated."""
        # Subclasses with their own training loop may have no handler.
        handler = getattr(self.trainer, "callback_handler", None)
        callbacks: list[TrainerCallback] = []
        if handler is not None:
            callbacks = handler.callbacks
        return trained_weights(callbacks)

    def adopt_model(self, model: nn.Module) -> None:
        """Set the model and the attributes derived from it."""
        trainer = self.trainer
        args = trainer.args
        require_trainable_quantization(model)
        set_groups_of_model(args, prepare_spread_model(args, model))

        # Device.
        trainer.is_model_parallel = construction.is_model_parallel(model, args.device)
        if trainer.is_model_parallel:
            args._n_gpu = 1
        trainer.place_model_on_device = construction.moves_model_at_once(
            args, is_on_several_devices=trainer.is_model_parallel
        )
        if trainer.place_model_on_device:
            trainer._move_model_to_device(model, args.device)
        trainer.model = model
        trainer.model_wrapped = model
        if args.parameter_rules:
            optimization.freeze_by_rules(trainer)

        # Loss and labels. For a model with adapters, inspect the signature of the base model.
        base = base_of_adapter(model)
        trainer.model_accepts_loss_kwargs = accepts_loss_kwargs(base)
        trainer.label_names = construction.find_label_names(args, base)
        trainer.can_return_loss = can_return_loss(type(base))
        trainer.label_smoother = construction.make_label_smoother(args, model)
        trainer.neftune_noise_alpha = args.neftune_noise_alpha
        config = getattr(model, "config", None)
        if config is not None:
            set_in_config(config, "use_cache", args.use_cache)

    def set_up_callbacks(self, callbacks: list[Any]) -> None:
        """Create the callback handler, with the user's callbacks and those that the arguments
        request.
        """
        trainer = self.trainer
        # Lightning callbacks are passed to the Lightning Trainer instead of the handler.
        trainer_callbacks: list[Any] = []
        for callback in callbacks:
            if is_lightning_callback(callback):
                trainer.add_callback(callback)
            else:
                trainer_callbacks.append(callback)

        trainer.callback_handler = CallbackHandler(
            construction.callbacks_in_order(trainer.args, trainer_callbacks),
            trainer.model,
            trainer.processing_class,
            trainer.optimizer,
            trainer.lr_scheduler,
        )
        for callback in trainer.callback_handler.callbacks:
            expose_save_model(trainer, callback)

        # The progress display and the signal listener are called after the others.
        display = construction.display_callback(trainer.args)
        if display is not None:
            trainer.add_callback(display)
        if trainer.args.enable_jit_checkpoint:
            self.signals.add_listener()

    def apply_arguments(self) -> None:
        """Check the arguments again, and apply changes made since the construction.

        Called at the start of a run. In a dry run it prints the plan and exits.
        """
        trainer = self.trainer
        construction.preload_lightning()
        self.applied_arguments.check(trainer.args)

        plan = construction.plan_of(trainer)
        plan.strategy.check(trainer.args, trainer.model)
        self.plan = plan

        changed = self.applied_arguments.changed(trainer.args)
        if changed:
            self._update_derived_attributes(changed)
        stop_if_asked_to(plan, is_main_process=trainer.args.process_index == 0)

    def _update_derived_attributes(self, changed: set[str]) -> None:
        """Update the attributes that were derived from the arguments with these names.

        An attribute that was set on the Trainer directly is kept, unless its argument has changed
        too.
        """
        trainer = self.trainer
        args = trainer.args
        if changed & {"per_device_train_batch_size", "auto_find_batch_size"}:
            trainer._train_batch_size = args.train_batch_size
        if "label_names" in changed and args.label_names is not None:
            trainer.label_names = args.label_names
        if "label_smoothing_factor" in changed:
            trainer.label_smoother = construction.make_label_smoother(args, trainer.model)
        if "neftune_noise_alpha" in changed:
            trainer.neftune_noise_alpha = args.neftune_noise_alpha
        self.applied_arguments.remember(args)

    def renew_model(self, trial: object) -> None:
        """Create a new model for a trial.

        The values of a trial are sampled after a first model was created, as in transformers. If
        they change the seed, the model is created again with that seed.
        """
        trainer = self.trainer
        self._replace_model(trial)
        seed = (trainer.args.seed, trainer.args.full_determinism)
        trainer._hp_search_setup(trial)
        if seed != (trainer.args.seed, trainer.args.full_determinism):
            self._replace_model(trial)

    def _replace_model(self, trial: object) -> None:
        """Replace the model if there is a `model_init`; drop optimizer and schedule."""
        trainer = self.trainer
        if trainer.model_init is None:
            return

        # Free the model of the previous trial first, so that memory never has to hold both.
        if self.search.current is not None:
            self.search.current.free_model()
        seed_everything(trainer.args)
        trainer.model = trainer.call_model_init(trial)
        trainer.optimizer = None
        trainer.lr_scheduler = None
        if trainer.place_model_on_device:
            trainer._move_model_to_device(trainer.model, trainer.args.device)
        trainer.model_wrapped = trainer.model
