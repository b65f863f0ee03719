"""`Trainer`: the documented class, its methods in the documented order."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Set, Sized
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Sampler

from ...callbacks import CallbackHandler, TrainerCallback, TrainerControl, TrainerState
from ...callbacks.recording import record
from ...lightning_modules.checkpoints.weights import warn_of_differences
from ...lightning_modules.common.file_names import (
    PREFIX_CHECKPOINT_DIR,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
)
from ...lightning_modules.common.local_paths import require_local
from ...lightning_modules.common.nested import nested_detach, to_device
from ...lightning_modules.common.redaction import secret
from ...lightning_modules.common.torch_files import save_torch
from ...lightning_modules.data.collators import RemoveColumnsCollator, remove_unused
from ...lightning_modules.distributed.health import name_first_error
from ...lightning_modules.internals.compiler import (
    build_optimizers_without_compiler,
    step_without_compiler,
)
from ...lightning_modules.internals.lightning_version import require_lightning
from ...lightning_modules.models.moving import move_model
from ...lightning_modules.models.outputs import CACHES, additional_losses, read_loss, split_outputs
from ...lightning_modules.models.pretrained import set_in_config
from ...lightning_modules.models.signatures import (
    accepted_arguments,
    accepts_loss_kwargs,
    can_return_loss,
    signature_columns,
)
from ...lightning_modules.models.wrappers import base_of_adapter
from ...lightning_modules.optim import decay_parameter_names, optimizer_class_and_kwargs
from ...lightning_modules.training.label_smoothing import LabelSmoother
from ...lightning_modules.training.tracked_items import TrackedItems
from ..accelerator.accelerator import Accelerator
from ..arguments import TrainingArguments
from ..arguments.enums import DebugOption, HPSearchBackend
from ..arguments.parallelism import (
    copies_of_batches,
    groups_of,
    ranks_of_items,
    samples_of_rank,
    set_groups_of_model,
)
from ..arguments.unknown import SignatureOfInit, refuse_unknown, understand_old_names
from ..checkpointing.data_position import DataPosition
from ..checkpointing.elastic import ElasticResumption
from ..checkpointing.object_store import ObjectStore
from ..checkpointing.restoring import CheckpointRestorer
from ..checkpointing.saving import CheckpointSaver
from ..checkpointing.signals import SignalListening
from ..checkpointing.training_state import (
    CallbackStates,
    LightningCallbackStates,
    load_optimizer_and_schedule,
    load_scaler,
)
from ..distributed.xla_device import print_metrics
from ..evaluation.best_metric import BestMetric
from ..evaluation.metrics import (
    StartTime,
    metrics_format,
    print_metrics_table,
    speed_metrics,
    write_metrics,
)
from ..evaluation.results import EvalLoopOutput, PredictionOutput, TrainingLength, TrainOutput
from ..evaluation.sets import metrics_of
from ..hub.pushing import PushInProgress
from ..hub.session import HubSession
from ..strategies.model_parallel import prepare_spread_model
from ..strategies.plan import RunPlan, optimizer_config, stop_if_asked_to
from ..strategies.strategy import Strategy
from . import checks, construction, optimization, steps
from .batch_size import BatchSizeFinder
from .construction import AppliedArguments, expose_save_model, seed_everything
from .context_parallel import ContextParallel
from .data_loading import DataLoading, chosen_dataset, default_collator, training_length
from .evaluating import add_speed, data_to_evaluate, evaluate_each, evaluate_loader
from .external_parameters import ExternalParameters
from .lightning_callbacks import check_callback, is_lightning_callback
from .memory_report import MemoryTracker
from .meters import ParameterCounter, RunningLoss, RunningLossAttribute, TokenCounter
from .model_preparation import ModelPreparation
from .overrides import is_own
from .step_items import equal_part
from .tracebacks import ShortTraceback
from .training_run import TrainingRun, save_or_warn

if TYPE_CHECKING:
    from typing import Self

    from huggingface_hub import CommitInfo
    from lightning.pytorch import Callback
    from torch.optim.lr_scheduler import LRScheduler

    from ...lightning_modules.training.router_losses import RouterLosses
    from ..search.hyperparameter_search import HyperparameterSearch
    from ..search.hyperparameters import BestRun

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")

require_lightning()  # Lightning itself is imported when a training begins.


@understand_old_names
class Trainer:
    """Train a PyTorch model, evaluate it and predict with it, on Lightning's loops.

    It has the constructor, the methods and the numbers of `transformers.Trainer`; strategies and
    precision are Lightning's. Every documented method is called by the running system and can be
    overridden; its description says when it is called, and what it has to return. Nothing of
    Lightning is built before `train`, `evaluate` or `predict`, so arguments may be changed until
    then; `print(trainer.plan)` shows what they become.

    Args:
        model: the model to train: any `torch.nn.Module` that returns a loss, in a mapping, as the
            first of a tuple, or as an attribute `loss`.
        args: the training arguments; by default `TrainingArguments("tmp_trainer")`.
        data_collator: a list of samples -> a batch; by default padding with the processing class,
            if it can pad, and otherwise `default_data_collator`.
        train_dataset: map-style or iterable. Columns that the model does not take are left out.
        eval_dataset: the same, or a dict of datasets, each evaluated under its name.
        processing_class: tokenizer or the like, saved beside the model.
        model_init: makes a new model for each `train`; may take a trial.
        compute_loss_func: `(outputs, labels, num_items_in_batch)` -> loss. Where `compute_loss` is
            overridden, any value other than None tells the Trainer that the override divides its
            loss by the items of all micro-batches of a step.
        compute_metrics: `EvalPrediction` -> metrics by name; torchmetrics; a dict of either by
            names of eval_datasets.
        callbacks: TrainerCallbacks, their classes, and callbacks of Lightning.
        optimizers: optimizer and learning rate scheduler, instead of those that the arguments
            describe.
        optimizer_cls_and_kwargs: optimizer class and arguments, for parameters that are grouped as
            usual.
        preprocess_logits_for_metrics: `(logits, labels)` -> the values to keep instead of the
            logits of a batch, such as their argmax.
        eval_data_collator: used instead of data_collator in evaluations and predictions.

    Raises:
        RuntimeError: neither a model nor a model_init was passed (also a ValueError).
        ValueError, TypeError: invalid or incompatible parameters; all are reported at once.
    """

    model: nn.Module
    """The user's model, never a wrapper."""
    model_wrapped: nn.Module
    """The model to call for a forward pass."""
    optimizer: Any
    lr_scheduler: Any
    state: TrainerState
    callback_handler: CallbackHandler
    label_names: list[str]
    label_smoother: LabelSmoother | None
    can_return_loss: bool
    model_accepts_loss_kwargs: bool
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool
    is_fsdp_xla_enabled: bool
    is_fsdp_xla_v1_enabled: bool
    is_fsdp_xla_v2_enabled: bool
    is_model_parallel: bool
    place_model_on_device: bool
    neftune_noise_alpha: float | None
    deepspeed: Any = None
    """DeepSpeed's engine of the last training, as in the reference."""
    study: Any = None
    """The study of the last search with optuna; in the first process."""
    model_preparation_time: float
    """Seconds that the first evaluation, or a training before it, took to set up; unset before."""

    checkpoint_on_signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
    """Signals that end a training at the next step, after a checkpoint to resume from.

    An empty tuple turns this off.

    With `save_strategy="no"` signals are left to the script, unless `enable_jit_checkpoint` asks
    for a checkpoint, which always listens to SIGTERM. Signals that the process ignores stay
    ignored.
    """

    keep_effective_batch_size: bool = False
    """Keep the samples of an optimizer step, and with them steps and learning rates, under
    `auto_find_batch_size`.
    """

    background_checkpoints: int | None = 64 * 2**20
    """Bytes of checkpoints that may wait in memory for the thread that writes them.

    At least one checkpoint is always buffered. With None all are written while training waits. An
    override of `save_model`, or a callback with `on_save`, always finds the files written.
    """

    loss_is_scaled_for_ga: bool | None = None
    """Whether an override of `compute_loss` divides its loss by the items of the whole step.

    As in `transformers` 5.19 and later. With None it follows from `compute_loss_func` and
    `model_accepts_loss_kwargs`.
    """

    # Defaults of attributes that a training, or a method, changes. Trainers of libraries that have
    # their own loops call methods such as `log` and `_save_checkpoint`, but never `__init__`.
    is_in_train = False
    """Whether `train` is running."""
    hub_model_id: str | None = None
    """The repository on the Hub, once it exists."""
    push_in_progress: PushInProgress | None = None
    optimizer_cls_and_kwargs: Any = None
    eval_data_collator: Callable[[list[Any]], Any] | None = None
    hp_name: Callable[[Any], str] | None = None
    hp_search_backend: Any = None
    hp_space: Callable[[Any], dict[str, Any]] | None = None
    compute_objective: Callable[[dict[str, float]], Any] | None = None
    objective: Any = None
    """The value of the last evaluation of a trial."""
    current_flos: float = 0.0
    """Floating-point operations of this process that `state.total_flos` does not have yet."""
    _trial: Any = None
    _steps_of_schedule: int | None = None
    _created_lr_scheduler = False
    _was_prepared = False
    _setup_seconds = 0.0
    _initial_num_input_tokens_seen = 0
    _gather_losses: Callable[..., Any] | None = None
    """Gathers losses instead of `gather_function`."""
    _fit_run: TrainingRun | None = None
    """The running call of `train`, with its state; None outside of one."""
    _current_plan: RunPlan | None = None
    """The plan of the run that begins or runs, or of the last one; None before the first one."""
    _device_of_run: torch.device | None = None
    """The device while Lightning runs, because the arguments look it up each time."""
    _router_losses: RouterLosses | None = None
    """Those of the model while Lightning runs; None if it has no mixture of experts."""

    # Components, each with its own state, made when first needed.
    _hub = cached_property(HubSession)
    _signals = cached_property(SignalListening)
    _callback_states = cached_property(CallbackStates)
    _lightning_callback_states = cached_property(
        lambda self: LightningCallbackStates(self, self._lightning_callbacks)
    )
    _elastic = cached_property(ElasticResumption)
    _data_position = cached_property(lambda self: DataPosition(self, self._elastic))
    _data_loading = cached_property(DataLoading)
    _external_parameters = cached_property(ExternalParameters)
    _checkpoint_saver = cached_property(
        lambda self: CheckpointSaver(
            self,
            self._callback_states,
            self._lightning_callback_states,
            self._signals,
            self._object_store,
        )
    )
    _object_store = cached_property(ObjectStore)
    _restorer = cached_property(
        lambda self: CheckpointRestorer(self, self._hub, self._object_store, self._checkpoint_saver)
    )
    _applied_arguments = cached_property(lambda self: AppliedArguments(self.args))
    _model_preparation = cached_property(ModelPreparation)
    _batch_size_finder = cached_property(BatchSizeFinder)
    _metric_of_best = cached_property(BestMetric)
    _context_parallel = cached_property(ContextParallel)
    _loss_of_run = cached_property(RunningLoss)  # replaced by each training
    _tokens_of_run = cached_property(TokenCounter)
    _parameter_counter = cached_property(ParameterCounter)
    _eval_dataloaders: cached_property[dict[str, Any]] = cached_property(lambda self: {})
    """Loaders with persistent workers, by the key of their dataset; libraries look into it."""
    _lightning_callbacks: cached_property[list[Any]] = cached_property(lambda self: [])

    # Names of the reference, for overrides of `_maybe_log_save_evaluate` that do not call the
    # original.
    _tr_loss = RunningLossAttribute("since_log")
    _total_loss_scalar = RunningLossAttribute("total")
    _globalstep_last_logged = RunningLossAttribute("last_logged")

    @cached_property
    def _search(self) -> HyperparameterSearch:
        from ..search.hyperparameter_search import HyperparameterSearch
        from .portable import TRANSPORT

        return HyperparameterSearch(self, TRANSPORT)

    if TYPE_CHECKING:
        current_gradient_accumulation_steps: int
    else:

        @cached_property
        def current_gradient_accumulation_steps(self) -> int:
            """Micro-batches of the current optimizer step."""
            return self.args.gradient_accumulation_steps

        def __getattr__(self, name: str) -> Any:
            """Resolve attributes that other versions of transformers have."""
            return checks.missing_attribute(self, name)

    __signature__ = SignatureOfInit()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse unknown keywords with advice, also those of a subclass."""
        # Names only, to keep tokens out of tracebacks.
        kwargs = dict.fromkeys(kwargs)
        refuse_unknown(cls, kwargs)
        return super().__new__(cls)

    @classmethod
    def _old_names(cls) -> Set[str]:
        return {"tokenizer"}

    def _with_current_names(self, kwargs: dict[str, Any]) -> dict[str, object]:
        return checks.without_tokenizer(kwargs)

    @classmethod
    def _advice(cls, name: str, known_names: Collection[str]) -> str:
        return checks.advice_on_keyword(cls, name, known_names)

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        compute_metrics: Any = None,
        callbacks: list[TrainerCallback | type[TrainerCallback] | Callback] | None = None,
        optimizers: tuple[Optimizer | None, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        eval_data_collator: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        # Arguments, and what can be checked before anything is made.
        if args is None:
            args = TrainingArguments(output_dir="tmp_trainer")
        self.args = args
        checks.check_overrides(type(self))
        calls_loss_func = is_own(self, "compute_loss") and is_own(self, "training_step")
        checks.check_construction(self.args, locals(), calls_loss_func=calls_loss_func)

        # Process, seed and device.
        construction.set_verbosity(self.args)
        seed_everything(self.args)
        self._memory_tracker = MemoryTracker(self.args.skip_memory_metrics)
        self._memory_tracker.start("init")
        self.create_accelerator_and_postprocess()

        # What was passed.
        self.model_init = model_init
        self.processing_class = processing_class
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        if data_collator is None:
            self.data_collator = default_collator(processing_class)
        else:
            self.data_collator = data_collator
        # A subclass may have set one before.
        if eval_data_collator is not None:
            self.eval_data_collator = eval_data_collator

        # The model, and what follows from it.
        if model is None:
            model = self.call_model_init()
        self._adopt_model(model)
        if data_collator is None:
            checks.check_label_names(self)

        # State, callbacks, and the folder.
        self.control = TrainerControl()
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self._signature_columns: Any = None
        self._train_batch_size = self.args.train_batch_size
        self._applied_arguments = AppliedArguments(self.args)
        self._set_up_callbacks(callbacks or [])
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            stateful_callbacks=self._callback_states.exported(),
        )
        self._validate_args()
        if self.args.push_to_hub:
            self.init_hf_repo()
        if self.args.should_save:
            construction.make_output_dir(str(self.args.output_dir))
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)
        self._memory_tracker.stop("init")

    def _adopt_model(self, model: nn.Module) -> None:
        """Set the model and the attributes derived from it."""
        args = self.args
        set_groups_of_model(args, prepare_spread_model(args, model))

        # Device.
        device_map = getattr(model, "hf_device_map", None) or {}
        self.is_model_parallel = len(set(device_map.values())) > 1
        self.place_model_on_device = construction.moves_model_at_once(
            args, is_on_several_devices=self.is_model_parallel
        )
        if self.place_model_on_device:
            self._move_model_to_device(model, args.device)
        self.model = model
        self.model_wrapped = model
        if args.parameter_rules:
            optimization.freeze_by_rules(self)

        # Loss and labels; in a model with an adapter its base has the signature.
        base = base_of_adapter(model)
        self.model_accepts_loss_kwargs = accepts_loss_kwargs(base)
        self.label_names = construction.find_label_names(args, base)
        self.can_return_loss = can_return_loss(type(base))
        self.label_smoother = construction.make_label_smoother(args, model)
        self.neftune_noise_alpha = args.neftune_noise_alpha
        config = getattr(model, "config", None)
        if config is not None:
            set_in_config(config, "use_cache", args.use_cache)

    def _set_up_callbacks(self, callbacks: list[Any]) -> None:
        """Set the handler, with the callbacks of the user and those that the arguments request."""
        # Callbacks of Lightning are passed to its Trainer, not to the handler.
        trainer_callbacks: list[Any] = []
        for callback in callbacks:
            if is_lightning_callback(callback):
                self.add_callback(callback)
            else:
                trainer_callbacks.append(callback)

        self.callback_handler = CallbackHandler(
            construction.callbacks_in_order(self.args, trainer_callbacks),
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        for callback in self.callback_handler.callbacks:
            expose_save_model(self, callback)

        # Progress display and signal listener are called after the others.
        display = construction.display_callback(self.args)
        if display is not None:
            self.add_callback(display)
        if self.args.enable_jit_checkpoint:
            self._signals.add_listener()

    def _apply_arguments(self) -> None:
        """Check the arguments again, and apply what was changed since the construction.

        Called when a run begins. In a dry run it prints the plan and exits.
        """
        construction.preload_lightning()
        self._applied_arguments.check(self.args)

        plan = construction.plan_of(self)
        plan.strategy.check(self.args, self.model)
        self._current_plan = plan

        changed = self._applied_arguments.changed(self.args)
        if changed:
            self._update_derived_attributes(changed)
        stop_if_asked_to(plan, is_main_process=self.args.process_index == 0)

    def _update_derived_attributes(self, changed: set[str]) -> None:
        """Update the attributes that were derived from the arguments with these names.

        An attribute that was set on the Trainer stays, unless its argument changed too.
        """
        args = self.args
        if changed & {"per_device_train_batch_size", "auto_find_batch_size"}:
            self._train_batch_size = args.train_batch_size
        if "label_names" in changed and args.label_names is not None:
            self.label_names = args.label_names
        if "label_smoothing_factor" in changed:
            self.label_smoother = construction.make_label_smoother(args, self.model)
        if "neftune_noise_alpha" in changed:
            self.neftune_noise_alpha = args.neftune_noise_alpha
        self._applied_arguments.remember(args)

    def _validate_args(self) -> None:
        """Do nothing: libraries override it to check arguments that depend on model and data."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the components and a running training: a copy of the Trainer makes its own."""
        components: set[str] = set()
        for trainer_class in type(self).__mro__:
            if not trainer_class.__module__.startswith(f"{__package__}."):
                continue
            for name, value in vars(trainer_class).items():
                if isinstance(value, cached_property):
                    components.add(name)

        # Both are bound to this Trainer; a run makes its own.
        components.update({"_fit_run", "_current_plan"})

        # The user's callbacks cannot be made again.
        components.discard("_lightning_callbacks")
        return {name: value for name, value in vars(self).items() if name not in components}

    def create_accelerator_and_postprocess(self) -> None:
        """Set `accelerator` and `gather_function`, and the flags of FSDP and DeepSpeed.

        The constructor calls it once, before there is a model, and a hyperparameter search whenever
        it changes the arguments. An override calls this method, and may then change
        `self.accelerator` or replace `self.gather_function`, which gathers predictions and labels
        of all processes.
        """
        self.accelerator = Accelerator(self.args)
        self.gather_function: Callable[..., Any] = self.accelerator.gather_for_metrics

        # Libraries read these flags. A path in `fsdp_config` has been replaced by the contents of
        # the file.
        fsdp_options = cast(dict[str, Any], self.args.fsdp_config or {})
        uses_fsdp = bool(self.args.fsdp)
        uses_xla = uses_fsdp and bool(fsdp_options.get("xla"))
        uses_xla_v2 = uses_xla and bool(fsdp_options.get("xla_fsdp_v2"))
        self.is_deepspeed_enabled = bool(self.args.deepspeed)
        self.is_fsdp_enabled = uses_fsdp and not uses_xla
        self.is_fsdp_xla_enabled = uses_xla
        self.is_fsdp_xla_v1_enabled = uses_xla and not uses_xla_v2
        self.is_fsdp_xla_v2_enabled = uses_xla_v2

    @property
    def plan(self) -> Any:
        """The arguments in Lightning's terms, a RunPlan; prints as a table."""
        if "plan" in vars(self):
            return vars(self)["plan"]
        if self._current_plan is not None and self._current_plan.strategy.is_running:
            return self._current_plan
        return construction.plan_of(self)

    @plan.setter
    def plan(self, value: Any) -> None:
        # transformers leaves the name to subclasses, which may keep something else under it.
        vars(self)["plan"] = value

    @property
    def _fitting(self) -> TrainingRun | None:
        """The training while Lightning fits; None before and after."""
        if self._fit_run is None or not self._fit_run.is_fitting:
            return None
        return self._fit_run

    @property
    def _run_strategy(self) -> Strategy:
        """The strategy of the current or the last run; before the first one, the strategy that the
        arguments choose now.
        """
        if self._current_plan is not None:
            return self._current_plan.strategy
        return construction.plan_of(self).strategy

    # Data.

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of the training data: shuffled, and sharded over the processes.

        Called once when a training begins, and again for each batch size that
        `auto_find_batch_size` tries. An override may return any iterable of batches, with a length
        or with `max_steps`. A plain `DataLoader` is used as it is; `accelerator.prepare` or
        `build_loader` shard it over the processes.

        Returns:
            A loader whose batches have `args.train_batch_size` samples, this process's share.

        Raises:
            ValueError: the Trainer has no `train_dataset`.
        """
        if self.train_dataset is None:
            raise ValueError("Training needs data: pass train_dataset=... to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of an evaluation, sharded over the processes.

        Samples keep the order of the dataset. Called by each `evaluate`. An override may return any
        iterable of batches.

        Args:
            eval_dataset: a dataset, or the name of one in a dict of them; by default the Trainer's
                `eval_dataset`.

        Returns:
            A loader whose batches have `args.eval_batch_size` samples, this process's share. With
            `dataloader_persistent_workers` it is kept, and returned again for the same name.

        Raises:
            ValueError: the dataset is missing, or has another name.
            TypeError: it is not a dataset.
        """
        # Loaders with persistent workers are kept.
        key = "eval"
        if isinstance(eval_dataset, str):
            key = eval_dataset
        if self.args.dataloader_persistent_workers and key in self._eval_dataloaders:
            return self._eval_dataloaders[key]

        return self._get_dataloader(
            dataset=chosen_dataset(eval_dataset, self.eval_dataset),
            description="evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=key,
        )

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Return the loader of a prediction, sharded over the processes.

        Samples keep the order of the dataset. Called by each `predict`. An override may return any
        iterable of batches.

        Args:
            test_dataset: the samples to predict; labels are not needed.

        Returns:
            A loader whose batches have `args.eval_batch_size` samples, this process's share.

        Raises:
            ValueError: the dataset is None.
            TypeError: it is not a dataset.
        """
        checks.require_dataset(test_dataset, "test_dataset")
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def num_examples(self, dataloader: DataLoader) -> int:
        """Count the samples behind a loader, over all processes.

        Called when a training or an evaluation begins, for the length of a training and for
        messages.

        Args:
            dataloader: a loader, usually one of the three methods above.

        Returns:
            The length of its dataset; where that has none, the batches of the loader times
            `per_device_train_batch_size`.

        Raises:
            TypeError: the loader has no length either.
        """
        try:
            dataset = getattr(dataloader, "full_dataset", dataloader.dataset)
            return len(cast(Sized, dataset))
        except (NameError, AttributeError, TypeError):
            return len(dataloader) * self.args.per_device_train_batch_size

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler[int] | None] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        return self._data_loading.loader(
            dataset, description, batch_size, sampler_fn, is_training, dataloader_key
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset = train_dataset
        if dataset is None:
            dataset = self.train_dataset
        return self._data_loading.train_sampler(dataset, self.args.train_sampling_strategy)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return self._data_loading.eval_sampler(eval_dataset)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            model = base_of_adapter(self.model)
            self._signature_columns = signature_columns(model, self.label_names)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        model_name = type(self.model).__name__
        return remove_unused(dataset, self._signature_columns, model_name, description)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        model_name = type(self.model).__name__
        return RemoveColumnsCollator(
            data_collator, self._signature_columns, logger, model_name, description
        )

    # Optimizer and schedule.

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Create the optimizer, and then the schedule of its learning rate.

        Called once in each training, when the model is in its place: on its device and, under FSDP,
        sharded. An override sets `self.optimizer` and `self.lr_scheduler`; it usually overrides one
        of the two methods called here instead.

        Args:
            num_training_steps: optimizer steps of the whole training.
        """
        self._steps_of_schedule = num_training_steps
        build_optimizers_without_compiler()  # an override of `create_optimizer` makes its own
        optimizer = self.create_optimizer()
        if self.optimizer is None:  # an override only returns it
            self.optimizer = optimizer
        optimization.complete_optimizer(self.optimizer)
        step_without_compiler(self.optimizer)

        schedule = self.create_scheduler(num_training_steps=num_training_steps)
        if self.lr_scheduler is None and schedule is not None:  # an override only returns it
            self.lr_scheduler = schedule
            self._created_lr_scheduler = True

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Create the optimizer, unless the Trainer has one.

        Called by `create_optimizer_and_scheduler`. An override sets `self.optimizer`, of the
        parameters of `self.model`, and returns it.

        Args:
            model: the model whose parameters it gets; by default the Trainer's.

        Returns:
            `self.optimizer`. That of the arguments has two groups: parameters of
            `get_decay_parameter_names`, with `args.weight_decay`, and the others without; more
            groups with `parameter_rules`.

        Raises:
            ValueError, ImportError: the optimizer lacks what it needs, or is not installed.
        """
        return optimization.create_optimizer(self, model)

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        """Create the schedule of the learning rate, unless the Trainer has one.

        Called by `create_optimizer_and_scheduler`, after `create_optimizer`. An override sets
        `self.lr_scheduler` and returns it. It is stepped after each optimizer step; a
        `ReduceLROnPlateau` after each evaluation.

        Args:
            num_training_steps: optimizer steps of the whole training.
            optimizer: the optimizer whose rates it sets; by default the Trainer's.

        Returns:
            `self.lr_scheduler`.

        Raises:
            ValueError, TypeError: `lr_scheduler_kwargs` do not fit the schedule.
        """
        return optimization.create_scheduler(self, num_training_steps, optimizer)

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: Any, model: nn.Module | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the class of the optimizer that arguments describe, and its keyword arguments.

        Called by `create_optimizer`. An override returns both for another optimizer; its parameters
        are grouped as usual.

        Args:
            args: the training arguments; `optim`, `optim_args`, `learning_rate` and the like are
                read.
            model: the model. GaLore, APOLLO and LOMO take their parameters from it; others ignore
                it.

        Returns:
            The class, and the keyword arguments except the parameters.

        Raises:
            ImportError, ValueError: the optimizer is not installed, or lacks what it needs.
        """
        return optimizer_class_and_kwargs(optimizer_config(args), model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """List the parameters that weight decay applies to.

        Called by `create_optimizer`. An override returns other names.

        Args:
            model: the model whose parameters are meant.

        Returns:
            Names as in `named_parameters()`: all except biases and the parameters of normalisation
            layers.
        """
        return decay_parameter_names(model)

    def get_learning_rates(self) -> list[float]:
        """Return the present learning rate of each parameter group.

        Raises:
            ValueError: the Trainer has no optimizer yet.
        """
        optimizer = optimization.require_optimizer(self.optimizer)
        return [group["lr"] for group in optimizer.param_groups]

    def get_num_trainable_parameters(self) -> int:
        """Count the numbers in all parameters of the model that get gradients.

        Called when a training begins, for a message. Parameters that are sharded count whole.
        """
        count = 0
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                # A parameter that DeepSpeed shards has the number of its elements in an attribute.
                count += getattr(parameter, "ds_numel", parameter.numel())
        return count

    def get_optimizer_group(
        self, param: str | nn.Parameter | None = None
    ) -> dict[str, Any] | list[list[nn.Parameter]]:
        """Return the group of the optimizer that has a parameter.

        Args:
            param: a parameter, or its name in the model.

        Returns:
            Its group, a dict with `params`, `lr` and further options; without `param`, or for a
            parameter of no group, the parameters of all groups.

        Raises:
            ValueError: the Trainer has no optimizer yet.
            AttributeError: the model has no parameter of that name.
        """
        groups = optimization.require_optimizer(self.optimizer).param_groups
        if isinstance(param, str):
            param = self.model.get_parameter(param)
        for group in groups:
            if any(parameter is param for parameter in group["params"]):
                return group
        return [group["params"] for group in groups]

    def _get_learning_rate(self) -> float:
        schedule: Any = self.lr_scheduler
        if schedule is None or isinstance(schedule, ReduceLROnPlateau):
            rate = self.optimizer.param_groups[0]["lr"]
        else:
            rate = schedule.get_last_lr()[0]
        if isinstance(rate, torch.Tensor):
            return rate.item()
        return rate

    # Training.

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train the model, and return its steps, mean loss and metrics.

        Lightning's loops do the work. When it returns, `self.model` has the weights of the last
        step, or with `load_best_model_at_end` those of the best checkpoint, and `self.state` the
        history of logs.

        Args:
            resume_from_checkpoint: a checkpoint folder to resume from; True for the newest intact
                one in `output_dir`. A training that `torchrun` restarts resumes from its own last
                checkpoint, unless this is False.
            trial: the trial of a hyperparameter search.
            ignore_keys_for_eval: outputs of the model that are not predictions, for evaluations
                during the training.

        Returns:
            `(global_step, training_loss, metrics)`: optimizer steps, the mean loss of them, and
            runtime in seconds, samples and steps per second, and floating point operations.

        Raises:
            ValueError, FileNotFoundError: there is nothing to train on; the checkpoint is damaged,
                or missing.
            OtherProcessError: another process failed first; names it and its error.
            SystemExit, KeyboardInterrupt: a signal ended the training, after a checkpoint; see
                `checkpoint_on_signals`.
        """
        with (
            ShortTraceback(),
            self._signals.stop_listening_at_end(),
            name_first_error(),
        ):
            self._fit_run = TrainingRun(self, trial, ignore_keys_for_eval)
            try:
                return self._fit_run.run(resume_from_checkpoint)
            finally:
                self._fit_run = None

    def end(self) -> None:
        """Wait for uploads to the Hub, and leave the process group.

        Call it at the end of a script that starts other work in the same processes. As
        `Trainer.end` of transformers 5.18 and later.
        """
        self._finish_current_push()
        self.accelerator.end_training()

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train once, with the parameters of the reference: libraries wrap this method."""
        if self._fit_run is not None:
            return self._fit_run.fit(resume_from_checkpoint)

        # A library calls this outside of `train`.
        self._fit_run = TrainingRun(self, trial, ignore_keys_for_eval)
        try:
            return self._fit_run.fit(resume_from_checkpoint)
        finally:
            self._fit_run = None

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Compute the loss of one micro-batch and its gradients.

        Called for each micro-batch: `gradient_accumulation_steps` times before an optimizer step.
        It sets the mode of model and optimizer, calls `_prepare_inputs`, `compute_loss` and
        `accelerator.backward`. An override may change the inputs, or what happens around this
        method; one that replaces it calls `self.accelerator.backward(loss)`, adds gradients, and
        neither steps nor clears them.

        Args:
            model: the model to train; under DDP or FSDP the wrapper to call.
            inputs: keyword arguments of its `forward`: a batch of the loader, on any device.
            num_items_in_batch: labels that count in all micro-batches of the step, over all
                processes; None where the model and the loss function do not take it.

        Returns:
            The loss, a detached scalar on the device, divided so that the sum over the
            micro-batches of a step is the loss of the step.

        Raises:
            TypeError: `compute_loss` returned something without a backward pass.
        """
        split, inputs = self._prepare_context_parallel_inputs(model, inputs)
        with split():
            model.train()
            if callable(getattr(self.optimizer, "train", None)):
                self.optimizer.train()
            inputs = self._prepare_inputs(inputs)

            micro_batch = self.accelerator.micro_batch
            if micro_batch is None and self.current_gradient_accumulation_steps > 1:
                # Called outside of a training: each micro-batch counts the same.
                micro_batch = equal_part(self, num_items_in_batch)
                num_items_in_batch = micro_batch.items
            splits_sequences = self._context_parallel.targets is not None
            if splits_sequences and num_items_in_batch is not None:
                num_items_in_batch = TrackedItems.of(num_items_in_batch)

            # Forward. An override of `compute_loss` may lack `num_items_in_batch`.
            loss_kwargs = accepted_arguments(
                self.compute_loss, num_items_in_batch=num_items_in_batch
            )
            with self.compute_loss_context_manager():
                loss: Any = self.compute_loss(model, inputs, **loss_kwargs)
            if not hasattr(loss, "backward"):
                raise steps.wrong_loss(f"{type(self).__name__}.compute_loss", loss)
            if splits_sequences:
                loss = self._context_parallel.loss_of_override(loss, model, num_items_in_batch)
            del inputs
            if self.args.torch_empty_cache_steps is not None:
                steps.empty_cache_if_due(self.args, self.state.global_step)

            # Backward. A loss that is a mean counts by this micro-batch's share of the step.
            if micro_batch is not None:
                loss = micro_batch.scale_in_step(loss)
            backward_kwargs = {}
            if hasattr(self.optimizer, "fused_backward"):
                backward_kwargs["learning_rate"] = self._get_learning_rate()
            self.accelerator.backward(loss, **backward_kwargs)
            return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """Compute the loss of a batch: the method to override for another loss.

        Called by `training_step` for each micro-batch, with gradients, and by `prediction_step`
        without them and with `return_outputs=True`. An override may leave out `num_items_in_batch`;
        its loss is then taken for a mean over the micro-batch, and scaled by the Trainer. One that
        divides by `num_items_in_batch` itself sets `loss_is_scaled_for_ga = True`. It may take
        labels out of `inputs`, and log further values by `self.record`.

        Args:
            model: the model; call it as `model(**inputs)`.
            inputs: keyword arguments of its `forward`, on its device.
            return_outputs: return what the model returned as well.
            num_items_in_batch: labels that count in all micro-batches of the step, over all
                processes, to divide a sum of losses by; None in evaluations.

        Returns:
            The loss, a scalar tensor; with `return_outputs` the loss and the model's outputs, a
            mapping or a tuple whose first element is the loss.

        Raises:
            ValueError: the model returned no loss.
            TypeError: `inputs` is not a mapping; override this method for other batches.
        """
        if not isinstance(inputs, (dict, Mapping)):
            raise steps.wrong_batch(self, inputs)
        labels = None
        split = self._context_parallel.targets is not None
        items = num_items_in_batch
        if items is not None and self.args.world_size > 1:
            items = TrackedItems.of(items)

        # Forward. The model gets no labels if the loss is computed below.
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        if takes_labels and "labels" in inputs:
            if split:
                labels = self._context_parallel.pop_labels(model, inputs)
            else:
                labels = inputs.pop("labels")
        if self.model_accepts_loss_kwargs and items is not None:
            inputs = {**inputs, "num_items_in_batch": items}
        outputs = model(**inputs)
        if self.args.record_model_losses:
            self.record(**additional_losses(outputs))

        # Loss.
        if self.compute_loss_func is not None:
            loss: Any = self.compute_loss_func(outputs, labels, num_items_in_batch=items)
            if loss is None:
                raise steps.wrong_loss("compute_loss_func", loss)
        elif labels is not None and self.label_smoother is not None:
            loss = steps.smoothed_loss(self, model, outputs, labels, items, split=split)
        else:
            loss = None
            if isinstance(outputs, dict):
                loss = outputs.get("loss")
            if not isinstance(loss, torch.Tensor):
                why = partial(steps.why_no_loss, self, model, inputs)
                loss = read_loss(outputs, inputs, why, first_of_vector=True)

        divided_by_items = isinstance(items, TrackedItems) and items.use.is_used
        if divided_by_items:
            ranks = ranks_of_items(self.args)
            if ranks > 1:
                loss = loss * ranks
        if split:
            loss = self._context_parallel.loss_of_part(
                loss, model, inputs, labels, is_mean=not divided_by_items
            )
        if return_outputs:
            return loss, outputs
        return loss

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """Return the context in which `compute_loss` runs, in training and in evaluations.

        It enters `autocast_smart_context_manager`. An override may enter others, such as a
        profiler's block, around that of this method.

        Returns:
            A context manager, entered once for each micro-batch. Only the model's forward pass is
            cast in mixed precision; the rest of the loss is computed in float32.
        """
        contexts = ExitStack()
        autocast = self.autocast_smart_context_manager()
        if not isinstance(autocast, nullcontext):
            contexts.enter_context(autocast)
        return contexts

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> AbstractContextManager[Any]:
        """Return a further context of `compute_loss`: an empty one.

        Mixed precision is that of the forward pass, which Lightning's precision plugin casts. An
        override may return `torch.autocast(...)` to cast the loss too.

        Args:
            cache_enabled: for overrides: keep the weights that were cast, until the end of the
                block.

        Returns:
            A context manager, entered by `compute_loss_context_manager`.
        """
        return nullcontext()

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: torch.Tensor | float | None,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save at the end of a step or an epoch, as the control asks for."""
        run = self._fitting
        assert run is not None

        # Log.
        if self.control.should_log and self.state.global_step > run.losses.last_logged:
            run.require_in_all("should_log")
            run.log_progress(grad_norm, learning_rate, start_time)

        # Evaluate.
        if self.control.should_evaluate:
            run.require_in_all("should_evaluate")
            with run.interrupted_evaluation.during_evaluation(self._eval_dataloaders):
                metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best or self._signals.is_interrupted

        # Save.
        if self.control.should_save:
            run.require_in_all("should_save")
            self._tokens_of_run.flush()
            if save_or_warn(self, model, trial):
                self.control = self.callback_handler.on_save(self.args, self.state, self.control)
                self._checkpoint_saver.accept_changes()
            else:
                self.control.should_save = False

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Read the micro-batches of the next optimizer step, and count their items.

        Called before each optimizer step. An override may filter or change the batches, and returns
        as many as are to be trained in this step; an empty list ends the epoch.

        Args:
            epoch_iterator: yields the batches of this process.
            num_batches: micro-batches of the step; fewer at the end of an epoch.
            device: where a count that is a tensor goes to.

        Returns:
            The micro-batches, and their labels other than -100 over all processes: a number, or an
            integer tensor of one element; None where the loss is not divided by them.
        """
        batch_samples = list(itertools.islice(epoch_iterator, num_batches))
        return batch_samples, self._get_num_items_in_batch(batch_samples, device)

    def _get_num_items_in_batch(
        self, batch_samples: list[Any], device: torch.device
    ) -> torch.Tensor | int | None:
        """Return how many labels of a step are not -100, over all processes; None if not needed."""
        if not self.model_accepts_loss_kwargs and self.compute_loss_func is None:
            return None
        return steps.count_items(self, batch_samples, device)

    def _prepare_input(self, data: Any) -> Any:
        """Move a batch to the device, if its loader has not."""
        # An override gets each value of the batch, too.
        if type(self)._prepare_input is not Trainer._prepare_input:
            data = steps.prepare_values(self._prepare_input, data)

        device = self._device_of_run or self.args.device

        # A flat batch that is on the CPU already does not move. The dict is copied, because the
        # loss may remove the labels from it.
        is_in_place = (
            device == _CPU
            and type(data) is dict
            and all(type(value) is torch.Tensor and value.is_cpu for value in data.values())
        )
        if is_in_place:
            data = dict(data)
        else:
            config: Any = self.args.accelerator_config
            data = to_device(data, device, config.non_blocking)

        input_dtype = self.accelerator.strategy.input_dtype
        if input_dtype is None:
            return data
        return steps.to_half(data, input_dtype)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Move a batch to the device, and refuse an empty one."""
        inputs = self._prepare_input(inputs)
        if not (type(inputs) is dict and inputs):
            steps.require_batch(self, inputs)
        return inputs

    def _prepare_context_parallel_inputs(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[Callable[[], AbstractContextManager[Any]], dict[str, Any]]:
        if self.args.parallelism_config is None:
            return nullcontext, inputs
        return self._context_parallel.prepare(model, inputs)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> TrainingLength:
        """Compute how long a training is, from its arguments and its loader.

        Called once when a training begins. An override returns a tuple of the same seven values.

        Args:
            args: the training arguments; `max_steps` takes precedence over `num_train_epochs`.
            dataloader: the loader of the training data.

        Returns:
            Epochs, optimizer steps of an epoch, samples of the dataset, samples of the whole
            training, samples of an optimizer step, micro-batches of an epoch, and optimizer steps
            of the whole training.

        Raises:
            ValueError: neither the loader nor `max_steps` gives a length.
        """
        return training_length(
            args, dataloader, self.get_total_train_batch_size(args), self.num_examples
        )

    def get_total_train_batch_size(self, args: Any) -> int:
        """Compute the samples of an optimizer step, over all micro-batches and processes.

        Called when a training begins. Processes that share samples (tensor, context and sequence
        parallelism) count once.

        Args:
            args: the training arguments.

        Returns:
            The number of samples.
        """
        ranks_per_copy = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        copies = max(args.world_size // ranks_per_copy, 1)
        samples = samples_of_rank(self.args, self._train_batch_size)
        return samples * args.gradient_accumulation_steps * copies

    def get_sp_size(self) -> int:
        """Return how many processes share a sequence by its heads (`sp_size`); 1 for none."""
        return getattr(groups_of(self.args), "sp_size", 1)

    def get_cp_size(self) -> int:
        """Return how many processes share a sequence by its parts (`cp_size`); 1 for none."""
        return getattr(groups_of(self.args), "cp_size", 1)

    def get_tp_size(self) -> int:
        """Return how many processes share each layer (`tp_size`); 1 for none."""
        groups = groups_of(self.args)
        return getattr(groups, "tp_size", None) or getattr(self.model, "_tp_size", None) or 1

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if self.args.include_num_input_tokens_seen != "no":
            self._tokens_of_run.add(inputs)

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Unscale and clip the gradients of a model; return their norm before clipping."""
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> torch.Tensor:
        """Return the norm that clipping returned; without it, compute that of the gradients."""
        if grad_norm is not None:
            return grad_norm
        self.accelerator.unscale_gradients()
        return self.accelerator.strategy.grad_norm(model)

    # Evaluation.

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate the model: loss, speed, and the metrics of `compute_metrics`.

        Called at the intervals of `eval_strategy`, and by scripts. It calls `get_eval_dataloader`
        and `evaluation_loop`, logs the metrics and fires `on_evaluate`. An override may add
        metrics; what it returns decides which checkpoint is the best one, and what early stopping
        and a search see. Time and memory grow linearly with the number of predictions.

        Args:
            eval_dataset: a dataset, a dict of them, or the name of one; by default the Trainer's.
            ignore_keys: outputs of the model that are not predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...; for a dict
                `{prefix}_{name}_loss`.

        Returns:
            The metrics by name: `{prefix}_loss`, those of `compute_metrics`, `{prefix}_runtime` in
            seconds, and samples and steps per second.

        Raises:
            ValueError: the dataset is missing, or has another name.
        """
        if self._fitting is None:
            self._apply_arguments()
        else:
            # The log of the evaluation has the tokens of the training.
            self._tokens_of_run.flush()

        eval_dataset = data_to_evaluate(self, eval_dataset)
        if isinstance(eval_dataset, dict):
            return evaluate_each(self, eval_dataset, ignore_keys, metric_key_prefix)

        # Without metrics nothing but the loss is needed.
        prediction_loss_only = None
        if self.compute_metrics is None:
            prediction_loss_only = True

        self._memory_tracker.start("eval")
        dataloader = self.get_eval_dataloader(eval_dataset)
        start_time = StartTime()
        with metrics_of(self, eval_dataset):
            output = self.evaluation_loop(
                dataloader,
                description="Evaluation",
                prediction_loss_only=prediction_loss_only,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
        seconds = start_time.seconds_ago - self._setup_seconds
        metrics = add_speed(output, metric_key_prefix, seconds, self.args)

        # Report them.
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if DebugOption.TPU_METRICS_DEBUG in self.args.debug:
            print_metrics()
        self._memory_tracker.stop("eval", metrics)
        self._search.record_evaluation(metrics, metric_key_prefix)
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run the batches of a loader through `prediction_step`, gather and measure their results.

        Called by `evaluate` and `predict`. In the middle of a training it runs inside of
        Lightning's `fit`, and Lightning callbacks see the validation hooks; otherwise `evaluate` is
        a `validate`, and `predict` a `test`, of Lightning. The hooks after a batch get `loss`,
        `predictions` and `label_ids` of it; those after the loop find the metrics in
        `callback_metrics`. An override may change metrics, predictions and labels of the result.

        Args:
            dataloader: the batches, the Trainer's or another one.
            description: `Evaluation`, or `Prediction` for predictions that are returned whatever
                the metrics need.
            prediction_loss_only: keep nothing but the loss; by default what the argument of that
                name says.
            ignore_keys: outputs of the model that are not predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...

        Returns:
            `(predictions, label_ids, metrics, num_samples)`: arrays over the samples of all
            processes, or None where they are not kept, shorter rows padded with -100; the metrics
            with the prefix; the number of samples.
        """
        if prediction_loss_only is None:
            prediction_loss_only = self.args.prediction_loss_only

        # Keeps the metrics that `evaluate` has chosen for its dataset.
        with metrics_of(self, None):
            return evaluate_loader(
                self,
                dataloader,
                description,
                prediction_loss_only=prediction_loss_only,
                ignore_keys=ignore_keys,
                prefix=metric_key_prefix,
            )

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> PredictionOutput:
        """Predict a dataset, and measure the predictions where it has labels.

        Called by scripts only. It calls `get_test_dataloader` and `evaluation_loop`, and fires
        `on_predict`; nothing is logged. Time and memory grow linearly with the number of
        predictions.

        Args:
            test_dataset: the samples; labels are not needed.
            ignore_keys: outputs of the model that are not predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...

        Returns:
            `(predictions, label_ids, metrics)`: arrays over all samples, in the order of the
            dataset, shorter rows padded with -100, a tuple of them where the model has several
            outputs; `label_ids` is None without labels.

        Raises:
            ValueError: the dataset is None.
        """
        if self._fitting is None:
            self._apply_arguments()
        self._memory_tracker.start("test")
        dataloader = self.get_test_dataloader(test_dataset)
        start_time = StartTime()
        output = self.evaluation_loop(
            dataloader,
            description="Prediction",
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )

        # The reported speed excludes the preparation of Lightning and of the model.
        seconds = start_time.seconds_ago - self._setup_seconds
        metrics = add_speed(output, metric_key_prefix, seconds, self.args)
        self.control = self.callback_handler.on_predict(
            self.args, self.state, self.control, metrics
        )
        self._memory_tracker.stop("test", metrics)
        return PredictionOutput(
            predictions=output.predictions, label_ids=output.label_ids, metrics=metrics
        )

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Compute loss, predictions and labels of one batch, without gradients.

        Called by `evaluation_loop` for each batch, with the model in evaluation mode. An override
        may predict in another way, such as by generation.

        Args:
            model: the model to evaluate; under DDP or FSDP the wrapper to call.
            inputs: keyword arguments of its `forward`: a batch of the loader, on any device.
            prediction_loss_only: return nothing but the loss.
            ignore_keys: outputs of the model that are not predictions; by default those that its
                config names in `keys_to_ignore_at_inference`, or caches.

        Returns:
            The loss, a scalar; predictions and labels, detached, with the samples of the batch
            along the first dimension: a tensor, or nested ones where there are several. Each is
            None if it is absent.

        Raises:
            TypeError: `inputs` is not a mapping; override this method for other batches.
        """
        if not isinstance(inputs, (dict, Mapping)):
            raise steps.wrong_batch(self, inputs)
        has_loss = steps.has_loss(inputs, self.label_names, self.can_return_loss)
        inputs = self._prepare_inputs(inputs)

        # Labels.
        labels = None
        if has_loss and not prediction_loss_only:
            label_tensors = [inputs.get(name) for name in self.label_names]
            labels = nested_detach(steps.unwrap_single(tuple(label_tensors)))

        # Logits take most of the memory. As in transformers 5.23, the Liger kernel computes the
        # loss without them.
        skips_logits = prediction_loss_only and self.args.use_liger_kernel
        if skips_logits and steps.only_model_needs_logits(self, inputs):
            inputs = {**inputs, "skip_logits": True}

        # Forward pass.
        forward = steps.no_loss_and_outputs
        if has_loss:
            forward = steps.loss_and_outputs
        with torch.no_grad():
            loss, outputs = forward(self, model, inputs)
        if prediction_loss_only:
            return loss, None, None

        # Predictions.
        if ignore_keys is None:
            config: Any = getattr(self.model, "config", None)
            ignored_by_default = ()
            if config is not None:
                ignored_by_default = CACHES
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", ignored_by_default))
        predictions = split_outputs(outputs, ignore_keys, has_loss=has_loss)
        return loss, nested_detach(steps.unwrap_single(predictions)), labels

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if isinstance(self.lr_scheduler, ReduceLROnPlateau) and not skip_scheduler:
            self.lr_scheduler.step(self._metric_of_best.watched_value(metrics))
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return self._metric_of_best.update(metrics)

    # Checkpoints.

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder of the checkpoints; each trial has its own."""
        folder = self._search.output_dir(str(self.args.output_dir), trial)
        return self._checkpoint_saver.anchored(folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write `checkpoint-{step}` under another name, and rename it once it is complete.

        Raises:
            DiskFullError: there is not enough space for it; nothing has been written.
        """
        # A trial of a search does not count operations.
        if self.hp_search_backend is None and trial is None:
            self.store_flos()

        # What is written beside the model.
        parts: list[Any] = [
            self._save_optimizer_and_scheduler,
            self._save_scaler,
            self._save_rng_state,
            self._external_parameters.save,
        ]
        run = self._fitting
        if run is not None:
            save_data_position = partial(
                self._data_position.save,
                files_of=self._checkpoint_saver.files_of,
                run=run,
                loaders=self._eval_dataloaders,
            )
            parts.append(save_data_position)

        # An override may read or change the files, so it finds them written.
        save_methods = ("save_model", "_save", "_save_checkpoint")
        is_overridden = not all(is_own(self, name) for name in save_methods)
        folder = self._get_output_dir(trial)
        self._checkpoint_saver.save(
            folder, parts, strategy=self._run_strategy, run=run, is_overridden=is_overridden
        )

        checkpoint = os.path.join(folder, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        self._signals.newest_checkpoint = checkpoint
        if self.args.push_to_hub and os.path.isdir(checkpoint):
            self._push_from_checkpoint(checkpoint)

    def _save_rng_state(self, output_dir: str) -> None:
        """Write the states of the random generators of this rank."""
        files = self._checkpoint_saver.files_of(output_dir)
        self._data_position.save_rng(output_dir, files, self._fitting)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write optimizer and schedule; every rank has to call it."""
        files = self._checkpoint_saver.files_of(output_dir)
        in_checkpoint = output_dir == self._checkpoint_saver.staging
        self._run_strategy.save_optimizer(
            output_dir, files=files, checkpoint=in_checkpoint, step=self.state.global_step
        )
        if self.args.should_save and self.lr_scheduler is not None:
            path = os.path.join(output_dir, SCHEDULER_NAME)
            files.write_tensors(self.lr_scheduler.state_dict(), path)

    def _save_scaler(self, output_dir: str) -> None:
        """Write the loss scale of fp16."""
        scaler = self.accelerator.scaler
        if scaler is not None and self.args.should_save:
            save_torch(scaler.state_dict(), os.path.join(output_dir, SCALER_NAME))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Fill the model, or another one, with the weights of a checkpoint."""
        if model is None:
            model = self.model
        self._run_strategy.load_weights(model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """Fill the model with the weights of the best checkpoint."""
        self._restorer.load_best(self._run_strategy, self._external_parameters.load)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of names that a checkpoint lacks or adds; overrides that load weights call it."""
        warn_of_differences(self.model, load_result)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random generators from a checkpoint."""
        if checkpoint is not None:
            self._data_position.load_rng(checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore optimizer and schedule from a checkpoint."""
        if checkpoint is not None:
            load_optimizer_and_schedule(self._run_strategy, self.lr_scheduler, checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Restore the loss scale from a checkpoint."""
        if checkpoint is not None and self.accelerator.scaler is not None:
            load_scaler(self.accelerator.scaler, checkpoint)

    def _load_callback_state(self) -> None:
        """Restore the states of callbacks from `self.state`, if the arguments ask for it."""
        if self.args.restore_callback_states_from_checkpoint:
            self._callback_states.restore_exported()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, its processing class and the arguments into a folder.

        Called for each checkpoint, by `push_to_hub`, and by scripts. All processes have to call it,
        as each may hold a part of the weights; the main one writes. An override may write further
        files into `output_dir`, or other weights.

        Args:
            output_dir: the folder, by default that of the arguments; made if needed.
            _internal_call: set by the Trainer's own calls, which upload nothing. Otherwise the
                model is uploaded where `push_to_hub` is set.

        Raises:
            ValueError: it is not a folder, but an address such as `s3://bucket/folder`.
            DiskFullError: there is not enough space.
        """
        folder = str(self.args.output_dir)
        if output_dir is not None:
            folder = output_dir
        require_local(folder, "output_dir")
        self._checkpoint_saver.save_model(
            folder,
            self._save,
            internal=_internal_call,
            strategy=self._run_strategy,
            run=self._fitting,
        )
        # An upload of a checkpoint begins once it has its final name.
        if _internal_call:
            return

        self._object_store.upload_written_files()
        if self.args.push_to_hub:
            try:
                self.push_to_hub(commit_message="Model saved", revision=self.args.hub_revision)
            except Exception:
                logger.error("The model is saved; only its upload to the Hub failed.")
                raise

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Write the model, or other weights instead; called in the process that saves."""
        if output_dir is None:
            output_dir = str(self.args.output_dir)
        self._checkpoint_saver.write_model(output_dir, state_dict)

    # Logs and metrics.

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add values to the history, and pass them to all callbacks.

        Called every `logging_steps`, after each evaluation, and at the end of a training. It adds
        `epoch`, and with `include_num_input_tokens_seen` the tokens. An override may add to `logs`,
        or leave some out, before it calls this method; it returns nothing.

        Args:
            logs: numbers by name; the dict is changed in place.
            start_time: when the training began, in seconds of `time.time()`, for tokens per second.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch

        # Tokens.
        if self.args.include_num_input_tokens_seen != "no":
            self._tokens_of_run.flush_own()
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                tokens = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(speed_metrics("train", start_time, num_tokens=tokens))

        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def record(self, **values: torch.Tensor | float) -> None:
        """Add values to the next log, and in an evaluation to its metrics, under their names.

        A value of `compute_loss` or `training_step` is a mean over the items of its micro-batch,
        and is averaged as the loss is: by items where the loss is divided by them, over the
        micro-batches and steps since the last log and over all processes; in an evaluation by
        samples. Elsewhere, as in a callback, each call counts the same. Nothing waits for the
        device before the log is due. Callbacks have the method too. Metrics of `compute_metrics`
        take precedence over recorded values of the same name.

        Args:
            values: numbers, or tensors with one element.

        Raises:
            RuntimeError: neither a training nor an evaluation is running.
            ValueError: a value is not a number, or a name is the Trainer's own, such as `loss`.
        """
        record(values)

    def store_flos(self) -> None:
        """Add the floating point operations of all processes since the last call to the state.

        Called before each checkpoint and at the end of a training. All processes have to call it.
        It sets `state.total_flos`, and resets `current_flos`.
        """
        total = self.current_flos
        if self.args.world_size > 1:
            # nccl reduces tensors on a GPU only.
            device = _CPU
            if self.args.device.type == "cuda":
                device = self.args.device
            flos = torch.tensor([total], dtype=torch.float64, device=device)

            # Ranks with the same batches have counted the same operations.
            total = self.accelerator.reduce(flos).item() / copies_of_batches(self.args)
        self.state.total_flos += total
        self.current_flos = 0.0

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count the floating point operations of a forward and a backward pass.

        Called for each micro-batch. An override returns another number; `total_flos` in the logs is
        their sum.

        Args:
            inputs: the batch.

        Returns:
            Six for each token and each parameter outside of the embeddings; 0 where the model has
            no method `num_parameters` that can leave them out, or the batch lacks its main input.
        """
        main_input = None
        if isinstance(inputs, Mapping):
            main_input = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        if main_input is None or not hasattr(self.model, "num_parameters"):
            return 0
        return 6 * main_input.numel() * self._parameter_counter.count()

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print metrics as a table, in the first process.

        Args:
            split: `train`, `eval` or `test`, for the heading.
            metrics: as `train`, `evaluate` and `predict` return them.
        """
        if self.is_world_process_zero():
            print_metrics_table(split, self.metrics_format(metrics))

    @staticmethod
    def metrics_format(metrics: dict[str, float]) -> dict[str, Any]:
        """Convert metrics to units that are easy to read.

        Called by `log_metrics`; an override returns what is to be printed.

        Args:
            metrics: as `train`, `evaluate` and `predict` return them.

        Returns:
            The same names: memory in MB, runtimes as h:mm:ss, `total_flos` in GF, other numbers
            with four decimals.
        """
        return metrics_format(metrics)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write metrics to `{split}_results.json` in `output_dir`, in the first process.

        Args:
            split: `train`, `eval`, `test` or `all`.
            metrics: as `train`, `evaluate` and `predict` return them.
            combined: also merge them into `all_results.json`.

        Raises:
            ValueError: `all_results.json` is damaged.
        """
        if self.is_world_process_zero():
            write_metrics(str(self.args.output_dir), split, metrics, combined=combined)

    def save_state(self) -> None:
        """Write the state to `trainer_state.json` in `output_dir`, in the first process.

        That is the step, the history of logs and the best metric; weights, optimizer and random
        generators are in checkpoints.
        """
        if self.is_world_process_zero():
            self.state.save_to_json(os.path.join(str(self.args.output_dir), TRAINER_STATE_NAME))
            self._object_store.upload_written_files()

    # The Hub.

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository of the uploads on the Hub, and its branch, unless they exist.

        Called by the constructor with `push_to_hub=True`, and by `push_to_hub`. It sets
        `hub_model_id` in the main process; the others do nothing.

        Args:
            token: overrides `hub_token`.
            private: overrides `hub_private_repo`.

        Raises:
            HfHubHTTPError, OfflineModeIsEnabled, HFValidationError: of `huggingface_hub`, with what
                to do.
        """
        token = secret(token)
        self._hub.create_repository(token, private)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write a model card, `README.md`, and `loss_curve.svg` into `output_dir`.

        Called by `push_to_hub`, for uploads of checkpoints, and by scripts; the main process
        writes. It keeps the tags of an older card, and works offline. Values that are not given are
        derived from model, data and arguments where possible. An override may write another card,
        and may take some of the parameters only.

        Args:
            language: language of the model, such as "en".
            license: identifier of the license; by default that of `finetuned_from`.
            tags: one tag, or several.
            model_name: heading of the card; by default the name of the repository or of the folder.
            finetuned_from: repository of the model that training started with.
            tasks: identifiers of tasks on the Hub, such as "text-classification".
            dataset_tags: identifiers of the datasets on the Hub.
            dataset: names of the datasets as they are shown.
            dataset_args: their configurations or splits, as they are shown.
        """
        # All parameters are facts of the card, by their names.
        facts = dict(locals())
        del facts["self"]
        if self.is_world_process_zero():
            self._hub.write_card(**facts)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> CommitInfo | Future[CommitInfo] | None:
        """Save the model and its card, and upload `output_dir` to the Hub.

        Called by scripts, and by `save_model` with `push_to_hub=True`. Checkpoints in the folder
        are left out, as is what begins with an underscore. Where the model is sharded all processes
        have to call it. Fires `on_push_begin`.

        Args:
            commit_message: subject of the commit.
            blocking: wait for the upload.
            token: overrides `hub_token`.
            revision: branch; overrides `hub_revision`.
            private: overrides `hub_private_repo`.
            kwargs: arguments of `create_model_card`.

        Returns:
            The commit, or with `blocking=False` a future of it; None on processes other than the
            first.

        Raises:
            HfHubHTTPError: the Hub refused, or could not be reached; `output_dir` holds the model
                all the same.
        """
        token = secret(token)
        self.control = self.callback_handler.on_push_begin(self.args, self.state, self.control)

        # Overrides of libraries may take the token only.
        if self.hub_model_id is None and private is None:
            self.init_hf_repo(token=token)
        elif self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)

        # An upload that runs may read the files that are about to be written.
        self._finish_current_push()
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**self._hub.card_arguments(**kwargs))
        message = commit_message or "Upload of a model"
        return self._hub.upload(message, blocking=blocking, token=token, revision=revision)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Start the upload of a complete checkpoint, unless another upload is running."""
        if self.is_world_process_zero():
            self._hub.push_checkpoint(
                checkpoint_folder, has_default_card=is_own(self, "create_model_card")
            )

    def _finish_current_push(self) -> None:
        """Wait for running uploads, also for those that fail."""
        self._hub.wait()

    # Hyperparameter search.

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int | None = 20,
        direction: str | list[str] | None = None,
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]:
        """Search for the arguments that give the best evaluations, one training for each trial.

        Each trial begins from the arguments as they are, with a new model of `model_init`.
        Afterwards the arguments have their values again, and the Trainer holds the best model
        (`final_model`); `study` is the study. In several processes all stop together, and each gets
        the result.

        Args:
            hp_space: a trial -> values by name of a training argument; by default the space of
                transformers.
            compute_objective: metrics -> a number, or several; by default the sum of the metrics,
                or the loss if there are no others.
            n_trials: number of trials; may be None with `timeout`.
            direction: `minimize`, which is the default, or `maximize`; one for each objective.
            backend: `optuna`, or `ray`.
            hp_name: a trial -> the name of its folder in `output_dir`; by default `run-<number>`.
            kwargs: those of `SearchOptions`; for optuna of `optuna.create_study` and
                `Study.optimize`, for ray of `ray.tune.run`.

        Returns:
            The best run, or with several objectives all runs of the Pareto front.

        Raises:
            RuntimeError: model_init is missing, or the library of the backend is not installed.
            ValueError, TypeError, KeyError: invalid parameters, or an objective that no evaluation
                gives.
            ConnectionError: the storage cannot be reached.
        """
        checks.require_new_models(self)
        checks.require_training_data(self)
        try:
            return self._search.run(
                hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs
            )
        finally:
            self._trial = None

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make a new model by `model_init`.

        Called by the constructor where no model was passed, and when each training and each trial
        begins.

        Args:
            trial: passed to `model_init` if that takes an argument.

        Returns:
            The model.

        Raises:
            RuntimeError: there is no `model_init`, it takes several arguments, or it returned None.
            TypeError: it returned something that is not a model.
        """
        if self.model_init is None:
            raise checks.MissingModelError(
                "The Trainer needs a model. Pass model=... or model_init=... to it."
            )
        return construction.make_model(self.model_init, trial)

    def _renew_model(self, trial: object) -> None:
        """Make a new model; make it again if the trial changes the seed of its initial weights."""
        self._replace_model(trial)
        seed = (self.args.seed, self.args.full_determinism)
        self._hp_search_setup(trial)
        if seed != (self.args.seed, self.args.full_determinism):
            self._replace_model(trial)

    def _replace_model(self, trial: object) -> None:
        """Replace the model by a new one of `model_init`, if any; drop optimizer and schedule."""
        if self.model_init is None:
            return

        # The model of the previous trial is freed first, so that both are never in memory together.
        if self._search.current is not None:
            self._search.current.free_model()
        seed_everything(self.args)
        self.model = self.call_model_init(trial)
        self.optimizer = None
        self.lr_scheduler = None
        if self.place_model_on_device:
            self._move_model_to_device(self.model, self.args.device)
        self.model_wrapped = self.model

    def _hp_search_setup(self, trial: Any) -> None:
        """Apply the values of a trial, None outside of a search; libraries override it.

        Called once in each training.
        """
        self._trial = trial
        if self._search.apply(trial):
            self._train_batch_size = self.args.train_batch_size
            self._apply_arguments()

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation during the training to the search; libraries override it."""
        self._search.report(trial, step, metrics)

    # Callbacks and processes.

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback] | Callback) -> None:
        """Add a callback of the Trainer, or one of Lightning.

        Args:
            callback: the callback, or a class that is made without arguments. It is called after
                those that were added before.

        Raises:
            TypeError: it has no event of either kind.
            ValueError: a callback of Lightning that would have no effect here, with the reason.
        """
        if is_lightning_callback(callback):
            check_callback(callback)
            if isinstance(callback, type):
                callback = callback()
            self._lightning_callbacks.append(callback)
        else:
            self.callback_handler.add_callback(callback)
            expose_save_model(self, self.callback_handler.callbacks[-1])

    def pop_callback(
        self, callback: TrainerCallback | type[TrainerCallback] | Callback | type[Callback]
    ) -> TrainerCallback | Callback | None:
        """Remove a callback, and return it.

        Args:
            callback: the callback, or its class: then the first of that class.

        Returns:
            The callback that was removed, or None if the Trainer has none like it.
        """
        if not is_lightning_callback(callback):
            return self.callback_handler.pop_callback(callback)

        for index, present in enumerate(self._lightning_callbacks):
            if present is callback or type(present) is callback:
                return self._lightning_callbacks.pop(index)
        return None

    def remove_callback(
        self, callback: TrainerCallback | type[TrainerCallback] | Callback | type[Callback]
    ) -> None:
        """Remove a callback.

        A default callback can be removed by its class, without asking whether it is used.

        Args:
            callback: the callback, or its class: then the first of that class, if there is one.

        Raises:
            ValueError: the Trainer does not have this instance.
        """
        if is_lightning_callback(callback):
            self.pop_callback(callback)
        else:
            self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        """Return whether this is the first process of its machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this is the first process of all: the main one, which writes files."""
        return self.args.process_index == 0

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if getattr(model, "hf_device_map", None) is not None:
            logger.warning(
                "The model is spread over devices already (hf_device_map) and is not moved to %s.",
                device,
            )
            return
        move_model(model, device)
