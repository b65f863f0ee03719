"""What a Trainer is made of: its attributes, and the steps of its construction."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Collection, Set
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from ...callbacks import (
    CallbackHandler,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from ...lightning_modules.common.redaction import hidden_values
from ...lightning_modules.models import inspection
from ..accelerator.accelerator import Accelerator
from ..arguments import TrainingArguments
from ..arguments.checkpointing import checkpointing
from ..arguments.unknown import SignatureOfInit, refuse_unknown, understand_old_names
from ..checkpointing.callback_states import CallbackStates, LightningCallbackStates
from ..checkpointing.data_position import DataPosition
from ..checkpointing.elastic import ElasticResumption
from ..checkpointing.restoring import CheckpointRestorer
from ..checkpointing.saving import CheckpointSaver
from ..checkpointing.signals import SignalListening
from ..checkpointing.training_state import TrainingState
from ..hub.pushing import PushInProgress
from ..hub.session import HubSession
from ..strategies.plan import RunPlan, translate
from ..strategies.strategy import Strategy, StrategyHost
from .batch_size import BatchSizeFinder
from .checks import (
    MissingModelError,
    advice_on_keyword,
    check_construction,
    check_label_names,
    check_overrides,
    missing_attribute,
    without_tokenizer,
)
from .construction import (
    AppliedArguments,
    default_callbacks,
    display_callback,
    label_names,
    label_smoother,
    lend_save_model,
    make_model,
    moves_model,
    seed_everything,
    set_verbosity,
)
from .data_loading import default_collator
from .lightning_callbacks import check_callback, is_lightning_callback
from .memory_report import MemoryTracker
from .meters import OfRunningLoss, ParameterCounter, RunningLoss, TokenCounter
from .model_preparation import ModelPreparation

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from typing_extensions import Self

    from ..search.session import SearchSession
    from .trainer_module import TrainerModule

logger = logging.getLogger(__name__)

_CHECKPOINTING = ("is_activation_checkpointing", "is_gradient_checkpointing")
"""What a model of `transformers` calls it that activations are computed again, in newer and in older versions."""


@understand_old_names
class TrainerBase:
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
    _run: TrainerModule | None = None
    _run_plan: RunPlan | None = None  # while Lightning runs
    _run_device: torch.device | None = None  # while it runs: every batch asks for it, and looking it up takes a while
    _last_strategy: Strategy | None = None

    # Components, each with a state of its own, made when first needed.
    _hub = cached_property(HubSession)
    _signals = cached_property(SignalListening)
    _training_state = cached_property(TrainingState)
    _callback_states = cached_property(CallbackStates)
    _lightning_callback_states = cached_property(lambda self: LightningCallbackStates(self, self._lightning_callbacks))
    _elastic = cached_property(ElasticResumption)
    _data_position = cached_property(lambda self: DataPosition(self, self._elastic))
    _checkpoints = cached_property(
        lambda self: CheckpointSaver(self, self._callback_states, self._lightning_callback_states, self._signals)
    )
    _restorer = cached_property(lambda self: CheckpointRestorer(self, self._hub, self._search.resume_from))
    _applied_arguments = cached_property(AppliedArguments)
    _model_preparation = cached_property(ModelPreparation)
    _batch_size_finder = cached_property(BatchSizeFinder)
    _running_loss = cached_property(RunningLoss)  # each training begins one
    _token_counter = cached_property(TokenCounter)
    _parameter_counter = cached_property(ParameterCounter)

    # For overrides of `_maybe_log_save_evaluate` that do without the original, as libraries have them.
    _tr_loss = OfRunningLoss("since_log")
    _total_loss_scalar = OfRunningLoss("total")
    _globalstep_last_logged = OfRunningLoss("last_logged")

    @cached_property
    def _eval_dataloaders(self) -> dict[str, Any]:
        """Loaders whose workers stay, by the key of their dataset; libraries look into it."""
        return {}

    @cached_property
    def _search(self) -> SearchSession:
        from ..search.session import SearchSession
        from .portable import TRANSPORT

        return SearchSession(cast("Any", self), TRANSPORT)

    __signature__ = SignatureOfInit()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse unknown keywords with advice, also those of a subclass, before anything is made of them."""
        kwargs = hidden_values(kwargs)  # tokens are the variables of nobody
        refuse_unknown(cls, kwargs)
        return super().__new__(cls)

    @classmethod
    def _old_names(cls) -> Set[str]:
        return {"tokenizer"}

    def _modernise(self, given: dict[str, Any]) -> dict[str, Any]:
        return without_tokenizer(given)

    @classmethod
    def _advice(cls, name: str, known: Collection[str]) -> str:
        return advice_on_keyword(cls, name, known)

    if not TYPE_CHECKING:  # for type checkers, a name that is misspelt is a mistake

        def __getattr__(self, name: str) -> Any:
            """Answer for attributes of other versions."""
            return missing_attribute(self, name)

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
        seed_everything(self.args)
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
        self._applied_arguments.remember()
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
        sharding: Any = self.args.fsdp_config or {}
        self.is_fsdp_xla_enabled = bool(self.args.fsdp and sharding.get("xla"))
        self.is_fsdp_xla_v2_enabled = self.is_fsdp_xla_enabled and bool(sharding.get("xla_fsdp_v2"))
        self.is_fsdp_xla_v1_enabled = self.is_fsdp_xla_enabled and not self.is_fsdp_xla_v2_enabled
        self.is_fsdp_enabled = bool(self.args.fsdp) and not self.is_fsdp_xla_enabled

    def _set_up_model(self, model: nn.Module) -> None:
        inspected = inspection.base_of_adapter(model)
        self.is_model_parallel = len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1
        self.place_model_on_device = moves_model(self.args, spread=self.is_model_parallel)
        if self.place_model_on_device:
            self._move_model_to_device(model, self.args.device)
        self.model = self.model_wrapped = model
        self.model_accepts_loss_kwargs = inspection.accepts_loss_kwargs(inspected)
        self.label_names = label_names(self.args, inspected)
        self.can_return_loss = inspection.can_return_loss(type(inspected))
        self.label_smoother = label_smoother(self.args, model)
        self.neftune_noise_alpha = self.args.neftune_noise_alpha
        config: Any = getattr(model, "config", None)
        if config is not None:
            config.use_cache = self.args.use_cache

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the components, which belong to this Trainer: a copy of it, here or elsewhere, makes its own."""
        ladder = [kind for kind in type(self).__mro__ if kind.__module__.startswith(f"{__package__}.")]
        made = {name for kind in ladder for name, value in vars(kind).items() if isinstance(value, cached_property)}
        made.discard("_lightning_callbacks")  # those are the user's
        return {name: value for name, value in vars(self).items() if name not in made}

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

    def _apply_arguments(self) -> None:
        """Check the arguments again, and apply what was changed since the construction."""
        self._applied_arguments.apply()

    def _set_up_callbacks(self, callbacks: list[Any]) -> None:
        of_lightning = [callback for callback in callbacks if is_lightning_callback(callback)]
        own = [callback for callback in callbacks if not is_lightning_callback(callback)]
        for callback in of_lightning:
            self.add_callback(callback)
        self.callback_handler = CallbackHandler(
            [*default_callbacks(self.args), *own], self.model, self.processing_class, self.optimizer, self.lr_scheduler
        )
        for callback in self.callback_handler.callbacks:
            lend_save_model(self, callback)
        display = display_callback(self.args, self.callback_handler.callbacks)
        if display is not None:
            self.add_callback(display)
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            stateful_callbacks=self._callback_states.exported(),
        )

    def _validate_args(self) -> None:
        """What can be checked once model and data are there; an override point of some libraries."""

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
        return self._last_strategy or self.plan.strategy.for_trainer(cast(StrategyHost, self))

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """As `transformers.Trainer.call_model_init`: a new model, for a trial if it takes one."""
        if self.model_init is None:
            raise MissingModelError("There is no model_init to make a model with. Pass model_init=... to the Trainer.")
        return make_model(self.model_init, trial)

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
            lend_save_model(self, self.callback_handler.callbacks[-1])

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
    """Whether a method is that of this package: no override in a subclass or in the object, and not replaced."""
    home = next((kind for kind in type(trainer).__mro__ if name in vars(kind)), None)
    if name in vars(trainer) or home is None:
        return False
    places = (home.__module__, getattr(vars(home)[name], "__module__", ""))
    return all(place.startswith(f"{__package__}.") for place in places) and not hasattr(vars(home)[name], "__wrapped__")
