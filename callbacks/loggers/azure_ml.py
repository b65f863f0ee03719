"""Azure Machine Learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .base import LogsFirstCallback

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


class AzureMLCallback(LogsFirstCallback):
    """Log numbers to the Azure ML run of the script.

    Works like `transformers.integrations.AzureMLCallback`.

    Metrics keep the names of the logs (`loss`, `eval_loss`). Outside of Azure, azureml prints them.

    Args:
        azureml_run: a run to use instead of the one in the context.

    Raises:
        MissingTrackerError: an ImportError; azureml-core is not installed.
    """

    platform = "azure_ml"

    def __init__(self, azureml_run: Any = None) -> None:
        super().__init__()
        self.azureml_run = azureml_run

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Get the run from the context."""
        self.setup(args, state)

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        """Get the run from the context, unless one was passed."""
        if self.azureml_run is None:
            azureml = import_module("azureml.core.run")
            self.azureml_run = azureml.Run.get_context()

    def _close_earlier_run(self, state: TrainerState) -> None:
        """Leave the run open: all trials of a search share the run of Azure."""

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        """Log numbers; Azure keeps no other values."""
        for name, value in self._numbers(logs).items():
            self.azureml_run.log(name, value, description=name)
