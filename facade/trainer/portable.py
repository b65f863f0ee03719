"""A Trainer that is sent to another process, as Ray does with it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ...callbacks import LoggerCallback, NotebookProgressCallback, ProgressCallback
from ..search.search import Transport
from ..search.snapshots import forget_optimizer
from .construction import lend_save_model
from .memory_report import MemoryTracker

if TYPE_CHECKING:
    from ..search.session import SearchSession


def portable(trainer: Any) -> Any:
    """Copy a Trainer without what belongs to this process: its model, components and threads."""
    sent = copy.copy(trainer)  # without its components, see `TrainerBase.__getstate__`
    # Callbacks are sent with it, but what they hold of this process is not.
    sent.callback_handler = copy.copy(trainer.callback_handler)
    sent.callback_handler.callbacks = [copy.copy(one) for one in trainer.callback_handler.callbacks]
    sent.callback_handler.unlisted = {}
    for callback in sent.callback_handler.callbacks:
        if isinstance(callback, LoggerCallback):
            callback.__dict__.pop("save_model", None)
    members: dict[str, Any] = vars(sent)
    forget_optimizer(sent)
    members.update(model=None, model_wrapped=None, accelerator=None, gather_function=None, _memory_tracker=None)
    sent.callback_handler.model = None
    members.pop("_last_strategy", None)
    return sent


def revive(sent: Any) -> tuple[Any, SearchSession]:
    """Give a Trainer that was sent what was left behind; the Trainer and its search."""
    trainer = copy.copy(sent)
    trainer.create_accelerator_and_postprocess()
    trainer._memory_tracker = MemoryTracker(True)
    for callback in trainer.callback_handler.callbacks:
        lend_save_model(trainer, callback)
    if trainer.pop_callback(NotebookProgressCallback):
        trainer.add_callback(ProgressCallback)
    trainer.model = trainer.model_wrapped = trainer.call_model_init()  # what is looked at before the trial has its own
    return trainer, trainer._search


TRANSPORT = Transport(portable=portable, revive=revive)
