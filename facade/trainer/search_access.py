"""Change a Trainer for the trials of a search, and send it to the processes of Ray."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ...callbacks import LoggerCallback, NotebookProgressCallback, ProgressCallback
from ..search.search_run import TrainerAccess
from .callback_setup import expose_save_model
from .memory_report import MemoryTracker
from .model_setup import free_optimizer

if TYPE_CHECKING:
    from torch import nn

    from .. import Trainer
    from ..search.hyperparameter_search import HyperparameterSearch


def install_model(trainer: Trainer, model: nn.Module) -> None:
    """Give a Trainer a new model."""
    trainer._lightrainer.model_setup.install(model)


def load_model(trainer: Trainer, checkpoint: str) -> None:
    """Load the weights of a checkpoint."""
    trainer._load_from_checkpoint(checkpoint)


def save_checkpoint(trainer: Trainer) -> None:
    """Write a checkpoint of the current step."""
    trainer._save_checkpoint(trainer.model, None)


def portable(trainer: Trainer) -> Any:
    """Copy a Trainer without the state that belongs to this process: model, components, threads."""
    # The copy has no components; see `Trainer.__getstate__`.
    sent = copy.copy(trainer)

    # Send callbacks without their references to objects of this process, and without the signal
    # listener, which each training adds.
    callbacks = []
    for callback in trainer.callback_handler.callbacks:
        if callback is trainer._lightrainer.signals.own_listener:
            continue
        copied = copy.copy(callback)
        if isinstance(copied, LoggerCallback):
            copied.__dict__.pop("save_model", None)
        callbacks.append(copied)
    sent.callback_handler = copy.copy(trainer.callback_handler)
    sent.callback_handler.callbacks = callbacks
    sent.callback_handler.final_listeners = {}

    # Model and process.
    members = vars(sent)
    free_optimizer(sent)
    members.update(
        model=None,
        model_wrapped=None,
        accelerator=None,
        gather_function=None,
        _memory_tracker=None,
    )
    sent.callback_handler.model = None
    return sent


def revive(sent: Any) -> tuple[Any, HyperparameterSearch]:
    """Rebuild a Trainer in the receiving process; return it and its search."""
    trainer = copy.copy(sent)
    trainer.create_accelerator_and_postprocess()
    trainer._memory_tracker = MemoryTracker(True)
    for callback in trainer.callback_handler.callbacks:
        expose_save_model(trainer, callback)
    if trainer.pop_callback(NotebookProgressCallback):
        trainer.add_callback(ProgressCallback)

    # A model is needed for inspection before the trial creates its own.
    trainer.model = trainer.call_model_init()
    trainer.model_wrapped = trainer.model
    return trainer, trainer._lightrainer.search


ACCESS = TrainerAccess(
    install_model=install_model,
    free_optimizer=free_optimizer,
    load_model=load_model,
    save_checkpoint=save_checkpoint,
    portable=portable,
    revive=revive,
)
