"""DagsHub: MLflow on its server, and files in its repository."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from ..state import TrainerControl, TrainerState
from .availability import is_switched_on
from .mlflow import MLflowCallback


class DagsHubCallback(MLflowCallback):
    """As `transformers.integrations.DagsHubCallback`, but its run is closed when training ends, as that of MLflow is.

    Environment variables, beside those of `MLflowCallback`:

    - `MLFLOW_TRACKING_URI`: `https://dagshub.com/<owner>/<repository>.mlflow`, which `dagshub.init()` sets. Necessary.
    - `HF_DAGSHUB_LOG_ARTIFACTS`: 1 or true uploads the output folder when training ends, and the training data with it.
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
        self, args: Any, state: TrainerState, control: TrainerControl, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Close the run; with `HF_DAGSHUB_LOG_ARTIFACTS` upload the output folder."""
        if self._initialized and state.is_world_process_zero and is_switched_on("HF_DAGSHUB_LOG_ARTIFACTS"):
            with self._training_goes_on("the output folder"):
                dataset = getattr(train_dataloader, "dataset", None)
                if dataset is not None:
                    import torch

                    torch.save(dataset, os.path.join(args.output_dir, "dataset.pt"))
                self.repo.directory("artifacts").add_dir(str(args.output_dir))
        super().on_train_end(args, state, control, **kwargs)

    def _start(self, args: Any, state: TrainerState, model: Any) -> None:
        owner, name = _repository(os.environ.get("MLFLOW_TRACKING_URI"))
        self.repo = self.Repo(owner=owner, name=name, branch=os.environ.get("BRANCH") or "main")
        super()._start(args, state, model)


def _repository(uri: str | None) -> tuple[str, str]:
    """Owner and name of the repository behind a tracking URI."""
    parts = urlsplit(uri or "").path.strip("/").split("/")
    if len(parts) < 2:
        raise RuntimeError(
            f"report_to='dagshub' reads the repository from the environment variable MLFLOW_TRACKING_URI, which is "
            f"{uri!r}. Call `dagshub.init()`, or set it to https://dagshub.com/<owner>/<repository>.mlflow."
        )
    return parts[-2], parts[-1].partition(".")[0]
