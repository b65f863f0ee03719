"""Functions that derive the attributes of a Trainer from its arguments and its model."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import os
import weakref
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...callbacks import (
    DefaultFlowCallback,
    LoggerCallback,
    PrinterCallback,
    TrainerCallback,
    default_progress_callback,
    reporting_callbacks,
    requested_profilers,
)
from ...lightning_modules.common.libraries import loaded
from ...lightning_modules.common.seeding import (
    enable_full_determinism,
    preserved_host_rng,
    set_seed,
)
from ...lightning_modules.models.pretrained import is_pretrained
from ...lightning_modules.models.signatures import find_labels
from ...lightning_modules.training.label_smoothing import LabelSmoother
from ..arguments import TrainingArguments
from ..arguments.derived import checkpointing
from ..arguments.old_names import warn_at_script_line
from ..arguments.parallelism import parts_of_sequences, spreads_model
from ..arguments.reading import read_fields
from ..arguments.rules import report
from ..strategies.plan import RunPlan, translate
from ..strategies.strategy import Row
from .optimization import describe_groups

if TYPE_CHECKING:
    from .. import Trainer

_ROOT = __name__.partition(".")[0]

_CHECKPOINTING = ("is_activation_checkpointing", "is_gradient_checkpointing")
"""Attributes of `transformers` models that tell whether activation checkpointing is enabled, in
newer and older versions.
"""

_DERIVED_FROM = (
    "per_device_train_batch_size",
    "auto_find_batch_size",
    "label_names",
    "label_smoothing_factor",
    "neftune_noise_alpha",
)
"""Arguments from which the Trainer derives attributes that callers may also set directly."""


class AppliedArguments:
    """Track which arguments a Trainer has checked, and which its attributes were derived from.

    Scripts and libraries may change arguments between two runs.

    Args:
        args: the arguments from which the attributes were derived.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.remember(args)
        self._checked: dict[str, Any] | None = None
        """The arguments at the last successful check; None before the first one."""

    def remember(self, args: TrainingArguments) -> None:
        """Record that the attributes of the Trainer were derived from these arguments."""
        # Copy the values, because a list of names may be modified in place.
        self._derived_from = {name: copy.copy(getattr(args, name)) for name in _DERIVED_FROM}

    def changed(self, args: TrainingArguments) -> set[str]:
        """Return the names of the arguments that have changed since they were recorded."""
        return {name for name, value in self._derived_from.items() if getattr(args, name) != value}

    def check(self, args: TrainingArguments) -> None:
        """Check the rules between arguments again if any argument has changed.

        Raises:
            TypeError, ValueError, NotImplementedError: See `report`.
        """
        # A library may have replaced the arguments by an object of another class.
        if not isinstance(args, TrainingArguments):
            return
        values = copy.deepcopy(_checked_fields(args))
        if values != self._checked:
            report(args, *read_fields(args))
            self._checked = values


def _checked_fields(args: TrainingArguments) -> dict[str, object]:
    """Return the values of the fields that are checked, which excludes fields of subclasses."""
    package_class = next(
        cls for cls in type(args).__mro__ if cls.__module__.startswith(f"{_ROOT}.")
    )
    return {field.name: getattr(args, field.name) for field in dataclasses.fields(package_class)}


@cache
def preload_lightning() -> None:
    """Import Lightning before anything is timed, because the import takes about a second.

    The import draws from Python's random generator, so its state is restored afterwards.
    """
    with preserved_host_rng():
        import_module(".lightning_trainer", __package__)


def seed_everything(args: TrainingArguments) -> None:
    """Seed all generators; with `full_determinism`, also enable deterministic algorithms."""
    if args.full_determinism:
        enable_full_determinism(args.seed)
    else:
        set_seed(args.seed)


def set_verbosity(args: TrainingArguments) -> None:
    """Set the log level, as the reference does when a Trainer is created.

    The level `passive` leaves the current level unchanged. If the script has not configured
    logging, messages go to stderr.
    """
    log_level = args.log_level
    if not args.should_log:
        log_level = args.log_level_replica
    if log_level == "passive":
        return

    # When imports of transformers are intercepted, the parent logger of this package is
    # `transformers`, and scripts expect the level to be set there.
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
        RuntimeError: it takes more than one argument, or returns None.
        TypeError: it does not return a model.
    """
    count = len(inspect.signature(model_init).parameters)
    if count > 1:
        raise RuntimeError(
            f"model_init takes {count} arguments. It must take either none or one, the trial."
        )
    if count == 1:
        model = model_init(trial)
    else:
        model = model_init()

    if isinstance(model, nn.Module):
        return model

    # As in the reference, returning None raises a RuntimeError.
    message = f"model_init returned {model!r:.60}. It must return the model, a torch.nn.Module."
    if model is None:
        raise RuntimeError(message)
    raise TypeError(message)


def is_model_parallel(model: nn.Module, device: torch.device) -> bool:
    """Return whether `hf_device_map` places layers on other devices than that of this process.

    Layers that are offloaded to the CPU or the disk do not count.
    """
    device_map = getattr(model, "hf_device_map", None) or {}
    devices = set(device_map.values()) - {"cpu", "disk"}
    if len(devices) != 1:
        return len(devices) > 1
    (only,) = devices
    if isinstance(only, int):
        return only != device.index
    return torch.device(only) != device


def moves_model_at_once(args: TrainingArguments, *, is_on_several_devices: bool) -> bool:
    """Return whether to move the model to the device when the Trainer is constructed.

    Args:
        args: the training arguments.
        is_on_several_devices: whether its layers are already placed on several devices.
    """
    if args.place_model_on_device is not None:
        return args.place_model_on_device

    # An evaluation in half precision moves the model when it casts it; a strategy that shards the
    # model moves the shards.
    is_cast_later = args.fp16_full_eval or args.bf16_full_eval
    is_sharded_later = bool(args.fsdp or args.deepspeed or spreads_model(args))
    return not (is_on_several_devices or is_cast_later or is_sharded_later)


def find_label_names(args: TrainingArguments, model: nn.Module) -> list[str]:
    """Return the label names set in the arguments, or those in the signature of the model."""
    if args.label_names is not None:
        return args.label_names
    names = find_labels(type(model))

    # If ranks share sequences, `shift_labels` is computed from `labels`.
    if parts_of_sequences(args) > 1:
        return [name for name in names if name != "shift_labels"]
    return names


def make_label_smoother(args: TrainingArguments, model: nn.Module) -> LabelSmoother | None:
    """Return the label smoother for `label_smoothing_factor`, or None."""
    if args.label_smoothing_factor == 0:
        return None
    config = getattr(model, "config", None)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        warn_at_script_line(
            "Label smoothing is not compatible with multi-label classification, so it is disabled. "
            "Remove label_smoothing_factor.",
            UserWarning,
        )
        return None
    return LabelSmoother(epsilon=args.label_smoothing_factor)


def callbacks_in_order(args: TrainingArguments, user_callbacks: list[Any]) -> list[Any]:
    """Return the callbacks in the order of their calls.

    The Trainer appends the progress display and the signal listener.
    """
    return [
        *_script_default("DEFAULT_CALLBACKS", [DefaultFlowCallback]),
        *reporting_callbacks(args.report_to),
        *user_callbacks,
        *requested_profilers(),
    ]


def display_callback(args: TrainingArguments) -> Any:
    """Return the callback that shows progress."""
    if args.disable_tqdm:
        return _script_default("PrinterCallback", PrinterCallback)
    return _script_default("DEFAULT_PROGRESS_CALLBACK", default_progress_callback())


def _script_default(variable: str, package_default: Any) -> Any:
    """Return the default that a script has set in `transformers.trainer`, or that of this package.

    Args:
        variable: the name of a callback, or of a list of callbacks, in `transformers.trainer`.
        package_default: the value to return if the script has set none.
    """
    # Read `__dict__`, because our stand-in for this module imports names on attribute access.
    variables = getattr(loaded("transformers.trainer"), "__dict__", {})
    default = variables.get(variable, package_default)

    # Ignore the callbacks of the library itself, which do not work with this package.
    for callback in default if isinstance(default, list) else [default]:
        callback_class = callback if isinstance(callback, type) else type(callback)
        if not issubclass(callback_class, TrainerCallback):
            return package_default
    return default


def expose_save_model(trainer: Trainer, callback: Any) -> None:
    """Give a tracker access to the Trainer's `save_model`, with which it uploads the model."""
    if not isinstance(callback, LoggerCallback):
        return

    # The Trainer holds the callback, so a strong reference to the Trainer would create a cycle.
    weak_trainer = weakref.proxy(trainer)
    callback.save_model = lambda folder: weak_trainer.save_model(folder, _internal_call=True)


def plan_of(trainer: Trainer) -> RunPlan:
    """Translate the current arguments of a Trainer into a plan whose strategy is bound to it."""
    args = trainer.args
    model = trainer.model

    # As in the reference, DDP does not look for unused parameters in a pretrained model with
    # activation checkpointing, because the two are incompatible.
    finds_unused = True
    if args.world_size > 1 and is_pretrained(model):
        finds_unused = not _checkpoints_activations(args, model)

    steps = None
    if trainer._lightrainer.fitting is not None:
        steps = trainer._lightrainer.fitting.length.max_steps
    plan = translate(args, find_unused_parameters=finds_unused, model=model, steps=steps)
    plan.strategy.bind(trainer)

    # The Trainer holds the plan, so a strong reference to the Trainer would create a cycle. The
    # plan may outlive the Trainer.
    reference = weakref.ref(trainer)

    def rows_of_training() -> list[Row]:
        rows = list(plan.rows_of_training())
        trainer_of_plan = reference()
        if trainer_of_plan is not None:
            rows += describe_groups(trainer_of_plan)
        return rows

    return dataclasses.replace(plan, rows_of_training=rows_of_training)


def _checkpoints_activations(args: TrainingArguments, model: nn.Module) -> bool:
    """Return whether the arguments request activation checkpointing, or a script has enabled it."""
    is_requested, _ = checkpointing(args)
    if is_requested:
        return True

    # If a model has both attributes, only the first one is read.
    for name in _CHECKPOINTING:
        if hasattr(model, name):
            return getattr(model, name)
    return False
