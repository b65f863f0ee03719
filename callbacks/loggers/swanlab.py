"""SwanLab."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerState
from .base import PredictionLogger
from .values import SUMMARY, description, parameter_count, rewrite_logs, without_summary

if TYPE_CHECKING:
    from torch import nn

    from ..arguments import CallbackArguments

logger = logging.getLogger(__name__)


class SwanLabCallback(PredictionLogger):
    """As `transformers.integrations.SwanLabCallback`, but each trial of a hyperparameter search is
    an experiment.

    Environment variables, beside those of swanlab itself (`SWANLAB_API_KEY`, `SWANLAB_WEB_HOST`,
    `SWANLAB_API_HOST`, `SWANLAB_MODE` with "local", "offline", "cloud" or "disabled",
    `SWANLAB_LOG_DIR`):

    - `SWANLAB_PROJECT`: the project, by default the name of the working folder.
    - `SWANLAB_RUN_ID`: the experiment to resume.
    - `SWANLAB_RESUME`: "must", "allow" or "never"; by default "allow" with the argument
      `resume_from_checkpoint`.
    - `SWANLAB_LOG_MODEL`: SwanLab keeps no models; setting it is warned of.

    An experiment that exists already is used. It stays open when training ends, for what comes
    after it; swanlab closes it at the end of the program.

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

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        if os.environ.get("SWANLAB_LOG_MODEL") is not None:
            logger.warning("SWANLAB_LOG_MODEL is set, but SwanLab does not keep models.")
        resumed = self._run_to_resume(state)
        if not self._is_running():
            naming = ({"id": resumed, "resume": "allow"} if resumed else {}) | _naming(args, state)
            with _without_variable("SWANLAB_PROJECT"):
                self._swanlab.init(**naming)
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
        """Return whether there is a run; without one older versions return None, newer ones
        raise.
        """
        try:
            return self._swanlab.get_run() is not None
        except RuntimeError:
            return False

    def _report(self, args: CallbackArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        for name in SUMMARY:
            if name in logs:
                self._swanlab.log({f"single_value/{name}": logs[name]}, step=state.global_step)
        values = {**without_summary(logs), "train/global_step": state.global_step}
        self._swanlab.log(values, step=state.global_step)

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        self._swanlab.log(rewrite_logs(metrics))

    def _leave(self, state: TrainerState) -> None:
        if state.is_world_process_zero and self._is_running():
            self._swanlab.finish()
        self._initialized = False


@contextmanager
def _without_variable(name: str) -> Iterator[None]:
    """Unset a variable in the block: newer versions of swanlab read something else from it, and
    fail.
    """
    value = os.environ.pop(name, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value


def _naming(args: CallbackArguments, state: TrainerState) -> dict[str, Any]:
    """Return project, name, id and resume mode of the experiment."""
    naming: dict[str, Any] = {"project": os.environ.get("SWANLAB_PROJECT")}
    name = "-".join(filter(None, (args.run_name, state.trial_name)))
    if name:
        naming["experiment_name"] = name
    if os.environ.get("SWANLAB_RUN_ID"):
        naming["id"] = os.environ["SWANLAB_RUN_ID"]
    resume = os.environ.get("SWANLAB_RESUME") or ("allow" if args.resume_from_checkpoint else None)
    return naming if resume is None else {**naming, "resume": resume}
