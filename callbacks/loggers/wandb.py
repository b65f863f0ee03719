"""Weights & Biases."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .availability import is_switched_on
from .base import PredictionLogger, write_architecture
from .values import (
    SUMMARY_NAMES,
    config_of,
    description,
    parameter_count,
    rewrite_logs,
    without_summary,
)

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)


class WandbLogModel(str, Enum):
    """Which models are uploaded to wandb: the values of `WANDB_LOG_MODEL`.

    Works like `transformers.integrations.integration_utils.WandbLogModel`.
    """

    CHECKPOINT = "checkpoint"
    """Every checkpoint, and the model at the end."""
    END = "end"
    """The model at the end: the best one with `load_best_model_at_end`."""
    FALSE = "false"
    """No model."""

    @property
    def is_enabled(self) -> bool:
        """Whether any model is uploaded."""
        return self is not WandbLogModel.FALSE

    @classmethod
    def _missing_(cls, value: object) -> WandbLogModel:
        """Return the member for a value in another case; FALSE, with a warning, for others."""
        for member in cls:
            if member.value == str(value).strip().lower():
                return member
        logger.warning(
            "WANDB_LOG_MODEL=%r is not one of %s: no model is uploaded to Weights & Biases.",
            value,
            ", ".join(member.value for member in cls),
        )
        return cls.FALSE


class WandbCallback(PredictionLogger):
    """Log to a run of Weights and Biases.

    Works like `transformers.integrations.WandbCallback`, but searches leave the arguments
    unchanged.

    Environment variables, in addition to those of wandb itself (`WANDB_API_KEY`,
    `WANDB_MODE=offline`, `WANDB_DIR`, `WANDB_RUN_ID` with `WANDB_RESUME`, ...):

    - `WANDB_PROJECT`: the project, by default "huggingface".
    - `WANDB_LOG_MODEL`: "checkpoint", "end" or "false", the default; see `WandbLogModel`.
    - `WANDB_WATCH`: "gradients", "parameters" or "all" logs histograms of them every
      `logging_steps` steps, but not more often than every 100; by default "false".
    - `WANDB_DISABLED`: true disables wandb.

    If a run is open, it is used. The run stays open when training ends, for later logs; wandb
    closes it at the end of the program.

    Raises:
        MissingTrackerError: an ImportError; wandb is not installed.
    """

    platform = "wandb"
    run_variable = "WANDB_RUN_ID"
    advice = "WANDB_MODE=offline keeps the run on this machine, `wandb login` stores a key."

    def __init__(self) -> None:
        super().__init__()
        self._wandb: Any = import_module("wandb")
        self._log_model = WandbLogModel(os.environ.get("WANDB_LOG_MODEL", "false"))

    @property
    def uploads_checkpoints(self) -> bool:
        """Whether checkpoints are uploaded: with `WANDB_LOG_MODEL=checkpoint`."""
        return self._log_model is WandbLogModel.CHECKPOINT

    @property
    def run_id(self) -> str | None:
        """The id of the run; None without a run."""
        return getattr(self._wandb.run, "id", None)

    def _upload(self, args: TrainingArguments, state: TrainerState, folder: str) -> None:
        """Upload the checkpoint as an artifact."""
        metadata = {**self._summary(), "model/num_parameters": self._parameter_count()}
        artifact = self._create_artifact(args, metadata)
        artifact.add_dir(folder)
        aliases = [f"epoch_{round(state.epoch, 2)}", f"checkpoint_global_step_{state.global_step}"]
        self._wandb.log_artifact(artifact, aliases=aliases)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        processing_class: Any = None,
        **kwargs: object,
    ) -> None:
        """Upload the model as an artifact, if `WANDB_LOG_MODEL` enables it."""
        if self._initialized and self._log_model.is_enabled:
            with self._failures_as_warnings("the model"), tempfile.TemporaryDirectory() as folder:
                self._write_model(state, model, processing_class, folder)
                if state.is_world_process_zero:
                    write_architecture(model, folder)
                    metadata = {**self._final_metadata(args, state), "final_model": True}
                    artifact = self._create_artifact(args, metadata)
                    self._upload_artifact(artifact, folder, "final_model")
        super().on_train_end(args, state, control, **kwargs)

    def _close_earlier_run(self, state: TrainerState) -> None:
        """Close the open run."""
        # Close a run that the script has started, too: the next trial needs its own.
        if state.is_world_process_zero and self._wandb.run is not None:
            self._wandb.finish()
        self._initialized = False

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Open a run, and log the settings and, if enabled, the model."""
        # Start a run, or resume the one of the checkpoint.
        resumed_id = self._run_to_resume(state)
        if self._wandb.run is None:
            options = _run_options(args, state)
            if resumed_id:
                options["id"] = resumed_id
                options["resume"] = os.environ.get("WANDB_RESUME") or "allow"
            self._wandb.init(project=os.environ.get("WANDB_PROJECT", "huggingface"), **options)

        # Log the settings, and define the step of all metrics.
        self._wandb.config.update(description(args, model), allow_val_change=True)
        self._wandb.define_metric("train/global_step")
        self._wandb.define_metric("*", step_metric="train/global_step", step_sync=True)
        count = parameter_count(model)
        if count is not None:
            self._wandb.config.update({"model/num_parameters": count}, allow_val_change=True)

        # Log the weights or gradients, and the architecture of the model.
        watched = os.environ.get("WANDB_WATCH", "false").strip().lower()
        if watched in ("all", "parameters", "gradients"):
            self._wandb.watch(model, log=watched, log_freq=max(100, state.logging_steps))
        if self._log_model.is_enabled:
            with self._failures_as_warnings("the architecture of the model"):
                self._upload_architecture(args, model)

    def _upload_architecture(self, args: TrainingArguments, model: Any) -> None:
        """Upload the text form of the model as an artifact."""
        metadata = {
            "model_config": config_of(model) or None,
            "num_parameters": self._parameter_count(),
            "initial_model": True,
        }
        with tempfile.TemporaryDirectory() as folder:
            write_architecture(model, folder)
            artifact = self._create_artifact(args, metadata)
            self._upload_artifact(artifact, folder, "base_model")

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Log the values, and write the summary of the training into that of the run."""
        for name in SUMMARY_NAMES:
            if name in logs:
                self._wandb.run.summary[name] = logs[name]
        self._wandb.log({**without_summary(logs), "train/global_step": state.global_step})

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        """Log the metrics of a prediction."""
        self._wandb.log(rewrite_logs(metrics))

    def _create_artifact(self, args: TrainingArguments, metadata: dict[str, Any]) -> Any:
        """Return an artifact with the name of the run, or with its id if no name was chosen."""
        run = self._wandb.run
        is_named = args.run_name is not None and args.run_name != args.output_dir
        name = run.name if is_named else run.id
        valid_name = re.sub(r"[^\w.-]", "_", f"model-{name}")
        return self._wandb.Artifact(name=valid_name, type="model", metadata=metadata)

    def _upload_artifact(self, artifact: Any, folder: str, alias: str) -> None:
        """Add a folder to an artifact, and upload it."""
        artifact.add_dir(folder)
        self._wandb.run.log_artifact(artifact, aliases=[alias])

    def _summary(self) -> dict[str, Any]:
        """Return the newest value of each metric."""
        summary: dict[str, Any] = {}
        for name, value in dict(self._wandb.summary).items():
            # The names of wandb's own values begin with an underscore.
            is_metric = not name.startswith("_")
            if is_metric and isinstance(value, (int, float)):
                summary[name] = value
        return summary

    def _final_metadata(self, args: TrainingArguments, state: TrainerState) -> dict[str, object]:
        """Return the metadata of the final model: the newest metrics, or the best one."""
        if not args.load_best_model_at_end:
            return self._summary()
        return {
            f"eval/{args.metric_for_best_model}": state.best_metric,
            "train/total_floss": state.total_flos,
            "model/num_parameters": self._parameter_count(),
        }

    def _parameter_count(self) -> Any:
        """Return the number of parameters that was logged at the start."""
        return self._wandb.config.get("model/num_parameters")


def _run_options(args: TrainingArguments, state: TrainerState) -> dict[str, object]:
    """Return mode, name and group of the run; the trials of a search share a group."""
    options: dict[str, Any] = {}
    if is_switched_on("WANDB_DISABLED"):
        options["mode"] = "disabled"
    if state.trial_name is not None:
        options["name"] = state.trial_name
        options["group"] = args.run_name or args.output_dir
    elif args.run_name is not None:
        options["name"] = args.run_name
    return options
