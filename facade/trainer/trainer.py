"""`Trainer`, with its public methods in the order of the documentation."""

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
from torch.utils.hooks import RemovableHandle

from ...callbacks import CallbackHandler, TrainerCallback, TrainerControl, TrainerState
from ...callbacks.ema import evaluated_averages
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
from ...lightning_modules.models.outputs import CACHES, additional_losses, read_loss, split_outputs
from ...lightning_modules.models.signatures import (
    accepted_arguments,
    signature_columns,
)
from ...lightning_modules.models.tied_parameters import move_model
from ...lightning_modules.models.wrappers import base_of_adapter
from ...lightning_modules.optim import decay_parameter_names, optimizer_class_and_kwargs
from ...lightning_modules.training.label_smoothing import LabelSmoother
from ...lightning_modules.training.tracked_items import TrackedItems
from ..accelerator.accelerator import Accelerator
from ..arguments import TrainingArguments
from ..arguments.enums import DebugOption, HPSearchBackend
from ..arguments.rank_groups import (
    copies_of_batches,
    effective_parallelism,
    ranks_counted_together,
    samples_of_rank,
)
from ..arguments.unknown import SignatureOfInit, refuse_unknown, understand_old_names
from ..checkpointing.training_state import (
    load_optimizer_and_schedule,
    load_scaler,
)
from ..distributed.xla_device import print_metrics
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
from ..strategies.plan import optimizer_config
from . import checks, optimization, steps
from .applied_arguments import AppliedArguments
from .callback_setup import expose_save_model, set_up_callbacks
from .components import TrainerComponents
from .construction import make_output_dir, seed_everything, set_verbosity
from .data_loading import chosen_dataset, default_collator, training_length
from .evaluating import add_speed, data_to_evaluate, evaluate_each, evaluate_loader
from .lightning_callbacks import check_callback, is_lightning_callback
from .memory_report import MemoryTracker
from .meters import RunningLossAttribute
from .model_setup import make_model
from .overrides import is_own
from .planning import plan_of
from .step_items import equal_part
from .tracebacks import ShortTraceback
from .training_run import TrainingRun

if TYPE_CHECKING:
    from typing import Self

    from huggingface_hub import CommitInfo
    from lightning.pytorch import Callback
    from torch.optim.lr_scheduler import LRScheduler

    from ..search.hyperparameters import BestRun

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")

require_lightning()  # Lightning itself is imported when a training begins.


@understand_old_names
class Trainer:
    """Train a PyTorch model, evaluate it and predict with it, using Lightning's loops.

    It has the constructor and the methods of `transformers.Trainer`, and computes the same numbers;
    strategies and precision come from Lightning. Every documented method is called by the training
    or evaluation loop and can be overridden; its description explains when it is called and what it
    must return. Lightning objects are only created by `train`, `evaluate` or `predict`, so
    arguments may be changed until then. `print(trainer.plan)` shows how the arguments map to
    Lightning.

    Args:
        model: the model to train: any `torch.nn.Module` that returns a loss, in a mapping, as the
            first element of a tuple, or as an attribute `loss`.
        args: the training arguments; by default `TrainingArguments("tmp_trainer")`.
        data_collator: converts a list of samples to a batch. By default it pads with the processing
            class if that can pad, and is `default_data_collator` otherwise.
        train_dataset: a map-style or iterable dataset. Columns that the model does not accept are
            removed.
        eval_dataset: a dataset, or a dict of datasets that are each evaluated under their name.
        processing_class: a tokenizer, feature extractor or processor, saved together with the
            model.
        model_init: creates a new model for each `train`; may accept a trial.
        compute_loss_func: computes the loss from `(outputs, labels, num_items_in_batch)`. If
            `compute_loss` is overridden, any value other than None tells the Trainer that the
            override divides its loss by the items of all micro-batches of a step.
        compute_metrics: a function that computes a dict of metrics from an `EvalPrediction`, or
            torchmetrics objects; or a dict of either, by name of an eval_dataset.
        callbacks: TrainerCallbacks or their classes, and Lightning callbacks.
        optimizers: the optimizer and the learning rate scheduler to use instead of those described
            by the arguments.
        optimizer_cls_and_kwargs: optimizer class and its keyword arguments; the parameter groups
            are the default ones.
        preprocess_logits_for_metrics: computes from `(logits, labels)` what to keep instead of the
            logits of a batch, such as their argmax.
        eval_data_collator: replaces data_collator in evaluations and predictions.

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
    neftune_hook_handle: RemovableHandle
    """The hook of the current or last training with noise."""
    deepspeed: Any = None
    """DeepSpeed's engine of the last training, as in the reference."""
    study: Any = None
    """The optuna study of the last search; only on rank 0."""
    model_preparation_time: float
    """Seconds that the setup of the first training or evaluation took; not set before that."""

    checkpoint_on_signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
    """Signals on which a training saves a checkpoint and stops after the current step.

    An empty tuple disables this.

    With `save_strategy="no"` signals are not handled, unless `enable_jit_checkpoint` requests a
    checkpoint on SIGTERM. Signals that the process ignores stay ignored.
    """

    keep_effective_batch_size: bool = False
    """Whether `auto_find_batch_size` keeps the number of samples per optimizer step, and thereby
    the number of steps and the learning rates.
    """

    background_checkpoints: int | None = 64 * 2**20
    """Maximum size in bytes of checkpoints buffered in memory for the thread that writes them.

    At least one checkpoint is always buffered. With None the training waits while checkpoints are
    written. An override of `save_model` and the event `on_save` always find the files written.
    """

    loss_is_scaled_for_ga: bool | None = None
    """Whether an override of `compute_loss` divides its loss by the items of the whole step.

    As in `transformers` 5.19 and later. None derives it from `compute_loss_func` and
    `model_accepts_loss_kwargs`.
    """

    # Class-level defaults of attributes that are set later. Subclasses in libraries that have their
    # own training loop use methods such as `log` and `_save_checkpoint` without calling `__init__`.
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
    """The objective computed from the last evaluation of a trial."""
    current_flos: float = 0.0
    """Floating-point operations of this process that are not yet added to `state.total_flos`."""
    _trial: Any = None
    _created_lr_scheduler = False
    _initial_num_input_tokens_seen = 0

    _lightrainer = cached_property(TrainerComponents)
    _eval_dataloaders: cached_property[dict[str, Any]] = cached_property(lambda self: {})
    """Loaders with persistent workers, by name of their dataset; libraries access it."""
    _lightning_callbacks: cached_property[list[Any]] = cached_property(lambda self: [])

    # Attributes of the reference, for overrides of `_maybe_log_save_evaluate` that do not call
    # `super()`.
    _tr_loss = RunningLossAttribute("since_log")
    _total_loss_scalar = RunningLossAttribute("total")
    _globalstep_last_logged = RunningLossAttribute("last_logged")

    if TYPE_CHECKING:
        current_gradient_accumulation_steps: int
    else:

        @cached_property
        def current_gradient_accumulation_steps(self) -> int:
            """Micro-batches of the current optimizer step."""
            return self.args.gradient_accumulation_steps

        def __getattr__(self, name: str) -> Any:
            """Resolve attributes of other versions of transformers."""
            return checks.missing_attribute(self, name)

    __signature__ = SignatureOfInit()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise an error with advice for unknown keywords, including those of subclasses."""
        # Keep only the names: tracebacks may show local variables, and values may be access tokens.
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
        # Arguments, and checks that need nothing else.
        components = self._lightrainer
        if args is None:
            args = TrainingArguments(output_dir="tmp_trainer")
        self.args = args
        checks.check_overrides(type(self))
        calls_loss_func = is_own(self, "compute_loss") and is_own(self, "training_step")
        checks.check_construction(self.args, locals(), calls_loss_func=calls_loss_func)

        # Process, seed and device.
        set_verbosity(self.args)
        seed_everything(self.args)
        self._memory_tracker = MemoryTracker(self.args.skip_memory_metrics)
        self._memory_tracker.start("init")
        self.create_accelerator_and_postprocess()

        # Parameters.
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
        # A subclass may have set it before.
        if eval_data_collator is not None:
            self.eval_data_collator = eval_data_collator

        # The model, and attributes derived from it.
        if model is None:
            model = self.call_model_init()
        components.model_setup.adopt(model)
        if data_collator is None:
            checks.check_label_names(self)

        # State, callbacks, and the output folder.
        self.control = TrainerControl()
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self._signature_columns: Any = None
        self._train_batch_size = self.args.train_batch_size
        components.applied_arguments = AppliedArguments(self)
        set_up_callbacks(self, callbacks or [])
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            stateful_callbacks=components.callback_states.exported(),
        )
        self._validate_args()
        if self.args.push_to_hub:
            self.init_hf_repo()
        if self.args.should_save:
            make_output_dir(str(self.args.output_dir))
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)
        self._memory_tracker.stop("init")

    def _validate_args(self) -> None:
        """Do nothing. Libraries override it to check arguments that depend on model and data."""

    def __getstate__(self) -> dict[str, Any]:
        """Exclude what is bound to this Trainer: a copy of the Trainer creates its own."""
        state = dict(vars(self))
        for name in ("_lightrainer", "_eval_dataloaders", "current_gradient_accumulation_steps"):
            state.pop(name, None)
        return state

    def create_accelerator_and_postprocess(self) -> None:
        """Set `accelerator` and `gather_function`, and the flags of FSDP and DeepSpeed.

        Called once by the constructor, before the model is set, and by a hyperparameter search
        whenever it changes the arguments. An override calls this method, and may then modify
        `self.accelerator` or replace `self.gather_function`, which gathers predictions and labels
        of all processes.
        """
        self.accelerator = Accelerator(self.args)
        self.gather_function: Callable[..., Any] = self.accelerator.gather_for_metrics

        # Libraries read these flags. If `fsdp_config` was a path, it has been replaced by the
        # contents of the file.
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
        """The arguments translated to Lightning, as a RunPlan that prints as a table."""
        components = self._lightrainer
        if "plan" in vars(self):
            return vars(self)["plan"]
        if components.plan is not None and components.plan.strategy.is_running:
            return components.plan
        return plan_of(self)

    @plan.setter
    def plan(self, value: Any) -> None:
        # transformers does not use this name, so a subclass may store something else under it.
        vars(self)["plan"] = value

    # Data.

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of the training data, shuffled and sharded over the processes.

        Called once at the start of a training, and again for each batch size that
        `auto_find_batch_size` tries. An override may return any iterable of batches, if it has a
        length or `max_steps` is set. A plain `DataLoader` is used without sharding; use
        `accelerator.prepare` or `build_loader` to shard it over the processes.

        Returns:
            A loader whose batches have `args.train_batch_size` samples, this process's share.

        Raises:
            ValueError: the Trainer has no `train_dataset`.
        """
        if self.train_dataset is None:
            raise ValueError("Training needs data: pass train_dataset=... to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of an evaluation, sharded over the processes.

        Called by each `evaluate`. Samples are in the order of the dataset. An override may return
        any iterable of batches.

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
        # Reuse loaders with persistent workers.
        key = "eval"
        if isinstance(eval_dataset, str):
            key = eval_dataset
        if self.args.dataloader_persistent_workers and key in self._eval_dataloaders:
            return self._eval_dataloaders[key]

        return self._get_dataloader(
            dataset=chosen_dataset(eval_dataset, self.eval_dataset),
            description="Evaluation",
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
        """Count the samples of a loader's dataset, over all processes.

        Called at the start of a training or an evaluation, to compute the length of the training
        and for log messages.

        Args:
            dataloader: a loader, usually from one of the three methods above.

        Returns:
            The length of its dataset; if the dataset has no length, the number of batches times
            `per_device_train_batch_size`.

        Raises:
            TypeError: neither the dataset nor the loader has a length.
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
        return self._lightrainer.data_loading.loader(
            dataset, description, batch_size, sampler_fn, is_training, dataloader_key
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset = train_dataset
        if dataset is None:
            dataset = self.train_dataset
        return self._lightrainer.data_loading.train_sampler(
            dataset, self.args.train_sampling_strategy
        )

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return self._lightrainer.data_loading.eval_sampler(eval_dataset)

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
        """Create the optimizer, and then the learning rate schedule.

        Called once per training, when the model is on its device and, with FSDP, sharded. An
        override sets `self.optimizer` and `self.lr_scheduler`. Usually it is easier to override one
        of the two methods that are called here.

        Args:
            num_training_steps: number of optimizer steps of the whole training.
        """
        self._lightrainer.steps_of_schedule = num_training_steps
        build_optimizers_without_compiler()  # for overrides of `create_optimizer`
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

        Called by `create_optimizer_and_scheduler`. An override creates an optimizer for the
        parameters of `self.model`, sets `self.optimizer` and returns it.

        Args:
            model: the model to optimize; by default the Trainer's.

        Returns:
            `self.optimizer`. By default it has two parameter groups: the parameters of
            `get_decay_parameter_names` with `args.weight_decay`, and the others without weight
            decay. `parameter_rules` create more groups.

        Raises:
            ValueError, ImportError: a required setting of the optimizer is missing, or its library
                is not installed.
        """
        return optimization.create_optimizer(self, model)

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        """Create the learning rate schedule, unless the Trainer has one.

        Called by `create_optimizer_and_scheduler`, after `create_optimizer`. An override sets
        `self.lr_scheduler` and returns it. The schedule is stepped after each optimizer step, a
        `ReduceLROnPlateau` after each evaluation.

        Args:
            num_training_steps: number of optimizer steps of the whole training.
            optimizer: the optimizer to schedule; by default the Trainer's.

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
        """Return the optimizer class that the arguments select, and its keyword arguments.

        Called by `create_optimizer`. An override may return another class and its keyword
        arguments; the parameter groups are the default ones.

        Args:
            args: the training arguments, such as `optim`, `optim_args` and `learning_rate`.
            model: the model; only used by GaLore, APOLLO and LOMO, which select parameters from it.

        Returns:
            The class, and its keyword arguments without the parameters.

        Raises:
            ImportError, ValueError: the library of the optimizer is not installed, or a required
                setting is missing or not supported by the optimizer.
        """
        optimizer_class, kwargs = optimizer_class_and_kwargs(optimizer_config(args), model)
        optimization.check_optimizer(args, optimizer_class)
        return optimizer_class, kwargs

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters to which weight decay is applied.

        Called by `create_optimizer`. An override may return other names.

        Args:
            model: the model.

        Returns:
            Names as in `named_parameters()`, of all parameters except biases and those of
            normalisation layers.
        """
        return decay_parameter_names(model)

    def get_learning_rates(self) -> list[float]:
        """Return the current learning rate of each parameter group.

        Raises:
            ValueError: the Trainer has no optimizer yet.
        """
        optimizer = optimization.require_optimizer(self.optimizer)
        return [group["lr"] for group in optimizer.param_groups]

    def get_num_trainable_parameters(self) -> int:
        """Return the number of trainable parameters of the model.

        Called at the start of a training, for a log message. Sharded parameters count with their
        full size.
        """
        count = 0
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                # DeepSpeed stores the full size of a sharded parameter in an attribute.
                count += getattr(parameter, "ds_numel", parameter.numel())
        return count

    def get_optimizer_group(
        self, param: str | nn.Parameter | None = None
    ) -> dict[str, Any] | list[list[nn.Parameter]]:
        """Return the parameter group of the optimizer that contains a parameter.

        Args:
            param: a parameter, or its name in the model.

        Returns:
            The group, a dict with `params`, `lr` and further options. Without `param`, or if the
            parameter is in no group, a list with the parameters of each group.

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
        """Train the model, and return the number of steps, the mean loss and metrics.

        Afterwards `self.model` has the weights of the last step, or with `load_best_model_at_end`
        those of the best checkpoint, and `self.state` has the log history.

        Args:
            resume_from_checkpoint: a checkpoint folder to resume from; True for the newest intact
                one in `output_dir`. If `torchrun` restarts a training, it resumes from its last
                checkpoint unless this is False.
            trial: the trial of a hyperparameter search.
            ignore_keys_for_eval: outputs of the model that are not predictions, for evaluations
                during the training.

        Returns:
            `(global_step, training_loss, metrics)`: the number of optimizer steps, their mean loss,
            and a dict with runtime in seconds, samples and steps per second, and floating-point
            operations.

        Raises:
            ValueError, FileNotFoundError: the training data is missing or empty, or the checkpoint
                is damaged or missing.
            OtherProcessError: another process failed first; the message has its rank and error.
            SystemExit, KeyboardInterrupt: a signal ended the training, after a checkpoint; see
                `checkpoint_on_signals`.
        """
        components = self._lightrainer
        with (
            ShortTraceback(),
            components.signals.stop_listening_at_end(),
            name_first_error(),
        ):
            components.run = TrainingRun(self, trial, ignore_keys_for_eval)
            try:
                return components.run.run(resume_from_checkpoint)
            finally:
                components.run = None

    def end(self) -> None:
        """Wait for uploads to the Hub, and destroy the process group.

        Call it after training if the script then continues with other work in the same processes.
        Works like `Trainer.end` of transformers 5.18 and later.
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
        """Train once. Libraries wrap this method, so its signature is that of the reference."""
        components = self._lightrainer
        if components.run is not None:
            return components.run.fit(resume_from_checkpoint)

        # A library has called this method outside of `train`.
        components.run = TrainingRun(self, trial, ignore_keys_for_eval)
        try:
            return components.run.fit(resume_from_checkpoint)
        finally:
            components.run = None

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Compute the loss of one micro-batch and its gradients.

        Called for each micro-batch: `gradient_accumulation_steps` times before an optimizer step.
        It puts model and optimizer into training mode, and calls `_prepare_inputs`, `compute_loss`
        and `accelerator.backward`. An override may modify the inputs, or run code before and after
        this method. One that replaces it must call `self.accelerator.backward(loss)` to accumulate
        gradients, and must neither step the optimizer nor clear the gradients.

        Args:
            model: the model to train, wrapped by DDP or FSDP if one is used.
            inputs: keyword arguments of its `forward`: a batch of the loader, on any device.
            num_items_in_batch: number of labels in all micro-batches of the step that are not
                ignored, over all processes; None if neither the model nor the loss function accepts
                it.

        Returns:
            The loss as a detached scalar on the device, scaled so that the sum over the
            micro-batches of a step is the loss of the step.

        Raises:
            TypeError: `compute_loss` did not return a tensor.
        """
        split, inputs = self._prepare_context_parallel_inputs(model, inputs)
        with split():
            model.train()
            if callable(getattr(self.optimizer, "train", None)):
                self.optimizer.train()
            inputs = self._prepare_inputs(inputs)

            micro_batch = self.accelerator.micro_batch
            if micro_batch is None and self.current_gradient_accumulation_steps > 1:
                # Called outside of a training: all micro-batches have equal weight.
                micro_batch = equal_part(self, num_items_in_batch)
                num_items_in_batch = micro_batch.items
            splits_sequences = self._lightrainer.context_parallel.targets is not None
            if splits_sequences and num_items_in_batch is not None:
                num_items_in_batch = TrackedItems.of(num_items_in_batch)

            # Forward. An override of `compute_loss` may not accept `num_items_in_batch`.
            loss_kwargs = accepted_arguments(
                self.compute_loss, num_items_in_batch=num_items_in_batch
            )
            with self.compute_loss_context_manager():
                loss: Any = self.compute_loss(model, inputs, **loss_kwargs)
            if not hasattr(loss, "backward"):
                raise steps.wrong_loss(f"{type(self).__name__}.compute_loss", loss)
            if splits_sequences:
                loss = self._lightrainer.context_parallel.loss_of_override(
                    loss, model, num_items_in_batch
                )
            del inputs
            if self.args.torch_empty_cache_steps is not None:
                steps.empty_cache_if_due(self.args, self.state.global_step)

            # Backward. A mean loss is scaled by this micro-batch's share of the step.
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
        """Compute the loss of a batch; override it to use another loss.

        Called by `training_step` for each micro-batch, with gradients, and by `prediction_step`,
        without gradients and with `return_outputs=True`. An override may omit the parameter
        `num_items_in_batch`; its loss is then assumed to be a mean over the micro-batch, and scaled
        by the Trainer. An override that divides by `num_items_in_batch` itself sets
        `loss_is_scaled_for_ga = True`. It may remove labels from `inputs`, and log further values
        with `self.record`.

        Args:
            model: the model; call it as `model(**inputs)`.
            inputs: keyword arguments of its `forward`, on its device.
            return_outputs: whether to return the outputs of the model as well.
            num_items_in_batch: number of labels in all micro-batches of the step that are not
                ignored, over all processes, as the divisor of a sum of losses; None in evaluations.

        Returns:
            The loss, a scalar tensor. With `return_outputs`, the loss and the outputs of the model:
            a mapping, or a tuple whose first element is the loss.

        Raises:
            ValueError: the model returned no loss.
            TypeError: `inputs` is not a mapping; override this method for other batches.
        """
        components = self._lightrainer
        if not isinstance(inputs, (dict, Mapping)):
            raise steps.wrong_batch(self, inputs)
        labels = None
        split = components.context_parallel.targets is not None
        items = num_items_in_batch
        if items is not None and self.args.world_size > 1:
            items = TrackedItems.of(items)

        # Forward. Labels are not passed to the model if the loss is computed below.
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        if takes_labels and "labels" in inputs:
            if split:
                labels = components.context_parallel.pop_labels(model, inputs)
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
            ranks = ranks_counted_together(self.args)
            if ranks > 1:
                loss = loss * ranks
        if split:
            loss = components.context_parallel.loss_of_part(
                loss, model, inputs, labels, is_mean=not divided_by_items
            )
        if return_outputs:
            return loss, outputs
        return loss

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """Return the context manager in which `compute_loss` runs, in training and in evaluations.

        It enters `autocast_smart_context_manager`. An override may add others, such as that of a
        profiler.

        Returns:
            A context manager that is entered once per micro-batch. With mixed precision, only the
            model's forward pass is autocast; the rest of the loss is computed in float32.
        """
        contexts = ExitStack()
        autocast = self.autocast_smart_context_manager()
        if not isinstance(autocast, nullcontext):
            contexts.enter_context(autocast)
        return contexts

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> AbstractContextManager[Any]:
        """Return an additional context manager for `compute_loss`; it does nothing by default.

        Lightning's precision plugin autocasts the forward pass only. An override may return
        `torch.autocast(...)` to include the loss.

        Args:
            cache_enabled: for overrides: whether to cache cast weights until the end of the block.

        Returns:
            A context manager that `compute_loss_context_manager` enters.
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
        """Log, evaluate and save at the end of a step or an epoch, as the control requests."""
        components = self._lightrainer
        run = components.fitting
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
                self.control.should_save = is_best or components.signals.is_interrupted

        # Save.
        if self.control.should_save:
            run.require_in_all("should_save")
            components.tokens_of_run.flush()
            if run.save(model, trial, is_due=True):
                self.control = self.callback_handler.on_save(self.args, self.state, self.control)
                components.checkpoint_saver.accept_changes()
            else:
                self.control.should_save = False

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Read the micro-batches of the next optimizer step, and count their items.

        Called before each optimizer step. An override may filter or modify the batches. It returns
        those to train on in this step; an empty list ends the epoch.

        Args:
            epoch_iterator: yields the batches of this process.
            num_batches: number of micro-batches to read; the end of an epoch may provide fewer.
            device: the device on which to place a count that is a tensor.

        Returns:
            The micro-batches, and the number of their labels other than -100 over all processes: a
            number, or an integer tensor of one element; None if the loss is not divided by it.
        """
        batch_samples = list(itertools.islice(epoch_iterator, num_batches))
        return batch_samples, self._get_num_items_in_batch(batch_samples, device)

    def _get_num_items_in_batch(
        self, batch_samples: list[Any], device: torch.device
    ) -> torch.Tensor | int | None:
        """Return the number of labels in a step that are not -100, over all processes; None if not
        needed.
        """
        if not self.model_accepts_loss_kwargs and self.compute_loss_func is None:
            return None
        return steps.count_items(self, batch_samples, torch.device(device))

    def _prepare_input(self, data: Any) -> Any:
        """Move a batch to the device, unless its loader has done so."""
        # An override expects to be called for each value of the batch as well.
        if type(self)._prepare_input is not Trainer._prepare_input:
            data = steps.prepare_values(self._prepare_input, data)

        device = self._lightrainer.device_of_run or self.args.device

        # Fast path: a flat batch that is already on the CPU. The dict is copied, because the loss
        # may remove the labels from it.
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
        """Move a batch to the device; raise an error if it is empty."""
        inputs = self._prepare_input(inputs)
        if not (type(inputs) is dict and inputs):
            steps.require_batch(self, inputs)
        return inputs

    def _prepare_context_parallel_inputs(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[Callable[[], AbstractContextManager[Any]], dict[str, Any]]:
        if self.args.parallelism_config is None:
            return nullcontext, inputs
        return self._lightrainer.context_parallel.prepare(model, inputs)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> TrainingLength:
        """Compute the length of a training from its arguments and its loader.

        Called once at the start of a training. An override returns a tuple of the same seven
        values.

        Args:
            args: the training arguments; `max_steps` takes precedence over `num_train_epochs`.
            dataloader: the loader of the training data.

        Returns:
            The number of epochs, optimizer steps per epoch, samples in the dataset, samples in the
            whole training, samples per optimizer step, micro-batches per epoch, and optimizer steps
            in the whole training.

        Raises:
            ValueError: the loader has no length and `max_steps` is not set.
        """
        return training_length(
            args, dataloader, self.get_total_train_batch_size(args), self.num_examples
        )

    def get_total_train_batch_size(self, args: Any) -> int:
        """Compute the number of samples per optimizer step, over all micro-batches and processes.

        Called at the start of a training. Processes that share samples (tensor, context and
        sequence parallelism) are counted as one.

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
        """Return the size of sequence parallelism (`sp_size`), which shards heads; or 1."""
        return getattr(effective_parallelism(self.args), "sp_size", 1)

    def get_cp_size(self) -> int:
        """Return the size of context parallelism (`cp_size`), which splits sequences; or 1."""
        return getattr(effective_parallelism(self.args), "cp_size", 1)

    def get_tp_size(self) -> int:
        """Return the size of tensor parallelism (`tp_size`), which shards layers; 1 if unused."""
        groups = effective_parallelism(self.args)
        return getattr(groups, "tp_size", None) or getattr(self.model, "_tp_size", None) or 1

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if self.args.include_num_input_tokens_seen != "no":
            self._lightrainer.tokens_of_run.add(inputs)

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Unscale and clip the gradients of a model; return their norm before clipping."""
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> torch.Tensor:
        """Return the norm that clipping has returned, or else compute the norm of the gradients."""
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
        """Evaluate the model, and return its loss, speed, and the metrics of `compute_metrics`.

        Called at the intervals of `eval_strategy`, and by scripts. It calls `get_eval_dataloader`
        and `evaluation_loop`, logs the metrics and fires `on_evaluate`. An override may add
        metrics; the returned metrics determine the best checkpoint, and are passed to early
        stopping and hyperparameter search. Time and memory grow linearly with the number of
        predictions.

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
        components = self._lightrainer
        if components.fitting is None:
            components.applied_arguments.apply()
        else:
            # The log of the evaluation includes the number of tokens trained so far.
            components.tokens_of_run.flush()

        eval_dataset = data_to_evaluate(self, eval_dataset)
        if isinstance(eval_dataset, dict):
            return evaluate_each(self, eval_dataset, ignore_keys, metric_key_prefix)

        # Without metrics only the loss is needed.
        prediction_loss_only = None
        if self.compute_metrics is None:
            prediction_loss_only = True

        self._memory_tracker.start("eval")
        dataloader = self.get_eval_dataloader(eval_dataset)
        start_time = StartTime()
        averages = evaluated_averages(self.callback_handler.callbacks)
        with metrics_of(self, eval_dataset), averages:
            output = self.evaluation_loop(
                dataloader,
                description="Evaluation",
                prediction_loss_only=prediction_loss_only,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
        seconds = start_time.seconds_ago - components.setup_seconds
        metrics = add_speed(output, metric_key_prefix, seconds, self.args)

        # Report the metrics.
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if DebugOption.TPU_METRICS_DEBUG in self.args.debug:
            print_metrics()
        self._memory_tracker.stop("eval", metrics)
        components.search.record_evaluation(metrics, metric_key_prefix)
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run `prediction_step` for each batch of a loader, gather the results and compute metrics.

        Called by `evaluate` and `predict`. During a training it runs inside of Lightning's `fit`,
        and Lightning callbacks receive the validation hooks. Otherwise `evaluate` runs Lightning's
        `validate`, and `predict` its `test`. The hooks after a batch receive its `loss`,
        `predictions` and `label_ids`; the hooks after the loop find the metrics in
        `callback_metrics`. An override may modify the metrics, predictions and labels of the
        result.

        Args:
            dataloader: the loader of the batches.
            description: `Evaluation`, or `Prediction` to keep predictions even if no metric needs
                them.
            prediction_loss_only: only keep the loss; by default `args.prediction_loss_only`.
            ignore_keys: outputs of the model that are not predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...

        Returns:
            `(predictions, label_ids, metrics, num_samples)`: arrays over the samples of all
            processes, with shorter rows padded with -100, or None if they are not kept; the metrics
            with the prefix; the number of samples.
        """
        if prediction_loss_only is None:
            prediction_loss_only = self.args.prediction_loss_only

        # This keeps the metrics that `evaluate` has selected for its dataset.
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
        """Predict a dataset, and compute metrics if it has labels.

        Only called by scripts. It calls `get_test_dataloader` and `evaluation_loop`, and fires
        `on_predict`; nothing is logged. Time and memory grow linearly with the number of
        predictions.

        Args:
            test_dataset: the samples; labels are not needed.
            ignore_keys: outputs of the model that are not predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...

        Returns:
            `(predictions, label_ids, metrics)`: arrays over all samples in the order of the
            dataset, with shorter rows padded with -100. If the model has several outputs,
            `predictions` is a tuple of arrays. Without labels `label_ids` is None.

        Raises:
            ValueError: the dataset is None.
        """
        components = self._lightrainer
        if components.fitting is None:
            components.applied_arguments.apply()
        self._memory_tracker.start("test")
        dataloader = self.get_test_dataloader(test_dataset)
        start_time = StartTime()
        with evaluated_averages(self.callback_handler.callbacks):
            output = self.evaluation_loop(
                dataloader,
                description="Prediction",
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )

        # Exclude the setup of Lightning and of the model from the reported speed.
        seconds = start_time.seconds_ago - components.setup_seconds
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
        """Compute the loss, predictions and labels of one batch, without gradients.

        Called by `evaluation_loop` for each batch, with the model in evaluation mode. An override
        may predict in another way, such as by generation.

        Args:
            model: the model to evaluate, wrapped by DDP or FSDP if one is used.
            inputs: keyword arguments of its `forward`: a batch of the loader, on any device.
            prediction_loss_only: return nothing but the loss.
            ignore_keys: outputs of the model that are not predictions; by default those listed in
                `keys_to_ignore_at_inference` of its config, or caches.

        Returns:
            The loss (a scalar), and the detached predictions and labels: a tensor each, or a nested
            structure of tensors, with the samples along the first dimension. Missing values are
            None.

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

        # Logits use most of the memory. As in transformers 5.23, the Liger kernel computes the loss
        # without them.
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
            self.lr_scheduler.step(self._lightrainer.metric_of_best.watched_value(metrics))
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return self._lightrainer.metric_of_best.update(metrics)

    # Checkpoints.

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder of the checkpoints, which is a separate one for each trial."""
        folder = self._lightrainer.search.output_dir(str(self.args.output_dir), trial)
        return self._lightrainer.checkpoint_saver.anchored(folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint under a temporary name, and rename it to `checkpoint-{step}` when
        complete.

        Raises:
            DiskFullError: there is not enough disk space; nothing has been written.
        """
        # Operations are not counted in trials of a search.
        components = self._lightrainer
        if self.hp_search_backend is None and trial is None:
            self.store_flos()

        # Functions that write the other parts of the checkpoint.
        parts: list[Any] = [
            self._save_optimizer_and_scheduler,
            self._save_scaler,
            self._save_rng_state,
            components.external_parameters.save,
        ]
        run = components.fitting
        if run is not None:
            save_data_position = partial(
                components.data_position.save,
                files_of=components.checkpoint_saver.files_of,
                run=run,
                loaders=self._eval_dataloaders,
            )
            parts.append(save_data_position)

        # Overrides may read or modify the files, so these must be written by then.
        save_methods = ("save_model", "_save", "_save_checkpoint", "_maybe_log_save_evaluate")
        is_overridden = not all(is_own(self, name) for name in save_methods)
        folder = self._get_output_dir(trial)
        with components.saved_weights():
            components.checkpoint_saver.save(
                folder, parts, strategy=components.strategy, run=run, is_overridden=is_overridden
            )

        checkpoint = os.path.join(folder, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        components.signals.newest_checkpoint = checkpoint
        if self.args.push_to_hub and os.path.isdir(checkpoint):
            self._push_from_checkpoint(checkpoint)

    def _save_rng_state(self, output_dir: str) -> None:
        """Write the states of this rank's random generators."""
        components = self._lightrainer
        files = components.checkpoint_saver.files_of(output_dir)
        components.data_position.save_rng(output_dir, files, components.fitting)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write optimizer and schedule; must be called on all ranks."""
        components = self._lightrainer
        files = components.checkpoint_saver.files_of(output_dir)
        in_checkpoint = output_dir == components.checkpoint_saver.staging
        components.strategy.save_optimizer(
            output_dir, files=files, checkpoint=in_checkpoint, step=self.state.global_step
        )
        if self.args.should_save and self.lr_scheduler is not None:
            path = os.path.join(output_dir, SCHEDULER_NAME)
            files.write_tensors(self.lr_scheduler.state_dict(), path)

    def _save_scaler(self, output_dir: str) -> None:
        """Write the state of the fp16 loss scaler."""
        scaler = self.accelerator.scaler
        if scaler is not None and self.args.should_save:
            save_torch(scaler.state_dict(), os.path.join(output_dir, SCALER_NAME))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Load the weights of a checkpoint into the model, or into another one."""
        if model is None:
            model = self.model
        self._lightrainer.strategy.load_weights(model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint into the model."""
        components = self._lightrainer
        components.restorer.load_best(components.strategy, components.external_parameters.load)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn about missing and unexpected keys; called by overrides that load weights."""
        warn_of_differences(self.model, load_result)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random generators from a checkpoint."""
        if checkpoint is not None:
            self._lightrainer.data_position.load_rng(checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore optimizer and schedule from a checkpoint."""
        if checkpoint is not None:
            load_optimizer_and_schedule(self._lightrainer.strategy, self.lr_scheduler, checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Restore the loss scaler from a checkpoint."""
        if checkpoint is not None and self.accelerator.scaler is not None:
            load_scaler(self.accelerator.scaler, checkpoint)

    def _load_callback_state(self) -> None:
        """Restore the states of callbacks from `self.state`, if the arguments request it."""
        if self.args.restore_callback_states_from_checkpoint:
            self._lightrainer.callback_states.restore_exported()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, the processing class and the arguments to a folder.

        Called for each checkpoint, by `push_to_hub`, and by scripts. Must be called on all
        processes, because each may hold a shard of the weights; the main process writes. An
        override may write additional files to `output_dir`, or other weights.

        Args:
            output_dir: the folder, created if needed; by default `args.output_dir`.
            _internal_call: True in calls by the Trainer itself, which do not upload. Otherwise the
                model is uploaded if `args.push_to_hub` is set.

        Raises:
            ValueError: `output_dir` is a URL such as `s3://bucket/folder`.
            DiskFullError: there is not enough space.
        """
        components = self._lightrainer
        folder = str(self.args.output_dir)
        if output_dir is not None:
            folder = output_dir
        require_local(folder, "output_dir")
        with components.saved_weights():
            components.checkpoint_saver.save_model(
                folder,
                self._save,
                internal=_internal_call,
                strategy=components.strategy,
                run=components.fitting,
            )
        # A checkpoint is uploaded later, when it has its final name.
        if _internal_call:
            return

        components.object_store.upload_written_files()
        if self.args.push_to_hub:
            try:
                self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)
            except Exception:
                logger.error("The model is saved; only its upload to the Hub failed.")
                raise

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Write the model, or other weights instead; called on the process that saves."""
        if output_dir is None:
            output_dir = str(self.args.output_dir)
        self._lightrainer.checkpoint_saver.write_model(output_dir, state_dict)

    # Logs and metrics.

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add values to the log history, and pass them to all callbacks.

        Called every `logging_steps`, after each evaluation, and at the end of a training. It adds
        `epoch`, and with `include_num_input_tokens_seen` the number of tokens. An override may add
        or remove values before it calls this method.

        Args:
            logs: numbers by name; the dict is modified in place.
            start_time: start of the training as returned by `time.time()`, to compute tokens per
                second.
        """
        components = self._lightrainer
        if components.fitting is not None:
            components.fitting.require_log_in_all()
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch

        # Tokens.
        if self.args.include_num_input_tokens_seen != "no":
            components.tokens_of_run.flush_own()
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                tokens = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(speed_metrics("train", start_time, num_tokens=tokens))

        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def record(self, **values: torch.Tensor | float) -> None:
        """Add values to the next log, or in an evaluation to its metrics.

        A value recorded in `compute_loss` or `training_step` is interpreted as a mean over the
        items of its micro-batch, and averaged like the loss: over the micro-batches and steps since
        the last log and over all processes, weighted by items if the loss is divided by them, and
        by samples in an evaluation. Elsewhere, such as in a callback, all calls have equal weight.
        The device is not synchronized before the log is due. Callbacks have this method as well.
        Metrics of `compute_metrics` take precedence over recorded values of the same name.

        Args:
            values: numbers, or tensors with one element.

        Raises:
            RuntimeError: neither a training nor an evaluation is running.
            ValueError: a value is not a number, or a name such as `loss` is reserved.
        """
        record(values)

    def store_flos(self) -> None:
        """Add the floating-point operations of all processes since the last call to the state.

        Called before each checkpoint and at the end of a training. Must be called on all processes.
        It updates `state.total_flos`, and resets `current_flos`.
        """
        total = self.current_flos
        if self.args.world_size > 1:
            # nccl can only reduce tensors on a GPU.
            device = _CPU
            if self.args.device.type == "cuda":
                device = self.args.device
            flos = torch.tensor([total], dtype=torch.float64, device=device)

            # Ranks that read the same batches have counted the same operations.
            total = self.accelerator.reduce(flos).item() / copies_of_batches(self.args)
        self.state.total_flos += total
        self.current_flos = 0.0

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Estimate the floating-point operations of a forward and a backward pass.

        Called for each micro-batch. An override may return another number. `total_flos` in the logs
        is the sum.

        Args:
            inputs: the batch.

        Returns:
            Six operations per token and parameter, without embeddings; 0 if the model has no
            `num_parameters` method that can exclude embeddings, or the batch does not contain the
            main input.
        """
        main_input = None
        if isinstance(inputs, Mapping):
            main_input = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        if main_input is None or not hasattr(self.model, "num_parameters"):
            return 0
        return 6 * main_input.numel() * self._lightrainer.parameter_counter.count()

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print metrics as a table, on rank 0.

        Args:
            split: `train`, `eval` or `test`, for the heading.
            metrics: as `train`, `evaluate` and `predict` return them.
        """
        if self.is_world_process_zero():
            print_metrics_table(split, self.metrics_format(metrics))

    @staticmethod
    def metrics_format(metrics: dict[str, float]) -> dict[str, Any]:
        """Convert metrics to units that are easy to read.

        Called by `log_metrics`. An override returns the values to print.

        Args:
            metrics: as `train`, `evaluate` and `predict` return them.

        Returns:
            The metrics under the same names: memory in MB, runtimes as h:mm:ss, `total_flos` in GF,
            other numbers with four decimals.
        """
        return metrics_format(metrics)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write metrics to `{split}_results.json` in `output_dir`, on rank 0.

        Args:
            split: `train`, `eval`, `test` or `all`.
            metrics: as `train`, `evaluate` and `predict` return them.
            combined: also merge them into `all_results.json`.

        Raises:
            ValueError: `all_results.json` is damaged.
        """
        if self.is_world_process_zero():
            write_metrics(str(self.args.output_dir), split, metrics, combined=combined)
            self._lightrainer.object_store.upload_written_files()

    def save_state(self) -> None:
        """Write the state to `trainer_state.json` in `output_dir`, on rank 0.

        The state has the step, the log history and the best metric. Weights, optimizer and random
        generators are only saved in checkpoints.
        """
        if self.is_world_process_zero():
            self.state.save_to_json(os.path.join(str(self.args.output_dir), TRAINER_STATE_NAME))
            self._lightrainer.object_store.upload_written_files()

    # The Hub.

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository on the Hub, and the branch, unless they exist.

        Called by the constructor with `push_to_hub=True`, and by `push_to_hub`. It sets
        `hub_model_id` on the main process; other processes do nothing.

        Args:
            token: overrides `hub_token`.
            private: overrides `hub_private_repo`.

        Raises:
            HfHubHTTPError, OfflineModeIsEnabled, HFValidationError: errors of `huggingface_hub`,
                with a remedy in the message.
        """
        token = secret(token)
        self._lightrainer.hub.create_repository(token, private)

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
        writes. It keeps the tags of an existing card, and works offline. Values that are not passed
        are derived from model, data and arguments if possible. An override may write another card,
        and may accept fewer parameters.

        Args:
            language: the language of the model, such as "en".
            license: the license identifier; by default that of `finetuned_from`.
            tags: one or several tags.
            model_name: the heading of the card; by default the name of the repository or of the
                folder.
            finetuned_from: the repository of the base model.
            tasks: task identifiers of the Hub, such as "text-classification".
            dataset_tags: identifiers of the datasets on the Hub.
            dataset: names of the datasets to show.
            dataset_args: configurations or splits of the datasets to show.
        """
        # Pass all parameters to the card by name.
        facts = dict(locals())
        del facts["self"]
        if self.is_world_process_zero():
            self._lightrainer.hub.write_card(**facts)
            self._lightrainer.object_store.upload_written_files()

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

        Called by scripts, and by `save_model` with `push_to_hub=True`. Checkpoints in the folder,
        and files that start with an underscore, are not uploaded. If the model is sharded, all
        processes must call it. Fires `on_push_begin`.

        Args:
            commit_message: the commit message.
            blocking: whether to wait for the upload.
            token: overrides `hub_token`.
            revision: the branch; overrides `hub_revision`.
            private: overrides `hub_private_repo`.
            kwargs: arguments of `create_model_card`.

        Returns:
            The commit, or with `blocking=False` a future; None on ranks other than 0.

        Raises:
            HfHubHTTPError: the upload failed; the model is nevertheless saved in `output_dir`.
        """
        token = secret(token)
        self.control = self.callback_handler.on_push_begin(self.args, self.state, self.control)

        # Overrides in libraries may only accept the token.
        if self.hub_model_id is None and private is None:
            self.init_hf_repo(token=token)
        elif self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)

        # A running upload may read the files that are about to be overwritten.
        self._finish_current_push()
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**self._lightrainer.hub.card_arguments(**kwargs))
        message = commit_message or "Upload of a model"
        return self._lightrainer.hub.upload(
            message, blocking=blocking, token=token, revision=revision
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Start the upload of a complete checkpoint, unless another upload is running."""
        if self.is_world_process_zero():
            self._lightrainer.hub.push_checkpoint(
                checkpoint_folder, has_default_card=is_own(self, "create_model_card")
            )

    def _finish_current_push(self) -> None:
        """Wait for running uploads, including those that fail."""
        self._lightrainer.hub.wait()

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
        """Search for the arguments with the best evaluation results, with one training per trial.

        Each trial starts from the current arguments, with a new model of `model_init`. Afterwards
        the arguments are restored, and the Trainer has the best model (see `final_model`) and, with
        optuna, the `study`. With several processes, all of them stop together and return the same
        result.

        Args:
            hp_space: returns the values of a trial by name of a training argument; by default the
                search space of transformers.
            compute_objective: computes one or several objectives from metrics; by default the sum
                of the metrics, or the loss if there are no other metrics.
            n_trials: the number of trials; may be None if `timeout` is passed.
            direction: `minimize` (the default) or `maximize`; a list of them for several
                objectives.
            backend: `optuna` or `ray`.
            hp_name: returns the name of a trial's folder in `output_dir`; by default
                `run-<number>`.
            kwargs: options of `SearchOptions`, and of `optuna.create_study` and `Study.optimize` or
                of `ray.tune.run`.

        Returns:
            The best run, or with several objectives all runs on the Pareto front.

        Raises:
            RuntimeError: model_init is missing, or the library of the backend is not installed.
            ValueError, TypeError, KeyError: parameters are invalid, or no evaluation has the
                objective.
            ConnectionError: the storage cannot be reached.
        """
        checks.require_new_models(self)
        checks.require_training_data(self)
        try:
            return self._lightrainer.search.run(
                hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs
            )
        finally:
            self._trial = None

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Create a new model with `model_init`.

        Called by the constructor if no model was passed, and at the start of each training and each
        trial.

        Args:
            trial: passed to `model_init` if it accepts an argument.

        Returns:
            The model.

        Raises:
            RuntimeError: `model_init` is missing, requires several arguments, or returned None.
            TypeError: it returned something that is not a model.
        """
        if self.model_init is None:
            raise checks.MissingModelError(
                "The Trainer needs a model. Pass model=... or model_init=... to it."
            )
        return make_model(self.model_init, trial)

    def _hp_search_setup(self, trial: Any) -> None:
        """Apply the values of a trial, which is None outside of a search; libraries override it.

        Called once per training.
        """
        self._trial = trial
        if self._lightrainer.search.apply(trial):
            self._train_batch_size = self.args.train_batch_size
            self._lightrainer.applied_arguments.apply()

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation during a training to the search; libraries override it."""
        self._lightrainer.search.report(trial, step, metrics)

    # Callbacks and processes.

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback] | Callback) -> None:
        """Add a callback of the Trainer, or one of Lightning.

        Args:
            callback: the callback, or a class that is instantiated without arguments. It is called
                after the callbacks that were added before.

        Raises:
            TypeError: it has neither events of the Trainer nor hooks of Lightning.
            ValueError: it is a Lightning callback that would have no effect here.
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
            callback: the callback, or a class to remove its first instance.

        Returns:
            The removed callback; None if it was not found.
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

        Removing by class never fails, so default callbacks can be removed whether or not they are
        used.

        Args:
            callback: the callback, or a class to remove its first instance, if there is one.

        Raises:
            ValueError: the Trainer does not have this instance.
        """
        if is_lightning_callback(callback):
            self.pop_callback(callback)
        else:
            self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        """Return whether this is the first process on its node."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this is the main process (rank 0), which writes files."""
        return self.args.process_index == 0

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if getattr(model, "hf_device_map", None) is not None:
            logger.warning(
                "The model is already on several devices (hf_device_map) and is not moved to %s.",
                device,
            )
            return
        move_model(model, device)
