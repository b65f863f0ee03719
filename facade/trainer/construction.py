"""Attributes that a Trainer derives from arguments and model, now and when arguments change."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from ...callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    LoggerCallback,
    PrinterCallback,
    TrainerCallback,
    TrainerState,
    default_progress_callback,
    reporting_callbacks,
    requested_profilers,
)
from ...lightning_modules.common.libraries import loaded
from ...lightning_modules.common.seeding import (
    enable_full_determinism,
    host_rng_untouched,
    set_seed,
)
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models import inspection
from ...lightning_modules.training.label_smoothing import LabelSmoother
from ..arguments import TrainingArguments
from ..arguments.derived import checkpointing
from ..arguments.old_names import warn_at_script_line
from ..arguments.parallelism import parts_of_sequences, set_groups_of_model, spreads_model
from ..arguments.rules import raise_for_problems
from ..strategies.model_parallel import groups_of_spread
from ..strategies.plan import RunPlan, stop_if_asked_to, translate
from ..strategies.strategy import Row
from .lightning_callbacks import is_lightning_callback
from .optimization import describe_groups, freeze_by_rules

logger = logging.getLogger(__name__)

_ROOT = __name__.partition(".")[0]
_CHECKPOINTING = ("is_activation_checkpointing", "is_gradient_checkpointing")
"""Attributes of `transformers` models with activation checkpointing, in newer and older
versions.
"""
_DERIVED_FROM = (
    "per_device_train_batch_size",
    "auto_find_batch_size",
    "label_names",
    "label_smoothing_factor",
    "neftune_noise_alpha",
)

if TYPE_CHECKING:
    from .. import Trainer


class AppliedArguments:
    """Record the arguments that attributes of a Trainer were derived from, to detect changes.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._seen: dict[str, Any] = {}
        self._checked: dict[str, Any] | None = None
        """The arguments that the last successful check has seen; None before."""

    def remember(self) -> None:
        """Record the current arguments."""
        self._seen = {name: copy.copy(getattr(self.trainer.args, name)) for name in _DERIVED_FROM}

    def apply(self) -> None:
        """Check the arguments again if any has changed, and update what was derived from it.

        An attribute that was set on the Trainer stays, unless its argument changed too.
        """
        # Lightning's import takes a second, which must not count in any metric, and it draws from
        # Python's generator.
        if f"{__package__}.lightning_trainer" not in sys.modules:
            with host_rng_untouched():
                import_module(".lightning_trainer", __package__)

        # Rules.
        trainer = self.trainer
        args = trainer.args
        if isinstance(args, TrainingArguments):
            values = copy.deepcopy(_checked_fields(args))
            if values != self._checked:
                raise_for_problems(args)
                self._checked = values
        plan = plan_of(trainer)
        plan.strategy.check(args, trainer.model)
        plan.strategy.bind(trainer)
        trainer._current_plan = plan

        # Derived attributes.
        changed = {name for name, value in self._seen.items() if getattr(args, name) != value}
        if changed & {"per_device_train_batch_size", "auto_find_batch_size"}:
            trainer._train_batch_size = args.train_batch_size
        if "label_names" in changed and args.label_names is not None:
            trainer.label_names = args.label_names
        if "label_smoothing_factor" in changed:
            trainer.label_smoother = label_smoother(args, trainer.model)
        if "neftune_noise_alpha" in changed:
            trainer.neftune_noise_alpha = args.neftune_noise_alpha

        self.remember()
        stop_if_asked_to(plan, is_main_process=args.process_index == 0)


def _checked_fields(args: TrainingArguments) -> dict[str, object]:
    """Return the values of the fields that are checked: not those of a user's subclass."""
    package_class = next(
        cls for cls in type(args).__mro__ if cls.__module__.startswith(f"{_ROOT}.")
    )
    return {field.name: getattr(args, field.name) for field in dataclasses.fields(package_class)}


def seed_everything(args: TrainingArguments) -> None:
    """Seed all generators; with `full_determinism` use deterministic operations of torch."""
    if args.full_determinism:
        enable_full_determinism(args.seed)
    else:
        set_seed(args.seed)


def set_verbosity(args: TrainingArguments) -> None:
    """Set the log level as the reference does when a Trainer is made.

    The level `passive` leaves it to the script. Without any logging set up by the script, messages
    go to stderr. The level is set on the logger
    of this package, or on `transformers`, as scripts expect, where the names of the reference are
    intercepted.
    """
    log_level = args.log_level
    if not args.should_log:
        log_level = args.log_level_replica
    if log_level == "passive":
        return

    # The top-level logger: that of this package, or `transformers` where its names are intercepted.
    package_logger = logging.getLogger(_ROOT)
    while package_logger.parent is not None and package_logger.parent is not logging.root:
        package_logger = package_logger.parent

    package_logger.setLevel(args.get_process_log_level())
    if not package_logger.hasHandlers():
        package_logger.addHandler(logging.StreamHandler())


def make_output_dir(output_dir: str) -> None:
    """Create the output folder and its parents, unless it exists.

    Raises:
        OSError: it cannot be created, for example a PermissionError.
    """
    try:
        os.makedirs(output_dir, exist_ok=True)
    except OSError as error:
        reason = f"output_dir cannot be created ({error.strerror}). Pass another one"
        raise type(error)(error.errno, reason, output_dir) from None


def make_model(model_init: Callable[..., nn.Module], trial: object) -> nn.Module:
    """Call a `model_init`, with the trial if it takes one.

    Raises:
        RuntimeError: it takes more arguments, or returns None.
        TypeError: it does not return a model.
    """
    count = len(inspect.signature(model_init).parameters)
    if count > 1:
        raise RuntimeError(
            f"model_init takes {count} arguments. It has to take none, or one: the trial."
        )
    if count == 1:
        model = model_init(trial)
    else:
        model = model_init()

    if isinstance(model, nn.Module):
        return model

    # As in the reference, None is a RuntimeError.
    message = f"model_init returned {model!r:.60}. It has to return the model, a torch.nn.Module."
    if model is None:
        raise RuntimeError(message)
    raise TypeError(message)


def moves_model(args: TrainingArguments, *, is_on_several_devices: bool) -> bool:
    """Return whether to move the model to the device at once.

    Args:
        args: the training arguments.
        is_on_several_devices: its layers have their devices already.
    """
    if args.place_model_on_device is not None:
        return args.place_model_on_device

    # An evaluation in half precision moves and casts the model; a strategy that shards moves parts.
    is_cast_later = args.fp16_full_eval or args.bf16_full_eval
    is_sharded_later = bool(args.fsdp or args.deepspeed or spreads_model(args))
    return not (is_on_several_devices or is_cast_later or is_sharded_later)


def label_names(args: TrainingArguments, model: nn.Module) -> list[str]:
    """Return the label names of the arguments, or else those of the model's forward."""
    if args.label_names is not None:
        return args.label_names
    names = inspection.find_labels(type(model))

    # Where ranks share sequences, shifted labels are made of the labels.
    if parts_of_sequences(args) > 1:
        return [name for name in names if name != "shift_labels"]
    return names


def label_smoother(args: TrainingArguments, model: nn.Module) -> LabelSmoother | None:
    """Return the label smoother for `label_smoothing_factor`, or None."""
    if args.label_smoothing_factor == 0:
        return None
    config = getattr(model, "config", None)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        warn_at_script_line(
            "Label smoothing is disabled because it is undefined for multi-label classification. "
            "Remove label_smoothing_factor.",
            UserWarning,
        )
        return None
    return LabelSmoother(epsilon=args.label_smoothing_factor)


def display_callback(args: TrainingArguments) -> Any:
    """Return the callback that shows progress."""
    if args.disable_tqdm:
        return _default_callback("PrinterCallback", PrinterCallback)
    return _default_callback("DEFAULT_PROGRESS_CALLBACK", default_progress_callback())


def _default_callback(name: str, own: Any) -> Any:
    """Return the default that a script has set in `transformers.trainer`, or our own."""
    # Our stand-in for this module imports names on attribute access, so its `__dict__` is read.
    names = getattr(loaded("transformers.trainer"), "__dict__", {})
    default = names.get(name, own)
    # The library itself has callbacks there, which are not ours.
    for callback in default if isinstance(default, list) else [default]:
        kind = callback if isinstance(callback, type) else type(callback)
        if not issubclass(kind, TrainerCallback):
            return own
    return default


def lend_save_model(trainer: Trainer, callback: Any) -> None:
    """Let a tracker call the Trainer's `save_model`; a weak reference avoids a cycle."""
    if isinstance(callback, LoggerCallback):
        trainer_reference: Any = weakref.ref(trainer)
        callback.save_model = lambda folder: trainer_reference().save_model(
            folder, _internal_call=True
        )


def set_backend_flags(trainer: Trainer) -> None:
    """Set the backend attributes that libraries read."""
    args = trainer.args
    # A path to a file has been replaced by its contents by now.
    options = cast(dict[str, Any], args.fsdp_config or {})
    trainer.is_deepspeed_enabled = bool(args.deepspeed)
    trainer.is_fsdp_xla_enabled = bool(args.fsdp and options.get("xla"))
    trainer.is_fsdp_xla_v2_enabled = trainer.is_fsdp_xla_enabled and bool(
        options.get("xla_fsdp_v2")
    )
    trainer.is_fsdp_xla_v1_enabled = (
        trainer.is_fsdp_xla_enabled and not trainer.is_fsdp_xla_v2_enabled
    )
    trainer.is_fsdp_enabled = bool(args.fsdp) and not trainer.is_fsdp_xla_enabled


def set_up_model(trainer: Trainer, model: nn.Module) -> None:
    """Set the model of a Trainer, and the attributes derived from it."""
    args = trainer.args
    set_groups_of_model(args, groups_of_spread(args, model))

    # Device.
    device_map = getattr(model, "hf_device_map", None) or {}
    trainer.is_model_parallel = len(set(device_map.values())) > 1
    trainer.place_model_on_device = moves_model(
        args, is_on_several_devices=trainer.is_model_parallel
    )
    if trainer.place_model_on_device:
        trainer._move_model_to_device(model, args.device)
    trainer.model = model
    trainer.model_wrapped = model
    if args.parameter_rules:
        freeze_by_rules(trainer)

    # Loss and labels; in a model with an adapter its base has the signature.
    base = inspection.base_of_adapter(model)
    trainer.model_accepts_loss_kwargs = inspection.accepts_loss_kwargs(base)
    trainer.label_names = label_names(args, base)
    trainer.can_return_loss = inspection.can_return_loss(type(base))
    trainer.label_smoother = label_smoother(args, model)
    trainer.neftune_noise_alpha = args.neftune_noise_alpha
    config = getattr(model, "config", None)
    if config is not None:
        inspection.set_in_config(config, "use_cache", args.use_cache)


def set_up_callbacks(trainer: Trainer, callbacks: list[Any]) -> None:
    """Set callbacks of the user and of the arguments, and the state."""
    # Callbacks of Lightning are passed to its Trainer, not to the handler.
    trainer_callbacks: list[Any] = []
    for callback in callbacks:
        if is_lightning_callback(callback):
            trainer.add_callback(callback)
        else:
            trainer_callbacks.append(callback)

    # The handler.
    trainer.callback_handler = CallbackHandler(
        [
            *_default_callback("DEFAULT_CALLBACKS", [DefaultFlowCallback]),
            *reporting_callbacks(trainer.args.report_to),
            *trainer_callbacks,
            *requested_profilers(),
        ],
        trainer.model,
        trainer.processing_class,
        trainer.optimizer,
        trainer.lr_scheduler,
    )
    for callback in trainer.callback_handler.callbacks:
        lend_save_model(trainer, callback)

    # Progress display and signal listener.
    display = display_callback(trainer.args)
    if display is not None:
        trainer.add_callback(display)
    if trainer.args.enable_jit_checkpoint:
        trainer._signals.add_listener()

    trainer.state = TrainerState(
        is_local_process_zero=trainer.is_local_process_zero(),
        is_world_process_zero=trainer.is_world_process_zero(),
        stateful_callbacks=trainer._callback_states.exported(),
    )


def plan_of(trainer: Trainer) -> RunPlan:
    """Translate the current arguments of a Trainer."""
    model = trainer.model

    # As in the reference: a pretrained model that checkpoints its activations must not be searched
    # for unused parameters.
    finds_unused = True
    if trainer.args.world_size > 1 and inspection.is_pretrained(model):
        checkpoints_activations, _ = checkpointing(trainer.args)
        for name in _CHECKPOINTING:
            if hasattr(model, name):
                checkpoints_activations = checkpoints_activations or getattr(model, name)
                break
        finds_unused = not checkpoints_activations

    steps = None
    if trainer._fitting is not None:
        steps = trainer._fitting.length.max_steps
    plan = translate(trainer.args, find_unused_parameters=finds_unused, model=model, steps=steps)

    # Weak, because the Trainer keeps the plan, and the two would be a reference cycle.
    reference = weakref.ref(trainer)

    def rows_of_training() -> list[Row]:
        rows = list(plan.rows_of_training())
        trainer_of_plan = reference()
        if trainer_of_plan is not None:
            rows += describe_groups(trainer_of_plan)
        return rows

    return dataclasses.replace(plan, rows_of_training=rows_of_training)


def renew_model(trainer: Trainer, trial: object) -> None:
    """Create the model of a training by `model_init`, if any."""
    if trainer.model_init is None:
        return

    # The model of the previous trial is freed first, so that both are never in memory together.
    if trainer._search.current is not None:
        trainer._search.current.free_model()
    seed_everything(trainer.args)
    trainer.model = trainer.call_model_init(trial)
    trainer.optimizer = None
    trainer.lr_scheduler = None
    if trainer.place_model_on_device:
        trainer._move_model_to_device(trainer.model, trainer.args.device)
    trainer.model_wrapped = trainer.model
