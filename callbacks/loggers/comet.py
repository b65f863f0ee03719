"""Comet."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

from ..state import TrainerControl, TrainerState
from .availability import is_switched_on
from .base import PredictionLogger
from .values import config_of, rewrite_logs

logger = logging.getLogger(__name__)

_MODES = ("get", "get_or_create", "create")


class CometCallback(PredictionLogger):
    """As `transformers.integrations.CometCallback`, through the public methods of an experiment.

    Environment variables, beside those of comet_ml itself (`COMET_API_KEY`, `COMET_WORKSPACE`,
    `COMET_OFFLINE_DIRECTORY`, ...):

    - `COMET_MODE`: "get_or_create", the default, "create" or "get", the latter two with `COMET_EXPERIMENT_KEY`; with
      anything else nothing is logged.
    - `COMET_START_ONLINE`: 0 or false keeps the experiment in an archive on this machine.
    - `COMET_PROJECT_NAME`: the project.
    - `COMET_LOG_ASSETS`: 1 or true uploads the output folder when training ends.

    The experiment stays open when training ends, for what comes after it; comet_ml closes it at the end of the
    program. Each trial of a search is an experiment of its own.

    Raises:
        MissingTrackerError: an ImportError; comet_ml 3.44 or newer is not installed.
    """

    platform = "comet_ml"
    advice = "COMET_START_ONLINE=0 keeps the experiment on this machine, `comet login` stores a key."

    def __init__(self) -> None:
        super().__init__()
        self._experiment: Any = None

    @property
    def run_id(self) -> str | None:
        """The key of the experiment, to be set as `COMET_EXPERIMENT_KEY` when it is resumed."""
        return None if self._experiment is None else self._experiment.get_key()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Upload the output folder with `COMET_LOG_ASSETS`."""
        if self._experiment is not None and state.is_world_process_zero and is_switched_on("COMET_LOG_ASSETS"):
            with self._training_goes_on("the output folder"):
                self._experiment.log_asset_folder(
                    str(args.output_dir), recursive=True, log_file_name=True, step=state.global_step
                )
        super().on_train_end(args, state, control, **kwargs)

    def _start(self, args: Any, state: TrainerState, model: Any) -> None:
        mode = os.environ.get("COMET_MODE", "").lower() or None
        if mode is not None and mode not in _MODES:
            logger.warning("COMET_MODE=%r is none of %s: nothing is logged to Comet.", mode, ", ".join(_MODES))
            return
        if state.is_hyper_param_search:
            mode = "create"
        comet_ml = import_module("comet_ml")
        named = comet_ml.ExperimentConfig(name=args.run_name)
        self._experiment = comet_ml.start(online=None, mode=mode, experiment_config=named)
        self._experiment.set_model_graph(model)
        self._experiment.log_parameters(_parameters(args, model), nested_support=True)
        if state.is_hyper_param_search:
            self._experiment.log_optimization(optimization_id=state.trial_name, parameters=state.trial_params)

    def _report(self, args: Any, state: TrainerState, logs: dict[str, Any]) -> None:
        self._report_prediction(state, logs)

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        if self._experiment is not None:
            self._experiment.log_metrics(rewrite_logs(metrics), step=state.global_step, epoch=state.epoch)

    def _finish(self) -> None:
        if self._experiment is not None:
            self._experiment.end()
            self._experiment = None


def _parameters(args: Any, model: Any) -> dict[str, Any]:
    parameters = {
        "args": args.to_dict(),
        "config": config_of(model),
        "peft_config": getattr(model, "peft_config", None),
    }
    return {name: value for name, value in parameters.items() if value}
