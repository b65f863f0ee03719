"""Azure Machine Learning."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..state import TrainerControl, TrainerState
from .base import LoggerCallback
from .values import number


class AzureMLCallback(LoggerCallback):
    """As `transformers.integrations.AzureMLCallback`: numbers go to the run that the script was submitted as.

    Metrics keep the names of the logs (`loss`, `eval_loss`). On a machine outside of Azure azureml prints them.

    Args:
        azureml_run: a run to use instead of that of the context.

    Raises:
        MissingTrackerError: an ImportError; azureml-core is not installed.
    """

    platform = "azure_ml"

    def __init__(self, azureml_run: Any = None) -> None:
        super().__init__()
        self.azureml_run = azureml_run

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Find the run of the context."""
        self.setup(args, state)

    def _start(self, args: Any, state: TrainerState, model: Any) -> None:
        if self.azureml_run is None:
            self.azureml_run = import_module("azureml.core.run").Run.get_context()

    def _leave(self, state: TrainerState) -> None:
        """Trials share the run: it is Azure's."""

    def _report(self, args: Any, state: TrainerState, logs: dict[str, Any]) -> None:
        for name, value in logs.items():
            plain = number(value)
            if plain is not None:
                self.azureml_run.log(name, plain, description=name)
