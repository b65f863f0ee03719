"""Create the callback handler of a Trainer."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ...callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    LoggerCallback,
    PrinterCallback,
    TrainerCallback,
    default_progress_callback,
    reporting_callbacks,
    requested_profilers,
)
from ...lightning_modules.common.libraries import loaded
from ..arguments import TrainingArguments
from .lightning_callbacks import is_lightning_callback

if TYPE_CHECKING:
    from .. import Trainer


def set_up_callbacks(trainer: Trainer, callbacks: list[Any]) -> None:
    """Create the callback handler, with the user's callbacks and those that the arguments
    request.
    """
    # Lightning callbacks are passed to the Lightning Trainer instead of the handler.
    trainer_callbacks: list[Any] = []
    for callback in callbacks:
        if is_lightning_callback(callback):
            trainer.add_callback(callback)
        else:
            trainer_callbacks.append(callback)

    trainer.callback_handler = CallbackHandler(
        callbacks_in_order(trainer.args, trainer_callbacks),
        trainer.model,
        trainer.processing_class,
        trainer.optimizer,
        trainer.lr_scheduler,
    )
    for callback in trainer.callback_handler.callbacks:
        expose_save_model(trainer, callback)

    # The progress display and the signal listener are called after the others.
    display = display_callback(trainer.args)
    if display is not None:
        trainer.add_callback(display)
    if trainer.args.enable_jit_checkpoint:
        trainer._lightrainer.signals.add_listener()


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
