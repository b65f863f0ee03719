"""Kubeflow Trainer, which tells the processes of a job where they can report its progress."""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import TrainerCallback
from ..state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..arguments import CallbackArguments

logger = logging.getLogger(__name__)

SERVER = "KUBEFLOW_TRAINER_SERVER_URL"
INTERVAL = 5.0
"""Seconds between two reports."""
PATIENCE = 5.0
"""Seconds that one may take."""


def is_kubeflow_there() -> bool:
    """Return whether this process belongs to a Kubeflow job that accepts reports, and reports
    are enabled.
    """
    return (
        SERVER in os.environ
        and os.environ.get("DISABLE_KUBEFLOW_INTEGRATION", "").upper() != "TRUE"
    )


class KubeflowCallback(TrainerCallback):
    """As `transformers.integrations.KubeflowCallback`, of 5.4: progress, time that is left, and the
    last metrics.

    The first process of all posts them, at most every five seconds, and at the end. The job's
    controller sets the address, and the files of certificate and token
    (`KUBEFLOW_TRAINER_SERVER_CA_CERT`, `KUBEFLOW_TRAINER_SERVER_TOKEN`). What cannot be sent is
    left out: a training does not end for its report.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._started = self._sent = 0.0

    def on_train_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Report 0 %."""
        self._metrics = {}
        self._started = time.monotonic()
        self._report(state, 0, None, {"total_steps": state.max_steps} if state.max_steps else {})

    def on_log(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Keep the numbers for the next report."""
        self._metrics.update(
            {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        )

    def on_step_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Report how far the training is, if the last report is old enough."""
        if not state.max_steps or time.monotonic() - self._sent < INTERVAL:
            return
        done = state.global_step / state.max_steps
        left = (time.monotonic() - self._started) * (1 - done) / done if done else None
        steps = {
            "current_step": state.global_step,
            "total_steps": state.max_steps,
            "current_epoch": state.epoch,
        }
        self._report(state, min(int(100 * done), 99), left, {**self._metrics, **steps})

    def on_train_end(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Report 100 %."""
        self._report(state, 100, 0.0, self._metrics)

    def _report(
        self, state: TrainerState, percent: int, left: float | None, metrics: dict[str, Any]
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._sent = time.monotonic()
        status: dict[str, Any] = {
            "lastUpdatedTime": datetime.now(UTC).isoformat(),
            "progressPercentage": percent,
            "metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()],
        }
        if left is not None:
            status["estimatedRemainingSeconds"] = max(0, int(left))
        try:
            _post({"trainerStatus": status})
        except Exception as error:  # a report that fails must not end the training
            logger.debug(
                "Kubeflow has not got the report of step %s (%s).",
                state.global_step,
                type(error).__name__,
            )


def _post(content: dict[str, Any]) -> None:
    import ssl
    from urllib import request

    # Read each time, as it is renewed while the job runs.
    token = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text(encoding="utf-8").strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = request.Request(
        os.environ[SERVER], json.dumps(content).encode(), headers, method="POST"
    )
    certificate = os.environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
    trusted = ssl.create_default_context(cafile=certificate) if certificate else None
    with request.urlopen(asked, timeout=PATIENCE, context=trusted):
        pass
