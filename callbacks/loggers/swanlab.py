"""SwanLab."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerState
from .base import PredictionLogger
from .values import SUMMARY_NAMES, description, parameter_count, rewrite_logs, without_summary

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)


class SwanLabCallback(PredictionLogger):
    """Log to an experiment of SwanLab.

    Works like `transformers.integrations.SwanLabCallback`, but each trial of a search is an
    experiment.

    Environment variables, in addition to those of swanlab itself (`SWANLAB_API_KEY`,
    `SWANLAB_WEB_HOST`, `SWANLAB_API_HOST`, `SWANLAB_MODE` with "local", "offline", "cloud" or
    "disabled", `SWANLAB_LOG_DIR`):

    - `SWANLAB_PROJECT`: the project, by default the name of the current folder.
    - `SWANLAB_RUN_ID`: the experiment to resume.
    - `SWANLAB_RESUME`: "must", "allow" or "never"; by default "allow" with the argument
      `resume_from_checkpoint`.
    - `SWANLAB_LOG_MODEL`: logs a warning, since SwanLab does not store models.

    If an experiment is open, it is used. It stays open when training ends, for later logs; swanlab
    closes it at the end of the program.

    Raises:
        MissingTrackerError: an ImportError; swanlab is not installed.
    """

    platform = "swanlab"
    run_variable = "SWANLAB_RUN_ID"
    advice = (
        "SWANLAB_MODE=offline keeps the experiment on this machine, `swanlab login` stores a key."
    )

    def __init__(self) -> None:
        super().__init__()
        self._swanlab: Any = import_module("swanlab")

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Open an experiment, and log the settings."""
        if os.environ.get("SWANLAB_LOG_MODEL") is not None:
            logger.warning(
                "SWANLAB_LOG_MODEL has no effect: SwanLab does not store models. Unset it."
            )

        # Start an experiment, or resume the one of the checkpoint. Options in the environment
        # override it.
        resumed_id = self._run_to_resume(state)
        if not self._is_running():
            options: dict[str, Any] = {}
            if resumed_id:
                options["id"] = resumed_id
                options["resume"] = "allow"
            options.update(_experiment_options(args, state))
            with _without_variable("SWANLAB_PROJECT"):
                self._swanlab.init(**options)

        # Log the settings, and the number of parameters.
        self.run_id = getattr(self._swanlab.get_run(), "id", None)
        self._swanlab.config["FRAMEWORK"] = "lightrainer"
        self._swanlab.config.update(description(args, model))
        count = parameter_count(model)
        if count is not None:
            self._swanlab.config.update({"model_num_parameters": count})
        # Models of PEFT count their trainable parameters.
        count_trainable: Any = getattr(model, "get_nb_trainable_parameters", None)
        if count_trainable is not None:
            trainable, total = count_trainable()
            self._swanlab.config.update(
                {"peft_model_trainable_params": trainable, "peft_model_all_param": total}
            )

    def _is_running(self) -> bool:
        """Return whether an experiment is open.

        If none is open, `get_run` returns None in older versions of swanlab, and raises in newer
        ones.
        """
        try:
            return self._swanlab.get_run() is not None
        except RuntimeError:
            return False

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Log the values, and the summary of the training as single values."""
        for name in SUMMARY_NAMES:
            if name in logs:
                self._swanlab.log({f"single_value/{name}": logs[name]}, step=state.global_step)
        values = {**without_summary(logs), "train/global_step": state.global_step}
        self._swanlab.log(values, step=state.global_step)

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        """Log the metrics of a prediction."""
        self._swanlab.log(rewrite_logs(metrics))

    def _close_earlier_run(self, state: TrainerState) -> None:
        """Close the open experiment."""
        # Close an experiment that the script has started, too: the next trial needs its own.
        if state.is_world_process_zero and self._is_running():
            self._swanlab.finish()
        self._initialized = False


@contextmanager
def _without_variable(name: str) -> Generator[None]:
    """Unset a variable in the block, since newer versions of swanlab fail if it is set."""
    value = os.environ.pop(name, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value


def _experiment_options(args: TrainingArguments, state: TrainerState) -> dict[str, object]:
    """Return project, name, id and resume mode of the experiment."""
    options: dict[str, Any] = {"project": os.environ.get("SWANLAB_PROJECT")}

    name_parts = [part for part in (args.run_name, state.trial_name) if part]
    if name_parts:
        options["experiment_name"] = "-".join(name_parts)

    if os.environ.get("SWANLAB_RUN_ID"):
        options["id"] = os.environ["SWANLAB_RUN_ID"]

    if os.environ.get("SWANLAB_RESUME"):
        options["resume"] = os.environ["SWANLAB_RESUME"]
    elif args.resume_from_checkpoint:
        options["resume"] = "allow"
    return options
