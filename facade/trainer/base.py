"""What a Trainer is made of: its attributes, and the steps of its construction."""

from __future__ import annotations

import copy
import logging
import os
import signal
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from ...callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    LoggerCallback,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    default_progress_callback,
    reporting_callbacks,
)
from ...lightning_modules.checkpoints import BackgroundWriter, WriteLater, WriteNow
from ...lightning_modules.common.seeding import enable_full_determinism, host_rng_untouched, set_seed
from ...lightning_modules.models import inspection
from ...lightning_modules.training.label_smoothing import LabelSmoother
from ..accelerator.accelerator import Accelerator
from ..arguments import TrainingArguments
from ..arguments.checkpointing import checkpointing
from ..arguments.parallelism import parts_of_sequences, spreads_model
from ..arguments.support import raise_for_unsupported
from ..arguments.unknown import understand_old_names
from ..arguments.validation import raise_for_problems
from ..checkpointing.callback_states import CallbackStates, LightningCallbackStates
from ..checkpointing.data_position import DataPosition
from ..checkpointing.elastic import ElasticResumption
from ..checkpointing.signals import SignalListening
from ..checkpointing.training_state import TrainingState
from ..hub.pushing import PushInProgress
from ..hub.session import HubSession
from ..strategies.dry_run import stop_if_asked_to
from ..strategies.plan import RunPlan, translate
from ..strategies.strategy import Strategy, StrategyHost
from .batch_size import BatchSizeFinder
from .checks import MissingModelError, TrainerParameters, check_construction, check_label_names, check_overrides
from .data_loading import default_collator
from .lightning_callbacks import check_callback
from .memory_report import MemoryTracker
from .meters import ParameterCounter, TokenCounter
from .model_preparation import ModelPreparation
from .verbosity import set_verbosity

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from ..search.session import SearchSession
    from .trainer_module import TrainerModule

logger = logging.getLogger(__name__)

_CHECKPOINTING = ("is_activation_checkpointing", "is_gradient_checkpointing")
"""What a model of `transformers` calls it that activations are computed again, in newer and in older versions."""


@understand_old_names
class TrainerBase(TrainerParameters):
    """Attributes and construction; the concerns of the Trainer build on it, one class each.

    See `Trainer` for the parameters.
    """

    model: nn.Module
    """The user's model, never a wrapper."""
    model_wrapped: nn.Module
    """The model to call for a forward pass."""
    deepspeed: Any = None
    """DeepSpeed's engine of the last training, as in the reference."""
    optimizer: Any
    lr_scheduler: Any
    model_preparation_time: float
    """Seconds that the first evaluation, or a training before it, took to set up; not there before."""

    checkpoint_on_signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
    """These end a training at the next step with a checkpoint to go on from; an empty tuple turns it off.

    With `save_strategy="no"` nobody wants checkpoints, and signals are the script's own, unless
    `enable_jit_checkpoint` asks for one; it always listens to SIGTERM. Signals that the process ignores stay ignored.
    """

    keep_effective_batch_size: bool = False
    """Whether `auto_find_batch_size` keeps the samples of a step, and with them the steps and their learning rates."""

    # Beginnings of what a training, or a method, changes. Trainers with loops of their own call methods such as `log`
    # and `_save_checkpoint` without ever calling `__init__`: what those need is here, or made when it is first needed.
    is_in_train = False
    hub_model_id: str | None = None
    push_in_progress: PushInProgress | None = None
    optimizer_cls_and_kwargs: Any = None
    hp_name: Callable[[Any], str] | None = None
    hp_search_backend: Any = None
    hp_space: Callable[[Any], dict[str, Any]] | None = None
    compute_objective: Callable[[dict[str, float]], Any] | None = None
    objective: Any = None
    """The value of the last evaluation of a trial."""
    current_flos: float = 0.0
    _trial: Any = None
    _created_lr_scheduler = False
    _prepared = False
    _setup_seconds = 0.0
    _checkpoint_to_push: str | None = None
    _writer: WriteNow | WriteLater = WriteNow()
    _run: TrainerModule | None = None
    _run_plan: RunPlan | None = None  # while Lightning runs
    _working: Strategy | None = None
    _derived_from: Mapping[str, Any] = MappingProxyType({})

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
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: list[TrainerCallback | type[TrainerCallback] | Callback] | None = None,
        optimizers: tuple[Optimizer | None, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.args = TrainingArguments(output_dir="tmp_trainer") if args is None else args
        check_overrides(type(self))
        calls_loss_func = is_own(self, "compute_loss") and is_own(self, "training_step")
        check_construction(self.args, locals(), calls_loss_func=calls_loss_func)
        set_verbosity(self.args)
        self._seed()
        self._memory_tracker = MemoryTracker(self.args.skip_memory_metrics)
        self._memory_tracker.start("init")
        self.create_accelerator_and_postprocess()

        self.model_init = model_init
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.processing_class = processing_class
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.data_collator = default_collator(processing_class) if data_collator is None else data_collator
        self._set_up_model(self.call_model_init() if model is None else model)
        if data_collator is None:
            check_label_names(self.label_names, self.model)
        self._set_up_state()
        self._set_up_callbacks(callbacks or [])
        self._validate_args()
        if self.args.push_to_hub:
            cast("Any", self).init_hf_repo()
        if self.args.should_save:
            os.makedirs(str(self.args.output_dir), exist_ok=True)
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)
        self._memory_tracker.stop("init")

    def create_accelerator_and_postprocess(self) -> None:
        """As `transformers.Trainer.create_accelerator_and_postprocess`: makes `accelerator`, and what follows from it.

        Called while the Trainer is constructed, before there is a model.
        """
        self.accelerator = Accelerator(self.args)
        self.gather_function: Callable[..., Any] = self.accelerator.gather_for_metrics
        self.is_deepspeed_enabled = bool(self.args.deepspeed)
        sharding = self.args.fsdp_config or {}
        self.is_fsdp_xla_enabled = bool(self.args.fsdp and sharding.get("xla"))
        self.is_fsdp_xla_v2_enabled = self.is_fsdp_xla_enabled and bool(sharding.get("xla_fsdp_v2"))
        self.is_fsdp_xla_v1_enabled = self.is_fsdp_xla_enabled and not self.is_fsdp_xla_v2_enabled
        self.is_fsdp_enabled = bool(self.args.fsdp) and not self.is_fsdp_xla_enabled

    def _set_up_model(self, model: nn.Module) -> None:
        self.is_model_parallel = len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1
        placed = self.args.place_model_on_device
        reduced = self.args.fp16_full_eval or self.args.bf16_full_eval  # moved and cast when it is evaluated
        spread = bool(self.args.fsdp or self.args.deepspeed or spreads_model(self.args))  # moved in parts
        self.place_model_on_device = not (self.is_model_parallel or reduced or spread) if placed is None else placed
        if self.place_model_on_device:
            self._move_model_to_device(model, self.args.device)
        self.model = self.model_wrapped = model
        inspected = inspection.base_of_adapter(model)
        self.model_accepts_loss_kwargs = inspection.accepts_loss_kwargs(inspected)
        found = inspection.find_labels(type(inspected))
        if parts_of_sequences(self.args) > 1:  # made of the labels where sequences are split, and nowhere else
            found = [name for name in found if name != "shift_labels"]
        self.label_names = found if self.args.label_names is None else self.args.label_names
        self.can_return_loss = inspection.can_return_loss(type(inspected))
        self.label_smoother = self._make_label_smoother()
        self.neftune_noise_alpha = self.args.neftune_noise_alpha
        config: Any = getattr(model, "config", None)
        if config is not None:
            config.use_cache = self.args.use_cache

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the components, which belong to this Trainer: a copy of it, here or elsewhere, makes its own."""
        return {name: value for name, value in vars(self).items() if not self._is_component(name, value)}

    def _is_component(self, name: str, value: Any) -> bool:
        made = isinstance(getattr(type(self), name, None), cached_property) and hasattr(value, "__dict__")
        return made and any(held is self for held in vars(value).values())

    @cached_property
    def _background(self) -> BackgroundWriter:
        return BackgroundWriter()

    @cached_property
    def _hub(self) -> HubSession:
        return HubSession(cast("Any", self))

    @cached_property
    def _signals(self) -> SignalListening:
        return SignalListening(cast("Any", self))

    @cached_property
    def _training_state(self) -> TrainingState:
        return TrainingState(self)

    @cached_property
    def _callback_states(self) -> CallbackStates:
        return CallbackStates(self)

    @cached_property
    def _lightning_callback_states(self) -> LightningCallbackStates:
        return LightningCallbackStates(self, self._lightning_callbacks)

    @cached_property
    def _model_preparation(self) -> ModelPreparation:
        return ModelPreparation(self)

    @cached_property
    def _batch_size_finder(self) -> BatchSizeFinder:
        return BatchSizeFinder(self)

    @cached_property
    def _token_counter(self) -> TokenCounter:
        return TokenCounter(self)

    @cached_property
    def _parameter_counter(self) -> ParameterCounter:
        return ParameterCounter()

    @cached_property
    def _elastic(self) -> ElasticResumption:
        return ElasticResumption(cast("Any", self))

    @cached_property
    def _search(self) -> SearchSession:
        from ..search.session import SearchSession
        from .portable import TRANSPORT

        return SearchSession(cast("Any", self), TRANSPORT)

    @cached_property
    def _data_position(self) -> DataPosition:
        return DataPosition(cast("Any", self), self._elastic)

    if TYPE_CHECKING:  # as protocols know them
        current_gradient_accumulation_steps: int
        _lightning_callbacks: list[Any]
    else:

        @cached_property
        def current_gradient_accumulation_steps(self) -> int:
            """Micro-batches of the step that is being taken."""
            return self.args.gradient_accumulation_steps

        @cached_property
        def _lightning_callbacks(self) -> list[Any]:
            return []

    def _make_label_smoother(self) -> LabelSmoother | None:
        if self.args.label_smoothing_factor == 0:
            return None
        problem_type = getattr(getattr(self.model, "config", None), "problem_type", None)
        if problem_type == "multi_label_classification":
            logger.warning("label_smoothing_factor is not used: it makes no sense for multi-label classification.")
            return None
        return LabelSmoother(epsilon=self.args.label_smoothing_factor)

    def _set_up_state(self) -> None:
        self.control = TrainerControl()
        self.is_in_train = False
        self.hub_model_id = None
        self.hp_name = None
        self.hp_search_backend = None
        self.current_flos = 0.0
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self._signature_columns: list[str] | None = None
        self._train_batch_size = self.args.train_batch_size
        self._created_lr_scheduler = False
        self._remember_arguments()

    def _apply_arguments(self) -> None:
        """Check the arguments again, and take up what was changed since the construction.

        What somebody set on the Trainer itself stays, unless the argument that it came from was changed too.
        """
        with host_rng_untouched():  # an import of Lightning draws from Python's generator
            import_module(".lightning_trainer", __package__)  # a second that no measured time should hold
        args = self.args
        if isinstance(args, TrainingArguments):
            raise_for_problems(args)
            raise_for_unsupported(args)
            self.plan.strategy.check(args, self.model)
        self._working = None
        changed = {name for name, value in self._derived_from.items() if getattr(args, name) != value}
        if changed & {"per_device_train_batch_size", "auto_find_batch_size"}:
            self._train_batch_size = args.train_batch_size
        if "label_names" in changed and args.label_names is not None:
            self.label_names = args.label_names
        if "label_smoothing_factor" in changed:
            self.label_smoother = self._make_label_smoother()
        if "neftune_noise_alpha" in changed:
            self.neftune_noise_alpha = args.neftune_noise_alpha
        self._remember_arguments()
        stop_if_asked_to(self)

    def _remember_arguments(self) -> None:
        names = ("per_device_train_batch_size", "auto_find_batch_size", "enable_jit_checkpoint")
        names += ("label_names", "label_smoothing_factor", "neftune_noise_alpha")
        self._derived_from = {name: copy.copy(getattr(self.args, name)) for name in names}

    def _set_up_callbacks(self, callbacks: list[Any]) -> None:
        for callback in callbacks:
            if is_lightning_callback(callback):
                self.add_callback(callback)
        own = [callback for callback in callbacks if not is_lightning_callback(callback)]
        defaults = [DefaultFlowCallback, *reporting_callbacks(self.args.report_to)]
        self.callback_handler = CallbackHandler(
            [*defaults, *own], self.model, self.processing_class, self.optimizer, self.lr_scheduler
        )
        for callback in self.callback_handler.callbacks:
            self._lend_save_model(callback)
        if self.args.disable_tqdm:
            self.add_callback(PrinterCallback)
        elif not any(getattr(callback, "takes_place_of", None) for callback in self.callback_handler.callbacks):
            self.add_callback(default_progress_callback())
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            stateful_callbacks=self._callback_states.exported(),
        )

    def _validate_args(self) -> None:
        """What can be checked once model and data are there; an override point of some libraries."""

    def _seed(self) -> None:
        if self.args.full_determinism:
            enable_full_determinism(self.args.seed)
        else:
            set_seed(self.args.seed)

    @property
    def plan(self) -> RunPlan:
        """What the arguments become in Lightning; prints as a table."""
        if self._run_plan is not None:
            return self._run_plan
        wanted, _ = checkpointing(self.args)
        name = next((name for name in _CHECKPOINTING if hasattr(self.model, name)), "")
        unused = not (inspection.is_pretrained(self.model) and (wanted or getattr(self.model, name, False)))
        steps = None if self._run is None else self._run.length.max_steps
        return translate(self.args, find_unused_parameters=unused, model=self.model, steps=steps)

    @property
    def _strategy(self) -> Strategy:
        """That of the run, or of the last one; before a run what the arguments ask for now."""
        return self._working or self.plan.strategy.for_trainer(cast(StrategyHost, self))

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """As `transformers.Trainer.call_model_init`: a new model, for a trial if it takes one."""
        if self.model_init is None:
            raise MissingModelError("There is no model_init to make a model with. Pass model_init=... to the Trainer.")
        model = self.model_init(trial) if _takes_an_argument(self.model_init) else self.model_init()
        if model is None:
            raise RuntimeError("model_init returned None. It has to return the model.")
        if not isinstance(model, nn.Module):
            raise TypeError(f"model_init returned a {type(model).__name__} ({model!r:.60}), not a torch.nn.Module.")
        return model

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if getattr(model, "hf_device_map", None) is not None:
            logger.warning("The model is spread over devices already (hf_device_map) and is not moved to %s.", device)
            return
        inspection.move(model, device)

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback] | Callback) -> None:
        """As `transformers.Trainer.add_callback`; callbacks of Lightning are welcome too."""
        if is_lightning_callback(callback):
            check_callback(callback)
            self._lightning_callbacks.append(callback() if isinstance(callback, type) else callback)
        else:
            self.callback_handler.add_callback(callback)
            self._lend_save_model(self.callback_handler.callbacks[-1])

    def _lend_save_model(self, callback: Any) -> None:
        """Let a tracker write the model as this Trainer does, without keeping the Trainer alive."""
        if isinstance(callback, LoggerCallback):
            trainer: Any = weakref.ref(self)
            callback.save_model = lambda folder: trainer().save_model(folder, _internal_call=True)

    def pop_callback(self, callback: Any) -> TrainerCallback | Callback | None:
        """As `transformers.Trainer.pop_callback`: remove a callback and return it, None if it is not there."""
        if not is_lightning_callback(callback):
            return self.callback_handler.pop_callback(callback)
        found = next((one for one in self._lightning_callbacks if one is callback or type(one) is callback), None)
        if found is not None:
            self._lightning_callbacks.remove(found)
        return found

    def remove_callback(self, callback: Any) -> None:
        """As `transformers.Trainer.remove_callback`."""
        if is_lightning_callback(callback):
            self.pop_callback(callback)
        else:
            self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        """As `transformers.Trainer.is_local_process_zero`: the first process of its machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """As `transformers.Trainer.is_world_process_zero`: the first process of all."""
        return self.args.process_index == 0


def is_own(trainer: Any, name: str) -> bool:
    """Whether a method is that of this package, and no override in a subclass or in the object."""
    home = next((kind for kind in type(trainer).__mro__ if name in vars(kind)), None)
    return name not in vars(trainer) and home is not None and home.__module__.startswith(f"{__package__}.")


def is_lightning_callback(callback: Any) -> bool:
    """Whether this is a callback, or a callback class, of Lightning; found out without importing it."""
    cls = callback if isinstance(callback, type) else type(callback)
    return any(
        base.__name__ == "Callback" and base.__module__.startswith(("lightning.pytorch", "pytorch_lightning"))
        for base in cls.__mro__
    )


def _takes_an_argument(function: Callable[..., Any]) -> bool:
    import inspect

    count = len(inspect.signature(function).parameters)
    if count > 1:
        raise RuntimeError(f"model_init takes {count} arguments. It has to take none, or one: the trial.")
    return count == 1
