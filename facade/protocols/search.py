"""The Trainer as a hyperparameter search sees it: what it reads and sets, and the methods that it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from ...callbacks import CallbackHandler, TrainerControl, TrainerState
from ..accelerator.accelerator import Accelerator
from ..arguments import TrainingArguments
from ..strategies.plan import RunPlan


class SearchProtocol(Protocol):
    """A Trainer that trains many times, each time with other arguments and a new model."""

    args: TrainingArguments
    model: Any
    model_wrapped: Any
    optimizer: Any
    lr_scheduler: Any
    accelerator: Accelerator
    gather_function: Callable[..., Any]
    callback_handler: CallbackHandler
    control: TrainerControl
    state: TrainerState
    eval_dataset: Any
    place_model_on_device: bool
    study: Any
    objective: Any
    hp_space: Callable[[Any], dict[str, Any]] | None
    hp_name: Callable[[Any], str] | None
    hp_search_backend: Any
    compute_objective: Callable[[dict[str, float]], Any] | None
    _train_batch_size: int

    @property
    def plan(self) -> RunPlan:
        """What the arguments become in Lightning."""
        ...

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None) -> Any:
        """Train from the beginning, or from a checkpoint."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Evaluate on `eval_dataset`."""
        ...

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Make the loader of an evaluation."""
        ...

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make a model."""
        ...

    def create_accelerator_and_postprocess(self) -> None:
        """Make `accelerator`, and what follows from it."""
        ...

    def is_world_process_zero(self) -> bool:
        """Whether this is the first process of all."""
        ...

    def _move_model_to_device(self, model: nn.Module, device: Any) -> None: ...

    def _load_from_checkpoint(self, resume_from_checkpoint: str) -> None: ...

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None: ...
