"""The Trainer as a run and an evaluation see it: the members that they read, and the steps that they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from ...callbacks import CallbackHandler, TrainerControl, TrainerState
from ...lightning_modules.training.accumulation import WindowLoader
from ..accelerator.accelerator import Accelerator
from ..arguments import TrainingArguments
from ..strategies.plan import RunPlan
from ..strategies.strategy import Strategy, StrategyHost


class TrainerProtocol(StrategyHost, Protocol):
    """The Trainer, as everything that runs in its name sees it."""

    args: TrainingArguments
    accelerator: Accelerator
    callback_handler: CallbackHandler
    control: TrainerControl
    state: TrainerState
    model_preparation_time: float
    _lightning_callbacks: list[Any]
    _prepared: bool
    _parameter_counter: Any
    _run: Any
    _run_plan: RunPlan | None
    _run_device: torch.device | None
    _last_strategy: Strategy | None
    _setup_seconds: float

    @property
    def plan(self) -> RunPlan:
        """What the arguments become in Lightning."""
        ...

    @property
    def _strategy(self) -> Strategy:
        """How processes work together on the model."""
        ...

    def log(self, logs: dict[str, float]) -> None:
        """Log numbers by their names."""
        ...


class LoadingProtocol(TrainerProtocol, Protocol):
    """What loaders are made of."""

    data_collator: Callable[[list[Any]], Any]
    processing_class: Any
    _data_position: Any
    _elastic: Any
    _eval_dataloaders: dict[str, Any]
    _signals: Any
    _train_batch_size: int

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any: ...

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]: ...


class ModelProtocol(TrainerProtocol, Protocol):
    """What decides how the model computes, and what is counted of its inputs."""

    processing_class: Any
    neftune_noise_alpha: float | None
    compute_loss_func: Any
    model_accepts_loss_kwargs: bool

    def _prepare_input(self, data: Any) -> Any: ...


class EvaluationProtocol(TrainerProtocol, Protocol):
    """What happens to a batch of an evaluation."""

    eval_dataset: Any
    label_names: list[str]
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    gather_function: Callable[..., Any]

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Loss, predictions and labels."""
        ...

    def num_examples(self, dataloader: Any) -> int:
        """Samples behind a loader."""
        ...


class TrainingProtocol(TrainerProtocol, Protocol):
    """What happens to a batch of a training, and at the ends of steps."""

    current_flos: float
    _running_loss: Any
    current_gradient_accumulation_steps: int
    _lightning_callback_states: Any

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Forward and backward pass."""
        ...

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Operations of a batch."""
        ...

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor: ...

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> torch.Tensor: ...

    def _get_learning_rate(self) -> float: ...

    def _track_num_input_tokens(self, inputs: Any) -> None: ...

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...

    def _load_scaler(self, checkpoint: str | None) -> None: ...

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]: ...

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool: ...

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: torch.Tensor | float | None,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None: ...

    def _finalize_training(self, run: Any) -> None: ...


class RunProtocol(Protocol):
    """The training that runs, as what is saved and made anew in it sees it."""

    facade: TrainingProtocol
    lightning_trainer: Any
    epoch_ended: bool
    strategy: Strategy
    trial: Any
    ignore_keys: list[str] | None
    windows: WindowLoader

    interrupted_evaluation: Any

    @property
    def stopping(self) -> bool:
        """Whether a callback wants the epoch, or the training, to end."""
        ...

    @property
    def next_position(self) -> tuple[int, int]:
        """Epoch, and windows of it that are done, where a training goes on that is saved now."""
        ...

    @property
    def epoch_is_over(self) -> bool:
        """Whether nothing is left to do in this epoch but to save."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return what the next logs are made of."""
        ...

    def apply_progress(self, progress: dict[str, Any]) -> None:
        """Let the logs go on where those of an interrupted training ended."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, by the names that Lightning gives them."""
        ...

    def stop_before_step(self) -> None:
        """End the epoch before its next step."""
        ...
