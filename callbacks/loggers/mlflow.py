"""MLflow, and DagsHub, which has an MLflow server for each repository."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..state import TrainerControl, TrainerState
from .availability import is_switched_on
from .base import LogsFirstCallback
from .values import config_of, flattened

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)


class MLflowCallback(LogsFirstCallback):
    """Log to a run of MLflow.

    Works like `transformers.integrations.MLflowCallback`, but every training and trial has its own
    run.

    If a run is active, it is used, and left open. Metrics keep the names of the logs (`loss`,
    `eval_loss`). An evaluation after the training adds its metrics to the run of the training.
    Needs mlflow 3.9 or newer, or `mlflow-skinny`.

    Environment variables:

    - `MLFLOW_TRACKING_URI`: a folder, a database or a server.
    - `MLFLOW_EXPERIMENT_NAME`: the experiment, created if it does not exist; by default "Default".
    - `MLFLOW_RUN_ID`: resume this run.
    - `MLFLOW_NESTED_RUN`: 1 or true opens a run inside the active one.
    - `MLFLOW_TAGS`: tags of the run, a dict as JSON.
    - `MLFLOW_FLATTEN_PARAMS`: 1 or true logs nested arguments one by one.
    - `MLFLOW_MAX_LOG_PARAMS`: the maximum number of parameters to log.
    - `HF_MLFLOW_LOG_ARTIFACTS`: 1 or true copies every checkpoint to the artifacts of the run.
    - `DISABLE_MLFLOW_INTEGRATION`: true has the same effect as if MLflow were not installed.

    Raises:
        MissingTrackerError: an ImportError; mlflow is not installed, or disabled by the
            environment.
    """

    platform = "mlflow"
    run_variable = "MLFLOW_RUN_ID"
    advice = "MLFLOW_TRACKING_URI=sqlite:///mlflow.db keeps runs on this machine."
    ends_with_training = True

    def __init__(self) -> None:
        # Set first: `__del__` reads it even if the package is missing.
        self._auto_end_run = False
        self.run_id: str | None = None
        super().__init__()
        self._ml_flow: Any = import_module("mlflow")
        validation = import_module("mlflow.utils.validation")
        self._max_value_length: int = validation.MAX_PARAM_VAL_LENGTH
        self._max_batch_size: int = validation.MAX_PARAMS_TAGS_PER_BATCH

    @property
    def uploads_checkpoints(self) -> bool:
        """Whether checkpoints are uploaded, by `HF_MLFLOW_LOG_ARTIFACTS`."""
        return is_switched_on("HF_MLFLOW_LOG_ARTIFACTS")

    def _upload(self, args: TrainingArguments, state: TrainerState, folder: str) -> None:
        """Copy the checkpoint to the artifacts of the run."""
        self._ml_flow.log_artifacts(
            folder, artifact_path=os.path.basename(folder), run_id=self.run_id
        )

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Open a run, and log the parameters and the tags."""
        self._auto_end_run = False
        self._enter_run(args, state)
        self.run_id = self._ml_flow.active_run().info.run_id

        params = {**config_of(model), **args.to_dict()}
        if is_switched_on("MLFLOW_FLATTEN_PARAMS"):
            params = flattened(params)
        with self._failures_as_warnings("the parameters"):
            self._log_params(params)

        tags = os.environ.get("MLFLOW_TAGS")
        if tags:
            self._ml_flow.set_tags(json.loads(tags))

    def _enter_run(self, args: TrainingArguments, state: TrainerState) -> None:
        """Use the active run, resume the run of a checkpoint, or start a new run."""
        # A URI that the script has set overrides the environment.
        mlflow = self._ml_flow
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri and not mlflow.is_tracking_uri_set():
            mlflow.set_tracking_uri(uri)

        # An active run is used, unless the environment asks for another one.
        is_nested = is_switched_on("MLFLOW_NESTED_RUN")
        needs_own_run = is_nested or bool(os.environ.get("MLFLOW_RUN_ID"))
        resumed_run = self._run_to_resume(state)
        if mlflow.active_run() is not None and not needs_own_run:
            return

        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if experiment:
            mlflow.set_experiment(experiment)

        # Trials of a search are named after the run and the trial.
        run_name = args.run_name
        if state.trial_name:
            run_name = f"{run_name}-{state.trial_name}" if run_name else state.trial_name
        options = {"run_name": run_name, "nested": is_nested}
        if resumed_run and self._run_exists(resumed_run):
            options["run_id"] = resumed_run
        mlflow.start_run(**options)
        self._auto_end_run = True

    def _run_exists(self, run_id: str) -> bool:
        """Return whether the server has a run; logs a warning if it has not."""
        runs = self._ml_flow.search_runs(
            filter_string=f"attributes.run_id = '{run_id}'", output_format="list"
        )
        if runs:
            return True
        logger.warning(
            "MLflow has no run %s, which is in the checkpoint: starting a new run.", run_id
        )
        return False

    def _log_params(self, params: dict[str, Any]) -> None:
        """Log parameters, except those that MLflow would reject."""
        names: list[str] = []
        too_long: list[str] = []
        for name, value in params.items():
            if len(str(value)) > self._max_value_length:
                too_long.append(name)
            else:
                names.append(name)
        if too_long:
            logger.warning(
                "MLflow accepts values of up to %d characters, so these parameters are left out: "
                "%s. Try MLFLOW_FLATTEN_PARAMS=1.",
                self._max_value_length,
                ", ".join(too_long),
            )

        limit = os.environ.get("MLFLOW_MAX_LOG_PARAMS", "")
        if limit.isdigit():
            names = names[: int(limit)]

        # MLflow raises if a parameter is changed, so those of a resumed run are not sent again.
        logged = self._ml_flow.active_run().data.params
        names = [name for name in names if name not in logged]
        for start in range(0, len(names), self._max_batch_size):
            batch = names[start : start + self._max_batch_size]
            self._ml_flow.log_params({name: params[name] for name in batch}, synchronous=False)

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Log numbers without waiting for the server."""
        # Replace the characters that MLflow does not accept in names.
        metrics: dict[str, float] = {}
        for name, number in self._numbers(logs).items():
            valid_name = re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
            metrics[valid_name] = number
        self._ml_flow.log_metrics(
            metrics=metrics, step=state.global_step, synchronous=False, run_id=self.run_id
        )

    def _finish(self) -> None:
        """Wait for metrics that are being sent, and end the run."""
        self._ml_flow.flush_async_logging()
        self._end_own_run("FINISHED")

    def _end_own_run(self, status: str) -> None:
        """End the active run, if this callback has started it."""
        active = self._ml_flow.active_run() if self._auto_end_run else None
        if active is not None and active.info.run_id == self.run_id:
            self._ml_flow.end_run(status)

    def __del__(self) -> None:
        """End the run of a training that failed: otherwise MLflow refuses to start another one."""
        if self._auto_end_run and not self._has_finished and not sys.is_finalizing():
            self._end_own_run("FAILED")


class DagsHubCallback(MLflowCallback):
    """Log to a run of MLflow on DagsHub, and upload the output folder there.

    Works like `transformers.integrations.DagsHubCallback`, but its run is closed when training
    ends.

    Environment variables, in addition to those of `MLflowCallback`:

    - `MLFLOW_TRACKING_URI`, required: `https://dagshub.com/<owner>/<repository>.mlflow`, which
      `dagshub.init()` sets.
    - `HF_DAGSHUB_LOG_ARTIFACTS`: 1 or true uploads the output folder when training ends, with the
      training data.
    - `BRANCH`: the branch of these uploads, by default "main".

    Raises:
        MissingTrackerError: an ImportError; dagshub or mlflow is not installed.
    """

    platform = "dagshub"
    advice = "`dagshub.init()` sets MLFLOW_TRACKING_URI."

    def __init__(self) -> None:
        super().__init__()
        self.Repo: Any = import_module("dagshub.upload").Repo
        self.repo: Any = None

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        train_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Close the run; with `HF_DAGSHUB_LOG_ARTIFACTS` upload the output folder."""
        is_upload_enabled = self._initialized and is_switched_on("HF_DAGSHUB_LOG_ARTIFACTS")
        if is_upload_enabled and state.is_world_process_zero:
            with self._failures_as_warnings("the output folder"):
                dataset = getattr(train_dataloader, "dataset", None)
                if dataset is not None:
                    import torch

                    torch.save(dataset, os.path.join(str(args.output_dir), "dataset.pt"))
                self.repo.directory("artifacts").add_dir(str(args.output_dir))
        super().on_train_end(args, state, control, **kwargs)

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Open the repository on DagsHub, and a run of MLflow."""
        owner, name = _repository(os.environ.get("MLFLOW_TRACKING_URI"))
        self.repo = self.Repo(owner=owner, name=name, branch=os.environ.get("BRANCH") or "main")
        super()._start(args, state, model)


def _repository(uri: str | None) -> tuple[str, str]:
    """Return owner and name of the repository of a tracking URI."""
    parts = urlsplit(uri or "").path.strip("/").split("/")
    if len(parts) < 2:
        raise RuntimeError(
            f"report_to='dagshub' cannot use MLFLOW_TRACKING_URI={uri!r}. It must be "
            "https://dagshub.com/<owner>/<repository>.mlflow, which `dagshub.init()` sets."
        )
    owner = parts[-2]
    repository = parts[-1].partition(".")[0]
    return owner, repository
