"""The Trainer as those who write and read checkpoints see it: what they read of it, and the methods that they call."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from ...callbacks import CallbackHandler, TrainerControl, TrainerState
from ..accelerator.accelerator import Accelerator
from ..arguments import TrainingArguments
from ..arguments.fields import ArgumentFields
from ..arguments.process_view import ProcessView
from ..strategies.strategy import Strategy


class SignalProtocol(Protocol):
    """What there is to know about signals, and where callbacks are added."""

    checkpoint_on_signals: tuple[int, ...]
    callback_handler: CallbackHandler

    @property
    def args(self) -> ArgumentFields:
        """The training arguments."""
        ...

    def add_callback(self, callback: Any) -> None:
        """Add a callback."""
        ...

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback."""
        ...


class CallbackProtocol(Protocol):
    """The callbacks, and what they change."""

    callback_handler: CallbackHandler
    control: TrainerControl
    state: TrainerState

    @property
    def args(self) -> ArgumentFields:
        """The training arguments."""
        ...


class PositionProtocol(Protocol):
    """The numbers by which data is dealt to processes, and how far the training is."""

    args: TrainingArguments
    accelerator: Accelerator
    state: TrainerState
    _train_batch_size: int


class TrainingStateProtocol(Protocol):
    """What a training goes on from."""

    lr_scheduler: Any
    accelerator: Accelerator
    state: TrainerState

    @property
    def args(self) -> ProcessView:
        """The training arguments."""
        ...

    @property
    def _strategy(self) -> Strategy:
        """How processes work together on the model."""
        ...


class RestoringProtocol(Protocol):
    """What a checkpoint is looked for with, and what is filled from it."""

    model: nn.Module
    state: TrainerState

    @property
    def args(self) -> TrainingArguments:
        """The training arguments."""
        ...

    @property
    def _strategy(self) -> Strategy:
        """How processes work together on the model."""
        ...


class SavingProtocol(RestoringProtocol, Protocol):
    """What is saved, and the methods that save a part of it."""

    optimizer: Any
    accelerator: Accelerator
    callback_handler: CallbackHandler
    control: TrainerControl
    data_collator: Any
    processing_class: Any
    background_checkpoints: int | None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model."""
        ...

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None: ...

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...
