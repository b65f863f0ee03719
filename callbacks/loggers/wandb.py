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
from .values import SUMMARY, config_of, description, parameter_count, rewrite_logs, without_summary

if TYPE_CHECKING:
    from torch import nn

    from ..arguments import CallbackArguments

logger = logging.getLogger(__name__)


class WandbLogModel(str, Enum):
    """As `transformers.integrations.integration_utils.WandbLogModel`: which models become
    artifacts.
    """

    CHECKPOINT = "checkpoint"
    """Every checkpoint, and the model at the end."""
    END = "end"
    """The model at the end: the best one under `load_best_model_at_end`."""
    FALSE = "false"
    """None."""

    @property
    def is_enabled(self) -> bool:
        """Return whether any model becomes an artifact."""
        return self is not WandbLogModel.FALSE

    @classmethod
    def _missing_(cls, value: object) -> WandbLogModel:
        found = [member for member in cls if member.value == str(value).strip().lower()]
        if not found:
            known = ", ".join(member.value for member in cls)
            logger.warning(
                "WANDB_LOG_MODEL=%r is none of %s: no model is kept in Weights & Biases.",
                value,
                known,
            )
        return found[0] if found else cls.FALSE


class WandbCallback(PredictionLogger):
    """As `transformers.integrations.WandbCallback`, but the arguments are not changed in a
    hyperparameter search.

    Environment variables, beside those of wandb itself (`WANDB_API_KEY`, `WANDB_MODE=offline`,
    `WANDB_DIR`, `WANDB_RUN_ID` with `WANDB_RESUME`, ...):

    - `WANDB_PROJECT`: the project, by default "huggingface".
    - `WANDB_LOG_MODEL`: "checkpoint", "end" or "false", the default; see `WandbLogModel`.
    - `WANDB_WATCH`: "gradients", "parameters", "all" or "false", the default: histograms of them,
      every `logging_steps` steps or every 100 if those are fewer.
    - `WANDB_DISABLED`: true disables wandb.

    A run that exists already is used. The run stays open when training ends, for what comes after
    it; wandb closes it at the end of the program.

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
        """With `WANDB_LOG_MODEL=checkpoint`."""
        return self._log_model is WandbLogModel.CHECKPOINT

    @property
    def run_id(self) -> str | None:
        """Return the id of the run."""
        return getattr(self._wandb.run, "id", None)

    def _upload(self, args: CallbackArguments, state: TrainerState, folder: str) -> None:
        artifact = self._artifact(
            args, {**self._summary(), "model/num_parameters": self._parameter_count()}
        )
        artifact.add_dir(folder)
        aliases = [f"epoch_{round(state.epoch, 2)}", f"checkpoint_global_step_{state.global_step}"]
        self._wandb.log_artifact(artifact, aliases=aliases)

    def on_train_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        processing_class: Any = None,
        **kwargs: object,
    ) -> None:
        """Keep the model as an artifact, where `WANDB_LOG_MODEL` enables it."""
        if self._initialized and self._log_model.is_enabled:
            with self._training_goes_on("the model"), tempfile.TemporaryDirectory() as folder:
                self._write_model(state, model, processing_class, folder)
                if state.is_world_process_zero:
                    write_architecture(model, folder)
                    artifact = self._artifact(
                        args, {**self._result(args, state), "final_model": True}
                    )
                    self._send(artifact, folder, "final_model")
        super().on_train_end(args, state, control, **kwargs)

    def _leave(self, state: TrainerState) -> None:
        if state.is_world_process_zero and self._wandb.run is not None:
            self._wandb.finish()  # also one that the script began: the next trial needs its own
        self._initialized = False

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        resumed = self._run_to_resume(state)
        if self._wandb.run is None:
            naming = _naming(args, state) | (
                {"id": resumed, "resume": os.environ.get("WANDB_RESUME") or "allow"}
                if resumed
                else {}
            )
            self._wandb.init(project=os.environ.get("WANDB_PROJECT", "huggingface"), **naming)
        self._wandb.config.update(description(args, model), allow_val_change=True)
        self._wandb.define_metric("train/global_step")
        self._wandb.define_metric("*", step_metric="train/global_step", step_sync=True)
        watched = os.environ.get("WANDB_WATCH", "false").strip().lower()
        if watched in ("all", "parameters", "gradients"):
            self._wandb.watch(model, log=watched, log_freq=max(100, state.logging_steps))
        count = parameter_count(model)
        if count is not None:
            self._wandb.config.update({"model/num_parameters": count}, allow_val_change=True)
        if self._log_model.is_enabled:
            with self._training_goes_on("the architecture of the model"):
                self._describe_model(args, model)

    def _describe_model(self, args: CallbackArguments, model: Any) -> None:
        config = config_of(model) or None
        metadata = {
            "model_config": config,
            "num_parameters": self._parameter_count(),
            "initial_model": True,
        }
        with tempfile.TemporaryDirectory() as folder:
            write_architecture(model, folder)
            self._send(self._artifact(args, metadata), folder, "base_model")

    def _report(self, args: CallbackArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        for name in SUMMARY:
            if name in logs:
                self._wandb.run.summary[name] = logs[name]
        self._wandb.log({**without_summary(logs), "train/global_step": state.global_step})

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        self._wandb.log(rewrite_logs(metrics))

    def _artifact(self, args: CallbackArguments, metadata: dict[str, Any]) -> Any:
        named = args.run_name is not None and args.run_name != args.output_dir
        name = self._wandb.run.name if named else self._wandb.run.id
        return self._wandb.Artifact(
            name=re.sub(r"[^\w.-]", "_", f"model-{name}"), type="model", metadata=metadata
        )

    def _send(self, artifact: Any, folder: str, alias: str) -> None:
        artifact.add_dir(folder)
        self._wandb.run.log_artifact(artifact, aliases=[alias])

    def _summary(self) -> dict[str, Any]:
        """Return the newest value of each metric."""
        newest = dict(self._wandb.summary)
        return {
            k: v for k, v in newest.items() if isinstance(v, (int, float)) and not k.startswith("_")
        }

    def _result(self, args: CallbackArguments, state: TrainerState) -> dict[str, Any]:
        if not args.load_best_model_at_end:
            return self._summary()
        return {
            f"eval/{args.metric_for_best_model}": state.best_metric,
            "train/total_floss": state.total_flos,
            "model/num_parameters": self._parameter_count(),
        }

    def _parameter_count(self) -> Any:
        return self._wandb.config.get("model/num_parameters")


def _naming(args: CallbackArguments, state: TrainerState) -> dict[str, Any]:
    """Return the options that name the run; the trials of a search share a group."""
    naming: dict[str, Any] = {"mode": "disabled"} if is_switched_on("WANDB_DISABLED") else {}
    if state.trial_name is not None:
        naming |= {"name": state.trial_name, "group": args.run_name or args.output_dir}
    elif args.run_name is not None:
        naming["name"] = args.run_name
    return naming
