"""MLflow, and DagsHub, which keeps a server of it for each repository."""

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
from .base import LoggerCallback
from .values import config_of, flattened

if TYPE_CHECKING:
    from torch import nn

    from ..arguments import CallbackArguments

logger = logging.getLogger(__name__)


class MLflowCallback(LoggerCallback):
    """As `transformers.integrations.MLflowCallback`, but every training and every trial of a search
    has its own run.

    A run that is active already is used, and left open. Metrics keep the names of the logs (`loss`,
    `eval_loss`); those of an evaluation after the training go to its run. Needs mlflow 3.9 or
    newer; `mlflow-skinny` will do.

    Environment variables:

    - `MLFLOW_TRACKING_URI`: a folder, a database or a server.
    - `MLFLOW_EXPERIMENT_NAME`: the experiment, made if it does not exist; by default "Default".
    - `MLFLOW_RUN_ID`: resume this run.
    - `MLFLOW_NESTED_RUN`: 1 or true opens a run inside of the active one.
    - `MLFLOW_TAGS`: tags of the run, a dict as JSON.
    - `MLFLOW_FLATTEN_PARAMS`: 1 or true logs nested arguments one by one.
    - `MLFLOW_MAX_LOG_PARAMS`: log no more than this many parameters.
    - `HF_MLFLOW_LOG_ARTIFACTS`: 1 or true copies every checkpoint to the artifacts of the run.
    - `DISABLE_MLFLOW_INTEGRATION`: true takes MLflow for not installed.

    Raises:
        MissingTrackerError: an ImportError; mlflow is not installed, or turned off by the
            environment.
    """

    platform = "mlflow"
    run_variable = "MLFLOW_RUN_ID"
    advice = "MLFLOW_TRACKING_URI=sqlite:///mlflow.db keeps runs on this machine."
    ends_with_training = True

    def __init__(self) -> None:
        self._auto_end_run = False
        self.run_id: str | None = None
        super().__init__()
        self._ml_flow: Any = import_module("mlflow")
        validation = import_module("mlflow.utils.validation")
        self._longest_value: int = validation.MAX_PARAM_VAL_LENGTH
        self._most_params: int = validation.MAX_PARAMS_TAGS_PER_BATCH

    @property
    def uploads_checkpoints(self) -> bool:
        """With `HF_MLFLOW_LOG_ARTIFACTS`."""
        return is_switched_on("HF_MLFLOW_LOG_ARTIFACTS")

    def _upload(self, args: CallbackArguments, state: TrainerState, folder: str) -> None:
        self._ml_flow.log_artifacts(
            folder, artifact_path=os.path.basename(folder), run_id=self.run_id
        )

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        self._auto_end_run = False
        self._enter_run(args, state)
        self.run_id = self._ml_flow.active_run().info.run_id
        params = {**config_of(model), **args.to_dict()}
        with self._training_goes_on("the parameters"):
            self._log_params(
                flattened(params) if is_switched_on("MLFLOW_FLATTEN_PARAMS") else params
            )
        tags = os.environ.get("MLFLOW_TAGS")
        if tags:
            self._ml_flow.set_tags(json.loads(tags))

    def _enter_run(self, args: CallbackArguments, state: TrainerState) -> None:
        mlflow = self._ml_flow
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri and not mlflow.is_tracking_uri_set():
            mlflow.set_tracking_uri(uri)
        nested = is_switched_on("MLFLOW_NESTED_RUN")
        resumed = self._run_to_resume(state)
        if mlflow.active_run() is not None and not nested and not os.environ.get("MLFLOW_RUN_ID"):
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if experiment:
            mlflow.set_experiment(experiment)
        trial = (
            None
            if state.trial_name is None
            else "-".join(filter(None, (args.run_name, state.trial_name)))
        )
        if resumed and not mlflow.search_runs(
            filter_string=f"attributes.run_id = '{resumed}'", output_format="list"
        ):
            logger.warning(
                "MLflow has no run %s, which the checkpoint names: the training gets another one.",
                resumed,
            )
            resumed = None
        known = {"run_id": resumed} if resumed else {}
        mlflow.start_run(run_name=trial or args.run_name, nested=nested, **known)
        self._auto_end_run = True

    def _log_params(self, params: dict[str, Any]) -> None:
        too_long = [name for name, value in params.items() if len(str(value)) > self._longest_value]
        if too_long:
            logger.warning(
                "MLflow takes up to %d characters, so parameters are left out: %s. Try "
                "MLFLOW_FLATTEN_PARAMS=1.",
                self._longest_value,
                ", ".join(too_long),
            )
        kept = [(name, value) for name, value in params.items() if name not in too_long]
        most = os.environ.get("MLFLOW_MAX_LOG_PARAMS", "")
        if most.isdigit():
            kept = kept[: int(most)]
        known = self._ml_flow.active_run().data.params  # a run keeps the values that it has
        kept = [(name, value) for name, value in kept if name not in known]
        for start in range(0, len(kept), self._most_params):
            self._ml_flow.log_params(
                dict(kept[start : start + self._most_params]), synchronous=False
            )

    def _report(self, args: CallbackArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        metrics = {
            re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII): it
            for name, it in self._numbers(logs).items()
        }
        self._ml_flow.log_metrics(
            metrics=metrics, step=state.global_step, synchronous=False, run_id=self.run_id
        )

    def _finish(self) -> None:
        self._ml_flow.flush_async_logging()
        self._end_own_run("FINISHED")

    def _end_own_run(self, status: str) -> None:
        active = self._ml_flow.active_run() if self._auto_end_run else None
        if active is not None and active.info.run_id == self.run_id:
            self._ml_flow.end_run(status)

    def __del__(self) -> None:
        """End the run of a training that an exception ended: MLflow begins no other one before."""
        if self._auto_end_run and not self._over and not sys.is_finalizing():
            self._end_own_run("FAILED")


class DagsHubCallback(MLflowCallback):
    """As `transformers.integrations.DagsHubCallback`, but its run is closed when training ends, as
    that of MLflow is.

    Environment variables, beside those of `MLflowCallback`:

    - `MLFLOW_TRACKING_URI`: `https://dagshub.com/<owner>/<repository>.mlflow`, which
      `dagshub.init()` sets. Necessary.
    - `HF_DAGSHUB_LOG_ARTIFACTS`: 1 or true uploads the output folder when training ends, and the
      training data with it.
    - `BRANCH`: the branch that it is uploaded to, by default "main".

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
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Close the run; with `HF_DAGSHUB_LOG_ARTIFACTS` upload the output folder."""
        if (
            self._initialized
            and state.is_world_process_zero
            and is_switched_on("HF_DAGSHUB_LOG_ARTIFACTS")
        ):
            with self._training_goes_on("the output folder"):
                dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
                if dataset is not None:
                    import torch

                    torch.save(dataset, os.path.join(args.output_dir, "dataset.pt"))
                self.repo.directory("artifacts").add_dir(str(args.output_dir))
        super().on_train_end(args, state, control, **kwargs)

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        owner, name = _repository(os.environ.get("MLFLOW_TRACKING_URI"))
        self.repo = self.Repo(owner=owner, name=name, branch=os.environ.get("BRANCH") or "main")
        super()._start(args, state, model)


def _repository(uri: str | None) -> tuple[str, str]:
    """Return owner and name of the repository of a tracking URI."""
    parts = urlsplit(uri or "").path.strip("/").split("/")
    if len(parts) < 2:
        raise RuntimeError(
            "report_to='dagshub' needs MLFLOW_TRACKING_URI, as `dagshub.init()` sets it: "
            f"https://dagshub.com/<owner>/<repository>.mlflow, not {uri!r}."
        )
    return parts[-2], parts[-1].partition(".")[0]
