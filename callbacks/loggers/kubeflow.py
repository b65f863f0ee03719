"""Kubeflow Trainer, which tells the processes of a job where they can report its progress."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import TrainerCallback
from ..state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ...facade import TrainingArguments

logger = logging.getLogger(__name__)

SERVER = "KUBEFLOW_TRAINER_SERVER_URL"
INTERVAL = 5.0
"""Seconds between two reports."""
TIMEOUT = 5.0
"""Seconds after which a report fails."""


def accepts_kubeflow_reports() -> bool:
    """Return whether this process is in a Kubeflow job with a server for reports.

    False if reports are disabled by the environment.
    """
    is_disabled = os.environ.get("DISABLE_KUBEFLOW_INTEGRATION", "").upper() == "TRUE"
    return SERVER in os.environ and not is_disabled


class KubeflowCallback(TrainerCallback):
    """Report progress and metrics to the controller of a Kubeflow job.

    Works like `transformers.integrations.KubeflowCallback` of 5.4.

    Process 0 reports progress, remaining time and the last metrics, at most every five seconds, and
    at the end. The controller of the job sets the address, and the files of certificate and token
    (`KUBEFLOW_TRAINER_SERVER_CA_CERT`, `KUBEFLOW_TRAINER_SERVER_TOKEN`). A report that fails is
    dropped; the training continues.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}
        self._start_time = 0.0
        self._last_report_time = 0.0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Report 0 %."""
        self._metrics = {}
        self._start_time = time.monotonic()
        metrics = {"total_steps": state.max_steps} if state.max_steps else {}
        self._report(state, percent=0, remaining_seconds=None, metrics=metrics)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Keep the numbers for the next report."""
        for name, value in (logs or {}).items():
            if isinstance(value, (int, float)):
                self._metrics[name] = value

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Report the progress, if the last report is old enough."""
        now = time.monotonic()
        if not state.max_steps or now - self._last_report_time < INTERVAL:
            return

        fraction_done = state.global_step / state.max_steps
        remaining_seconds = None
        if fraction_done:
            elapsed = now - self._start_time
            remaining_seconds = elapsed * (1 - fraction_done) / fraction_done
        metrics = {
            **self._metrics,
            "current_step": state.global_step,
            "total_steps": state.max_steps,
            "current_epoch": state.epoch,
        }
        # 100 % means that the training has ended.
        percent = min(int(100 * fraction_done), 99)
        self._report(state, percent, remaining_seconds, metrics)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Report 100 %."""
        self._report(state, percent=100, remaining_seconds=0.0, metrics=self._metrics)

    def _report(
        self,
        state: TrainerState,
        percent: int,
        remaining_seconds: float | None,
        metrics: Mapping[str, float],
    ) -> None:
        """Send a report, in process 0.

        Args:
            state: the state of the training.
            percent: the percentage of the training that is done.
            remaining_seconds: None if unknown.
            metrics: numbers by name.
        """
        if not state.is_world_process_zero:
            return
        self._last_report_time = time.monotonic()

        # The names are those of Kubeflow's interface.
        status: dict[str, Any] = {
            "lastUpdatedTime": datetime.now(UTC).isoformat(),
            "progressPercentage": percent,
            "metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()],
        }
        if remaining_seconds is not None:
            status["estimatedRemainingSeconds"] = max(0, int(remaining_seconds))

        try:
            _post({"trainerStatus": status})
        except Exception as error:  # a report that fails must not end the training
            logger.debug(
                "Reporting step %s to Kubeflow failed (%s).",
                state.global_step,
                type(error).__name__,
            )


def _post(content: dict[str, Any]) -> None:
    """Send a report to the server of the job."""
    import ssl
    from urllib import request

    # Read each time, as it is renewed while the job runs.
    token_file = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"])
    token = token_file.read_text(encoding="utf-8").strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    post = request.Request(os.environ[SERVER], json.dumps(content).encode(), headers, method="POST")

    certificate = os.environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
    context = ssl.create_default_context(cafile=certificate) if certificate else None
    with request.urlopen(post, timeout=TIMEOUT, context=context):
        pass
