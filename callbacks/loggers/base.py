"""Base class of the tracker callbacks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from ...lightning_modules.common.libraries import is_instance
from ..base import TrainerCallback
from ..state import TrainerControl, TrainerState
from .availability import AVAILABLE, require
from .values import checkpoint_folder, number

if TYPE_CHECKING:
    from torch import nn

    from ..arguments import CallbackArguments

logger = logging.getLogger(__name__)

_SAVE_THEMSELVES = {
    "transformers.modeling_utils": "PreTrainedModel",
    "peft": "PeftModel",
    "huggingface_hub.hub_mixin": "PyTorchModelHubMixin",
}
"""By module the class of models whose `save_pretrained` writes all weights."""


class LoggerCallback(TrainerCallback):
    """As the callbacks of `transformers.integrations`, with one policy for failures of trackers.

    A run is opened when training begins, or at the first log outside of training, by the first
    process of all, once. A run that cannot be opened is an error, before the first step. Later
    failures (a broken network, a full disk) do not end the training: the first gives a warning, and
    the end of training their number.

    To make one, define `_available`, `_start`, `_report` and, where a run has to be closed,
    `_finish`.

    Raises:
        MissingTrackerError: an ImportError; the package is not installed.
    """

    platform: ClassVar[str] = ""
    """Its name in `report_to`."""
    advice: ClassVar[str] = ""
    """Advice for when its run cannot be opened; a sentence."""
    ends_with_training: bool = False
    """True closes the run when training ends; the next training opens another one."""
    run_variable: ClassVar[str] = ""
    """The environment variable that names a run to resume, which goes before that of a
    checkpoint.
    """
    run_id: Any = None
    """The name by which the tracker finds the run again: a resumed training takes it from the
    checkpoint.
    """
    _resumed_run: str | None = None
    save_model: Callable[[str], Any] | None = None
    """Writes the model to a folder, called by all processes; set by the Trainer."""

    def __init__(self) -> None:
        require(self._available(), self.platform, type(self).__name__)
        self._initialized = False
        self._over = False
        self._lost = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the run, for checkpoints; nothing without one."""
        return {"run": self.run_id} if self._initialized and self.run_id is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the run of a checkpoint, for the next one that is opened."""
        self._resumed_run = state_dict.get("run")

    def _run_to_resume(self, state: TrainerState) -> str | None:
        """Return the run of the checkpoint that the training resumes from, once, unless the
        environment names one.
        """
        found = self._resumed_run
        self._resumed_run = None
        return None if state.is_hyper_param_search or os.environ.get(self.run_variable) else found

    def _available(self) -> bool:
        """Return whether the package is installed."""
        return AVAILABLE[self.platform]()

    @property
    def uploads_checkpoints(self) -> bool:
        """Return whether it reads the files of checkpoints in `on_save`."""
        return False

    @property
    def reads_checkpoints(self) -> bool:
        """Return whether checkpoints have to be on disk at `on_save`: to upload them, or for an
        override.
        """
        own = type(self).on_save.__module__.startswith(__package__ or "")
        return self.uploads_checkpoints or not own

    def setup(
        self,
        args: CallbackArguments,
        state: TrainerState,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Open a run and describe it; override this to tell the tracker more."""
        if state.is_world_process_zero:
            try:
                self._start(args, state, model)
            except Exception as error:
                logger.error(
                    "report_to=%r: no run could be opened (%s). %s Without it: take the name out "
                    "of report_to.",
                    self.platform,
                    type(error).__name__,
                    self.advice,
                )
                raise
        self._initialized = True

    def on_train_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Open a run; each trial of a hyperparameter search has its own."""
        if state.is_hyper_param_search or self._over:
            self._leave(state)
        if not self._initialized:
            self.setup(args, state, model, **kwargs)

    def on_log(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Send the logs."""
        if not logs:
            return
        if not self._initialized:
            self.setup(args, state, model, **kwargs)
        if state.is_world_process_zero:
            with self._training_goes_on(f"the logs of step {state.global_step}"):
                self._report(args, state, logs)

    def on_save(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Upload the checkpoint, where that was asked for."""
        if self.uploads_checkpoints and self._initialized and state.is_world_process_zero:
            with self._training_goes_on(f"checkpoint-{state.global_step}"):
                self._upload(args, state, checkpoint_folder(args, state))

    def on_train_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Close the run where the platform has it so, and say what did not arrive."""
        if not self._initialized:
            return
        if self.ends_with_training and not self._over:
            self._over = True
            if state.is_world_process_zero:
                with self._training_goes_on("the end of the run"):
                    self._finish()
        self._warn_what_is_lost()

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Open a run, in the first process of all."""

    def _report(self, args: CallbackArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Send logs, in the first process of all."""

    def _upload(self, args: CallbackArguments, state: TrainerState, folder: str) -> None:
        """Send the checkpoint in `folder`, in the first process of all."""

    def _finish(self) -> None:
        """Close the run, in the first process of all."""

    def _leave(self, state: TrainerState) -> None:
        """Close the run of another training, if it is still open; the next event opens one."""
        if self._initialized and not self._over and state.is_world_process_zero:
            with self._training_goes_on("the end of the run"):
                self._finish()
        self._initialized = self._over = False

    def _numbers(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers in logs, and warn of everything else."""
        numbers = {name: number(value) for name, value in logs.items()}
        left_out = [name for name, value in numbers.items() if value is None]
        if left_out:
            logger.warning(
                "%s takes numbers, so these logs are left out: %s.",
                self.platform,
                ", ".join(left_out),
            )
        return {name: value for name, value in numbers.items() if value is not None}

    def _write_model(
        self, state: TrainerState, model: Any, processing_class: Any, folder: str
    ) -> None:
        """Write the model that training ends with; all processes call it, for one that is spread
        over them.
        """
        if self.save_model is not None:
            self.save_model(folder)
        elif state.is_world_process_zero:
            write_model(model, processing_class, folder)

    @contextmanager
    def _training_goes_on(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._lost += 1
            level = logging.WARNING if self._lost == 1 else logging.DEBUG
            logger.log(
                level,
                "%s failed to log %s (%s: %s). Training continues; further failures are only "
                "counted.",
                self.platform,
                what,
                type(error).__name__,
                error,
            )

    def _warn_what_is_lost(self) -> None:
        if self._lost > 1:
            logger.warning(
                "%s did not take %d things that it was sent in this training.",
                self.platform,
                self._lost,
            )
        self._lost = 0


class PredictionLogger(LoggerCallback):
    """Tracker that also receives the metrics of `predict`."""

    def on_predict(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Send the metrics of a prediction."""
        if not self._initialized:
            self.setup(args, state, model, **kwargs)
        if state.is_world_process_zero:
            with self._training_goes_on("the metrics of a prediction"):
                self._report_prediction(state, metrics)

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        """Send them, in the first process of all."""


def write_model(model: Any, processing_class: Any, folder: str) -> None:
    """Write weights, configuration and what processes the data, where no trainer is there to do it.

    Args:
        model: one of `transformers`, PEFT or `huggingface_hub`, saved by its `save_pretrained`, or
            any other module.
        processing_class: a tokenizer or another processor, or None.
        folder: is made if it does not exist.
    """
    os.makedirs(folder, exist_ok=True)
    if any(is_instance(model, module, name) for module, name in _SAVE_THEMSELVES.items()):
        model.save_pretrained(folder)
    else:
        from safetensors.torch import save_model

        save_model(model, os.path.join(folder, "model.safetensors"))
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


def write_architecture(model: Any, folder: str) -> None:
    """Write `model_architecture.txt`: the model as it prints."""
    with open(os.path.join(folder, "model_architecture.txt"), "w", encoding="utf-8") as file:
        print(model, file=file)
