"""Comet."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .availability import is_switched_on
from .base import PredictionLogger
from .values import config_of, rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)

_MODES = ("get", "get_or_create", "create")
"""Values of `COMET_MODE`."""


class CometCallback(PredictionLogger):
    """Log to an experiment of Comet.

    Works like `transformers.integrations.CometCallback`, through the public methods of an
    experiment.

    Environment variables, in addition to those of comet_ml itself (`COMET_API_KEY`,
    `COMET_WORKSPACE`, `COMET_OFFLINE_DIRECTORY`, ...):

    - `COMET_MODE`: "get_or_create" (the default), "create" or "get"; the latter two need
      `COMET_EXPERIMENT_KEY`. With any other value nothing is logged.
    - `COMET_START_ONLINE`: 0 or false writes the experiment to an archive on this machine.
    - `COMET_PROJECT_NAME`: the project.
    - `COMET_LOG_ASSETS`: 1 or true uploads the output folder when training ends.

    The experiment stays open when training ends, for later logs; comet_ml closes it at the end of
    the program. Each trial of a search is a separate experiment.

    Raises:
        MissingTrackerError: an ImportError; comet_ml 3.44 or newer is not installed.
    """

    platform = "comet_ml"
    run_variable = "COMET_EXPERIMENT_KEY"
    advice = (
        "COMET_START_ONLINE=0 keeps the experiment on this machine, `comet login` stores a key."
    )

    def __init__(self) -> None:
        super().__init__()
        self._experiment: Any = None  # Any, because comet_ml has no types

    @property
    def run_id(self) -> str | None:
        """Return the key of the experiment."""
        return None if self._experiment is None else self._experiment.get_key()

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Upload the output folder with `COMET_LOG_ASSETS`."""
        experiment = self._experiment
        is_upload_enabled = is_switched_on("COMET_LOG_ASSETS") and state.is_world_process_zero
        if experiment is not None and is_upload_enabled:
            with self._failures_as_warnings("the output folder"):
                experiment.log_asset_folder(
                    str(args.output_dir),
                    recursive=True,
                    log_file_name=True,
                    step=state.global_step,
                )
        super().on_train_end(args, state, control, **kwargs)

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Start or resume an experiment, and log the model and the settings."""
        mode = os.environ.get("COMET_MODE", "").lower() or None
        if mode is not None and mode not in _MODES:
            logger.warning(
                "COMET_MODE=%r is not one of %s: nothing is logged to Comet.",
                mode,
                ", ".join(_MODES),
            )
            return
        if state.is_hyper_param_search:
            mode = "create"

        # Start an experiment, or resume the one of the checkpoint.
        comet_ml = import_module("comet_ml")
        options = {
            "online": None,
            "mode": mode,
            "experiment_config": comet_ml.ExperimentConfig(name=args.run_name),
        }
        resumed_key = self._run_to_resume(state)
        if resumed_key and mode != "create":
            options["experiment_key"] = resumed_key
        self._experiment = comet_ml.start(**options)

        # Log the model and the settings.
        self._experiment.set_model_graph(model)
        settings = {
            "args": args.to_dict(),
            "config": config_of(model),
            "peft_config": getattr(model, "peft_config", None),
        }
        parameters = {name: value for name, value in settings.items() if value}
        self._experiment.log_parameters(parameters, nested_support=True)
        if state.is_hyper_param_search:
            self._experiment.log_optimization(
                optimization_id=state.trial_name, parameters=state.trial_params
            )

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Log metrics with the names that trackers show."""
        self._report_prediction(state, logs)

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        """Log metrics, unless `COMET_MODE` has disabled Comet."""
        if self._experiment is not None:
            self._experiment.log_metrics(
                rewrite_logs(metrics), step=state.global_step, epoch=state.epoch
            )

    def _finish(self) -> None:
        """End the experiment."""
        if self._experiment is not None:
            self._experiment.end()
            self._experiment = None
