"""Base class of the tracker callbacks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from ...lightning_modules.common.libraries import is_instance
from .._log_values import number_of
from ..base import TrainerCallback
from ..state import TrainerControl, TrainerState
from .availability import AVAILABLE, require
from .values import checkpoint_folder

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)

_CLASSES_WITH_SAVE_PRETRAINED = {
    "transformers.modeling_utils": "PreTrainedModel",
    "peft": "PeftModel",
    "huggingface_hub.hub_mixin": "PyTorchModelHubMixin",
}
"""Classes of models whose `save_pretrained` writes all weights, by module."""


class LoggerCallback(TrainerCallback):
    """Base of callbacks that log to a tracker.

    Process 0 opens a run when training begins, or at the first log outside of training. If that
    fails, an error is raised, before the first step. Later failures (a broken network, a full disk)
    do not end the training: the first one is logged as a warning, and their number at the end.

    A subclass sets `platform`, and defines `_start`, `_report` and, if a run has to be closed,
    `_finish`.

    Raises:
        MissingTrackerError: an ImportError; the package is not installed.
    """

    platform: ClassVar[str] = ""
    """The name of the tracker in `report_to`."""
    advice: ClassVar[str] = ""
    """A sentence for the error if a run cannot be opened."""
    ends_with_training: bool = False
    """True to close the run when training ends; the next training opens another one."""
    run_variable: ClassVar[str] = ""
    """The environment variable that names a run to resume; it overrides the run of a checkpoint."""
    run_id: Any = None
    """The name by which the tracker finds the run again. It is saved in checkpoints."""
    save_model: Callable[[str], Any] | None = None
    """Function that writes the model to a folder; all processes call it. Set by the Trainer."""
    _loaded_run_id: str | None = None

    def __init__(self) -> None:
        require(self._available(), self.platform, type(self).__name__)
        self._initialized = False
        self._has_finished = False
        self._failures = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the name of the run for checkpoints; empty if no run is open."""
        if not self._initialized or self.run_id is None:
            return {}
        return {"run": self.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the run of a checkpoint when the next run is opened."""
        self._loaded_run_id = state_dict.get("run")

    @property
    def uploads_checkpoints(self) -> bool:
        """Whether `on_save` uploads the checkpoint."""
        return False

    @property
    def reads_checkpoints(self) -> bool:
        """Whether a checkpoint has to be written completely before `on_save`.

        Uploads need that. A class outside of this package that overrides `on_save` may need it.
        """
        is_overridden = not type(self).on_save.__module__.startswith(__package__ or "")
        return self.uploads_checkpoints or is_overridden

    def setup(
        self,
        args: TrainingArguments,
        state: TrainerState,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a run and describe it; override this to send more to the tracker."""
        # Only process 0 opens a run, but all processes record that this was done.
        if state.is_world_process_zero:
            try:
                self._start(args, state, model)
            except Exception as error:
                logger.error(
                    "report_to=%r: opening a run failed (%s). %s To train without the tracker, "
                    "remove it from report_to.",
                    self.platform,
                    type(error).__name__,
                    self.advice,
                )
                raise
        self._initialized = True

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a run; each trial of a hyperparameter search has its own."""
        if state.is_hyper_param_search or self._has_finished:
            self._close_earlier_run(state)
        if not self._initialized:
            self.setup(args, state, model, **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Send the logs."""
        if not logs:
            return
        if not self._initialized:
            self.setup(args, state, model, **kwargs)
        if state.is_world_process_zero:
            with self._failures_as_warnings(f"the logs of step {state.global_step}"):
                self._report(args, state, logs)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Upload the checkpoint, if that is enabled."""
        if self.uploads_checkpoints and self._initialized and state.is_world_process_zero:
            with self._failures_as_warnings(f"checkpoint-{state.global_step}"):
                folder = checkpoint_folder(args, state)
                self._upload(args, state, folder)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Close the run with `ends_with_training`, and log the number of failures."""
        if not self._initialized:
            return
        if self.ends_with_training and not self._has_finished:
            self._has_finished = True
            if state.is_world_process_zero:
                with self._failures_as_warnings("the end of the run"):
                    self._finish()
        self._log_failures()

    # Subclasses define these methods.

    def _available(self) -> bool:
        """Return whether the package is installed."""
        return AVAILABLE[self.platform]()

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Open a run, in process 0."""

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Send logs, in process 0."""

    def _upload(self, args: TrainingArguments, state: TrainerState, folder: str) -> None:
        """Send the checkpoint in `folder`, in process 0."""

    def _finish(self) -> None:
        """Close the run, in process 0."""

    # Subclasses call these methods.

    def _close_earlier_run(self, state: TrainerState) -> None:
        """Close the run of an earlier training, if it is open; the next event opens another one."""
        if self._initialized and not self._has_finished and state.is_world_process_zero:
            with self._failures_as_warnings("the end of the run"):
                self._finish()
        self._initialized = False
        self._has_finished = False

    def _run_to_resume(self, state: TrainerState) -> str | None:
        """Return the run of the checkpoint from which the training resumes, in the first call.

        Later calls return None, as does any call if the environment names a run, or in a
        hyperparameter search.
        """
        run_id = self._loaded_run_id
        self._loaded_run_id = None
        if state.is_hyper_param_search or os.environ.get(self.run_variable):
            return None
        return run_id

    def _numbers(self, logs: Mapping[str, object]) -> dict[str, float]:
        """Return the numbers in logs, and warn about other values."""
        numbers: dict[str, float] = {}
        other_names: list[str] = []
        for name, value in logs.items():
            number = number_of(value, accept_bool=True)
            if number is None:
                other_names.append(name)
            else:
                numbers[name] = number
        if other_names:
            logger.warning(
                "%s accepts only numbers, so these logs are left out: %s.",
                self.platform,
                ", ".join(other_names),
            )
        return numbers

    def _write_model(
        self,
        state: TrainerState,
        model: nn.Module | None,
        processing_class: object,
        folder: str,
    ) -> None:
        """Write the model at the end of the training.

        All processes call this, since the weights may be sharded.
        """
        if self.save_model is not None:
            self.save_model(folder)
        elif state.is_world_process_zero:
            write_model(model, processing_class, folder)

    @contextmanager
    def _failures_as_warnings(self, content: str) -> Generator[None]:
        """Turn exceptions inside the block into warnings.

        Args:
            content: what the block sends, for the message.
        """
        try:
            yield
        except Exception as error:
            # Only the first failure is a warning: a tracker that cannot be reached fails at every
            # log.
            self._failures += 1
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            logger.log(
                level,
                "%s failed to log %s (%s: %s). Training continues; further failures are only "
                "counted.",
                self.platform,
                content,
                type(error).__name__,
                error,
            )

    def _log_failures(self) -> None:
        """Log the number of failures in this training, unless there was one at most."""
        if self._failures > 1:
            logger.warning(
                "%s failed to log %d times in this training.", self.platform, self._failures
            )
        self._failures = 0


class LogsFirstCallback(LoggerCallback):
    """Tracker whose `on_log` has the logs before the model, as in transformers.

    User code may subclass it and pass the logs by position.
    """

    def on_log(  # pyright: ignore[reportIncompatibleMethodOverride] - the order of transformers
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Send the logs."""
        super().on_log(args, state, control, model=model, logs=logs, **kwargs)


class PredictionLogger(LoggerCallback):
    """Tracker that also receives the metrics of `predict`."""

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Send the metrics of a prediction."""
        if not self._initialized:
            self.setup(args, state, model, **kwargs)
        if state.is_world_process_zero:
            with self._failures_as_warnings("the metrics of a prediction"):
                self._report_prediction(state, metrics)

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        """Send the metrics of a prediction, in process 0."""


def write_model(model: Any, processing_class: Any, folder: str) -> None:
    """Write the weights and the configuration of a model, and its processor.

    Args:
        model: a model of `transformers`, PEFT or `huggingface_hub`, saved by its `save_pretrained`,
            or any other module.
        processing_class: a tokenizer or another processor, or None.
        folder: is created if it does not exist.
    """
    os.makedirs(folder, exist_ok=True)

    # The `save_pretrained` of any other library may write only a part of the weights.
    has_save_pretrained = any(
        is_instance(model, module, class_name)
        for module, class_name in _CLASSES_WITH_SAVE_PRETRAINED.items()
    )
    if has_save_pretrained:
        model.save_pretrained(folder)
    else:
        from safetensors.torch import save_model

        save_model(model, os.path.join(folder, "model.safetensors"))

    # `processing_class` may be a plain function, which has nothing to save.
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


def write_architecture(model: object, folder: str) -> None:
    """Write the text form of the model to `model_architecture.txt`."""
    path = os.path.join(folder, "model_architecture.txt")
    with open(path, "w", encoding="utf-8") as file:
        print(model, file=file)
