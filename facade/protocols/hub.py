"""The Trainer as its uploads see it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from ...callbacks import CallbackHandler, TrainerControl, TrainerState
from ..arguments import TrainingArguments


class HubProtocol(Protocol):
    """What is uploaded, and the methods that an upload calls."""

    args: TrainingArguments
    model: nn.Module
    callback_handler: CallbackHandler
    control: TrainerControl
    state: TrainerState
    hub_model_id: str | None
    push_in_progress: Any

    def is_world_process_zero(self) -> bool:
        """Whether this is the process that uploads."""
        ...

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository."""
        ...

    @property
    def create_model_card(self) -> Any:
        """Write the card into `output_dir`."""
        ...

    def push_to_hub(self, commit_message: str | None = "End of training") -> Any:
        """Save the model and upload it."""
        ...

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

    def _finish_current_push(self) -> None: ...
