"""What a Trainer derives from its arguments and its model: when it is made, and again where arguments have changed."""

from __future__ import annotations

import copy
import inspect
import logging
import sys
import warnings
import weakref
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Any

from torch import nn

from ...callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    LoggerCallback,
    PrinterCallback,
    TrainerState,
    default_progress_callback,
    reporting_callbacks,
)
from ...lightning_modules.common.seeding import enable_full_determinism, host_rng_untouched, set_seed
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models import inspection
from ...lightning_modules.training.label_smoothing import LabelSmoother
from ..arguments import TrainingArguments
from ..arguments.checkpointing import checkpointing
from ..arguments.parallelism import parts_of_sequences, set_groups_of_model, spreads_model
from ..arguments.support import raise_for_unsupported
from ..arguments.validation import raise_for_problems
from ..strategies.model_parallel import groups_of_spread
from ..strategies.plan import RunPlan, stop_if_asked_to, translate
from .lightning_callbacks import is_lightning_callback

logger = logging.getLogger(__name__)

_ROOT = __name__.partition(".")[0]
_CHECKPOINTING = ("is_activation_checkpointing", "is_gradient_checkpointing")
"""Attributes of a model of `transformers` that recomputes activations, in newer and in older versions."""
_PLAIN = (str, int, float, Enum, type(None))
_DERIVED_FROM = (
    *("per_device_train_batch_size", "auto_find_batch_size", "enable_jit_checkpoint"),
    *("label_names", "label_smoothing_factor", "neftune_noise_alpha"),
)


class AppliedArguments:
    """Remembers what the arguments were when attributes of a Trainer were derived from them.

    Args:
        trainer: the Trainer whose attributes these are.
    """

    trainer = WeakAttribute["Any"]()

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._seen: dict[str, Any] = {}
        self._checked: list[tuple[str, type, Any]] = []

    def remember(self) -> None:
        """Let the attributes be those of the arguments as they are now."""
        self._seen = {name: copy.copy(getattr(self.trainer.args, name)) for name in _DERIVED_FROM}

    def apply(self) -> None:
        """Check the arguments again, and derive anew what depends on those that were changed.

        What somebody set on the Trainer itself stays, unless the argument that it came from was changed too.
        """
        if f"{__package__}.lightning_trainer" not in sys.modules:
            with host_rng_untouched():  # an import of Lightning draws from Python's generator
                import_module(".lightning_trainer", __package__)  # a second that no measured time should hold
        trainer, args = self.trainer, self.trainer.args
        if isinstance(args, TrainingArguments):
            self._check(args)
            trainer.plan.strategy.check(args, trainer.model)
        trainer._last_strategy = None
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
        stop_if_asked_to(trainer)

    def _check(self, args: TrainingArguments) -> None:
        """Say what is wrong with arguments, unless they are those of the last time: all the rules take a while."""
        present = [
            (name, type(value), value if isinstance(value, _PLAIN) else repr(value))  # 8 equals 8.0
            for name, value in vars(args).items()
        ]
        if present != self._checked:
            raise_for_problems(args)
            raise_for_unsupported(args)
            self._checked = present


def seed_everything(args: TrainingArguments) -> None:
    """Seed all generators, and with `full_determinism` let torch's operations be deterministic."""
    (enable_full_determinism if args.full_determinism else set_seed)(args.seed)


def set_verbosity(args: TrainingArguments) -> None:
    """As the reference sets its verbosity when a Trainer is made; `passive` leaves everything to the script.

    Where the script has set up no logging at all, messages go to the standard error stream: who asks for `info` means
    to see it. The level is that of the logger that decides how much this package says: its own, or where names of the
    reference are served, `transformers`, as scripts expect.
    """
    if (args.log_level if args.should_log else args.log_level_replica) == "passive":
        return
    top = logging.getLogger(_ROOT)
    while top.parent is not None and top.parent is not logging.root:
        top = top.parent
    top.setLevel(args.get_process_log_level())
    if not top.hasHandlers():
        top.addHandler(logging.StreamHandler())


def make_model(model_init: Callable[..., nn.Module], trial: Any) -> nn.Module:
    """Call a `model_init`, with the trial if it takes one.

    Raises:
        RuntimeError: it takes more, or returns nothing.
        TypeError: it returns no model.
    """
    count = len(inspect.signature(model_init).parameters)
    if count > 1:
        raise RuntimeError(f"model_init takes {count} arguments. It has to take none, or one: the trial.")
    model = model_init(trial) if count else model_init()
    if model is None:
        raise RuntimeError("model_init returned None. It has to return the model.")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model_init returned a {type(model).__name__} ({model!r:.60}), not a torch.nn.Module.")
    return model


def moves_model(args: TrainingArguments, *, spread: bool) -> bool:
    """Tell whether the model is moved to the device as soon as it is there; `spread` over devices, it is not."""
    if args.place_model_on_device is not None:
        return args.place_model_on_device
    reduced = args.fp16_full_eval or args.bf16_full_eval  # moved and cast when it is evaluated
    in_parts = bool(args.fsdp or args.deepspeed or spreads_model(args))
    return not (spread or reduced or in_parts)


def label_names(args: TrainingArguments, model: nn.Module) -> list[str]:
    """Name the arguments of the model that are labels, unless the arguments do."""
    if args.label_names is not None:
        return args.label_names
    found = inspection.find_labels(type(model))
    made_of_labels = parts_of_sequences(args) > 1  # where sequences are split, and nowhere else
    return [name for name in found if name != "shift_labels"] if made_of_labels else found


def label_smoother(args: TrainingArguments, model: nn.Module) -> LabelSmoother | None:
    """Make what `label_smoothing_factor` asks for."""
    if args.label_smoothing_factor == 0:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        said = "Label smoothing is turned off, for it makes no sense for multi-label classification."
        warnings.warn(f"{said} Leave label_smoothing_factor out.", UserWarning, stacklevel=2)
        return None
    return LabelSmoother(epsilon=args.label_smoothing_factor)


def default_callbacks(args: TrainingArguments) -> list[Any]:
    """List the callbacks that come before the user's."""
    return [DefaultFlowCallback, *reporting_callbacks(args.report_to)]


def display_callback(args: TrainingArguments, others: list[Any]) -> Any:
    """Choose what shows the progress; None where another callback takes its place."""
    if args.disable_tqdm:
        return PrinterCallback
    replaced = any(getattr(callback, "takes_place_of", None) for callback in others)
    return None if replaced else default_progress_callback()


def lend_save_model(trainer: Any, callback: Any) -> None:
    """Let a tracker write the model as this Trainer does, without keeping the Trainer alive."""
    if isinstance(callback, LoggerCallback):
        host: Any = weakref.ref(trainer)
        callback.save_model = lambda folder: host().save_model(folder, _internal_call=True)


def set_backend_flags(trainer: Any) -> None:
    """Set the attributes by which libraries ask for the backend."""
    args, options = trainer.args, trainer.args.fsdp_config or {}
    trainer.is_deepspeed_enabled = bool(args.deepspeed)
    trainer.is_fsdp_xla_enabled = bool(args.fsdp and options.get("xla"))
    trainer.is_fsdp_xla_v2_enabled = trainer.is_fsdp_xla_enabled and bool(options.get("xla_fsdp_v2"))
    trainer.is_fsdp_xla_v1_enabled = trainer.is_fsdp_xla_enabled and not trainer.is_fsdp_xla_v2_enabled
    trainer.is_fsdp_enabled = bool(args.fsdp) and not trainer.is_fsdp_xla_enabled


def set_up_model(trainer: Any, model: nn.Module) -> None:
    """Make a model that of a Trainer, and derive from it what depends on it."""
    args, inspected = trainer.args, inspection.base_of_adapter(model)
    set_groups_of_model(args, groups_of_spread(args, model))
    trainer.is_model_parallel = len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1
    trainer.place_model_on_device = moves_model(args, spread=trainer.is_model_parallel)
    if trainer.place_model_on_device:
        trainer._move_model_to_device(model, args.device)
    trainer.model = trainer.model_wrapped = model
    trainer.model_accepts_loss_kwargs = inspection.accepts_loss_kwargs(inspected)
    trainer.label_names = label_names(args, inspected)
    trainer.can_return_loss = inspection.can_return_loss(type(inspected))
    trainer.label_smoother = label_smoother(args, model)
    trainer.neftune_noise_alpha = args.neftune_noise_alpha
    config: Any = getattr(model, "config", None)
    if config is not None:
        config.use_cache = args.use_cache


def set_up_callbacks(trainer: Any, callbacks: list[Any]) -> None:
    """Give a Trainer its callbacks, those of the user and those that the arguments ask for, and its state."""
    for callback in filter(is_lightning_callback, callbacks):
        trainer.add_callback(callback)
    own = [callback for callback in callbacks if not is_lightning_callback(callback)]
    trainer.callback_handler = CallbackHandler(
        [*default_callbacks(trainer.args), *own],
        trainer.model,
        trainer.processing_class,
        trainer.optimizer,
        trainer.lr_scheduler,
    )
    for callback in trainer.callback_handler.callbacks:
        lend_save_model(trainer, callback)
    display = display_callback(trainer.args, trainer.callback_handler.callbacks)
    if display is not None:
        trainer.add_callback(display)
    trainer.state = TrainerState(
        is_local_process_zero=trainer.is_local_process_zero(),
        is_world_process_zero=trainer.is_world_process_zero(),
        stateful_callbacks=trainer._callback_states.exported(),
    )


def plan_of(trainer: Any) -> RunPlan:
    """Translate the arguments of a Trainer as they are now."""
    model = trainer.model
    wanted, _ = checkpointing(trainer.args)
    name = next((name for name in _CHECKPOINTING if hasattr(model, name)), "")
    unused = not (inspection.is_pretrained(model) and (wanted or getattr(model, name, False)))
    steps = None if trainer._run is None else trainer._run.length.max_steps
    return translate(trainer.args, find_unused_parameters=unused, model=model, steps=steps)


def renew_model(trainer: Any, trial: Any) -> None:
    """Make the model of a training, where there is a `model_init`."""
    if trainer.model_init is None:
        return
    if trainer._search.current is not None:
        trainer._search.current.drop_model()
    seed_everything(trainer.args)
    trainer.model = trainer.call_model_init(trial)
    trainer.optimizer = trainer.lr_scheduler = None
    if trainer.place_model_on_device:
        trainer._move_model_to_device(trainer.model, trainer.args.device)
    trainer.model_wrapped = trainer.model
